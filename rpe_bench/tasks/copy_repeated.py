"""Copying one symbol as often as it was given."""

import numpy as np

from rpe_bench.tasks.base import IGNORE, Batch, Task


class CopyRepeated(Task):
    """Write one symbol as often as it stands in the input, and then stop.

    The symbol is drawn uniformly from `types` values, and the string is nothing but that symbol, `size` times. What the
    copy consists of is plain; when it ends is the question. The string ends with SEP and so does the copy: the answer
    is SEP when the symbol has been written `times` times as often as it was given. A causal language model reads the
    string and then its own copy; the loss is on the copy alone, the target at a position being the next token.

    `size` is the number n of times that the symbol is given; the sequence has 2n + 2 tokens, n + 1 of them scored, or
    (1 + times) n + 2 and times n + 1 (n = 4 here; '.' is not scored):

        index      0    1    2    3    4    5    6    7    8    9
        tokens   BOS    7    7    7    7  SEP    7    7    7    7
        targets    .    .    .    .    .    7    7    7    7  SEP

    A symbol or SEP can be the answer, so that `classes` is `types` + 1; BOS is the input token after them. Who never
    stops is right at all tokens but one, and who stops too early too: what tells is the exact match.

    A size has no more than `types` different examples.
    """

    isolates = "counting"
    default_train_length = 16
    min_size = 1
    causal = True

    def __init__(self, types: int = 64, times: int = 1) -> None:
        """types: number of different symbols, at least 2.

        times: how often the copy is written, at least 1.

        ValueError where either is out of range.
        """
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        self.types = types
        self.times = times
        self.sep, self.bos = types, types + 1
        self.classes = types + 1
        self.vocabulary = types + 2

    def length(self, size: int) -> int:
        return (1 + self.times) * size + 2

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, length(size)). ValueError where size is too small."""
        self.check_size(size)
        tokens = np.tile(rng.integers(self.types, size=(examples, 1)), self.length(size) + 1)
        tokens[:, 0] = self.bos
        tokens[:, [size + 1, -1]] = self.sep
        targets = tokens[:, 1:].copy()
        targets[:, : size + 1] = IGNORE
        return Batch.from_numpy(tokens[:, :-1], targets)

    def chance(self, size: int) -> float:
        """Of the symbol; where the copy ends is known."""
        copied = self.times * size
        return (copied / self.types + 1) / (copied + 1)
