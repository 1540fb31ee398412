"""Copying random symbols."""

import numpy as np

from rpe_bench.tasks.base import Batch, Task, read_then_written


class Copy(Task):
    """Repeat a string of random symbols, token by token.

    The symbols are drawn independently and uniformly from `types` values. Long strings repeat symbols, so that looking
    up what followed the last symbol is ambiguous. What decides is the place: each answer stands `size` tokens back from
    the position where it is read, a distance that differs from size to size. A causal language model reads the string
    and then its own copy; the loss is on the copy alone, the target at a position being the next token.

    `size` is the number of symbols n; the sequence has 2n + 1 tokens, n of them scored (n = 4 here; '.' is not scored):

        index      0    1    2    3    4    5    6    7    8
        tokens   BOS    7    3    3   12  SEP    7    3    3
        targets    .    .    .    .    .    7    3    3   12

    Only a symbol can be the answer, so that `classes` is `types`; BOS and SEP are the two input tokens after them.

    Written `times` times, the copies are parted by NEXT, which is then one more answer and is scored too, and comes
    before BOS and SEP. The later copies can be made of the string or of the copy before, n + 1 tokens back. With
    times = 2 the sequence has 3n + 2 tokens, 2n + 1 of them scored:

        index      0    1    2    3    4    5    6    7    8    9   10   11   12   13
        tokens   BOS    7    3    3   12  SEP    7    3    3   12 NEXT    7    3    3
        targets    .    .    .    .    .    7    3    3   12 NEXT    7    3    3   12
    """

    isolates = "relative offset"
    default_train_length = 16
    min_size = 4
    causal = True
    neutral = {"times": 1}

    def __init__(self, types: int = 16, times: int = 1) -> None:
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
        self.next = types
        self.classes = types + (times > 1)
        self.bos, self.sep = self.classes, self.classes + 1
        self.vocabulary = self.classes + 2

    def length(self, size: int) -> int:
        return (1 + self.times) * (size + 1) - 1

    def symbols(self, rng: np.random.Generator, examples: int, size: int) -> np.ndarray:
        """Draw the strings, (examples, size)."""
        return rng.integers(self.types, size=(examples, size))

    def written(self, symbols: np.ndarray) -> np.ndarray:
        """What is to be written of the strings, (examples, size)."""
        return symbols

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, length(size)). ValueError where there is no such size."""
        self.check_size(size)
        symbols = self.symbols(rng, examples, size)
        once = np.full((examples, size + 1), self.next)
        once[:, :-1] = self.written(symbols)
        answer = np.tile(once, self.times)[:, :-1]  # NEXT parts the copies, and does not end the last one
        return read_then_written(symbols, answer, self.bos, self.sep)

    def chance(self, size: int) -> float:
        """Of symbols; where NEXT stands is known."""
        copied, parted = self.times * size, self.times - 1
        return (copied / self.types + parted) / (copied + parted)
