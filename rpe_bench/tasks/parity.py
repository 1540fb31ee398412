"""Telling even from odd."""

from dataclasses import replace

import numpy as np
import torch

from rpe_bench.tasks.base import Batch, Task, read_then_written


class Parity(Task):
    """Say whether the number of ones in a string of bits is even or odd.

    The number of ones is uniform over 0 .. `size`, and their places are uniform given the number. (Of independent bits
    almost all strings would have about as many ones as zeros, and short ones would give a model little to begin with.)
    The answer, 0 for even and 1 for odd, is read at SEP. Accuracy is also reported by `ones`, their number.

    `size` is the number of bits n; the sequence has n + 2 tokens, one of them scored (n = 6 here, ones 3; '.' is not
    scored):

        index      0    1    2    3    4    5    6    7
        tokens   BOS    1    0    0    1    1    0  SEP
        targets    .    .    .    .    .    .    .    1

    The answers are 0 and 1, and so are the first two input tokens; BOS and SEP are the other two.
    """

    isolates = "counting"
    default_train_length = 8
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
        ones = rng.integers(size + 1, size=examples)
        bits = rng.permuted(np.arange(size) < ones[:, None], axis=1)
        batch = read_then_written(bits, (ones % 2)[:, None], self.bos, self.sep)
        return replace(batch, slices={"ones": torch.from_numpy(ones)})

    def chance(self, size: int) -> float:
        """Of the size + 1 numbers of ones, as many are even as odd, or one more."""
        return (size // 2 + 1) / (size + 1)
