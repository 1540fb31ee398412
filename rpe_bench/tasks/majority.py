"""Telling which of two there is more of."""

from dataclasses import replace

import numpy as np
import torch

from rpe_bench.tasks.base import Batch, Task, read_then_written


class Majority(Task):
    """Say which bit is the more frequent in a string.

    The number of ones is uniform over 0 .. `size` but for a half, which would be a tie, and their places are uniform
    given the number. The answer is read at SEP. Accuracy is also reported by `margin`, by how many the one bit is more
    frequent than the other.

    `size` is the number of bits n; the sequence has n + 2 tokens, one of them scored (n = 6 here, margin 2; '.' is not
    scored):

        index      0    1    2    3    4    5    6    7
        tokens   BOS    1    0    1    1    0    1  SEP
        targets    .    .    .    .    .    .    .    1

    The answers are 0 and 1, and so are the first two input tokens; BOS and SEP are the other two.
    """

    isolates = "counting"
    default_train_length = 32
    min_size = 1
    causal = True

    def __init__(self) -> None:
        self.classes = 2
        self.bos, self.sep = 2, 3
        self.vocabulary = 4

    def length(self, size: int) -> int:
        return size + 2

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, size + 2). ValueError where size is too small."""
        self.check_size(size)
        even = size % 2 == 0
        ones = rng.integers(size + 1 - even, size=examples)
        if even:
            ones += 2 * ones >= size  # all but the half
        bits = rng.permuted(np.arange(size) < ones[:, None], axis=1)
        batch = read_then_written(bits, (2 * ones > size)[:, None], self.bos, self.sep)
        return replace(batch, slices={"margin": torch.from_numpy(np.abs(2 * ones - size))})

    def chance(self, size: int) -> float:
        return 1 / self.classes
