"""Sorting symbols."""

import math

import numpy as np

from rpe_bench.tasks.base import Batch, Task, read_then_written


class Sort(Task):
    """Write a string of symbols that are all different from the least to the greatest.

    The string is uniform over the arrangements of `size` of the `types` values, which are ordered as their numbers are.
    Its own order tells nothing: the next answer is the least of the symbols that are greater than the last one, and
    where it stands is of no account. A causal language model reads the string and then its own answer; the loss is on
    the answer alone, the target at a position being the next token. Strings of more than `types` symbols are
    refused.

    `size` is the number of symbols n; the sequence has 2n + 1 tokens, n of them scored (n = 4 here; '.' is not scored):

        index      0    1    2    3    4    5    6    7    8
        tokens   BOS   93  140    7   26  SEP    7   26   93
        targets    .    .    .    .    .    7   26   93  140

    Only a symbol can be the answer, so that `classes` is `types`; BOS and SEP are the two input tokens after them.
    """

    isolates = "content match"
    default_train_length = 16
    min_size = 2
    causal = True

    def __init__(self, types: int = 150) -> None:
        """types: number of different symbols, at least 2 (else ValueError)."""
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        self.classes = types
        self.bos, self.sep = types, types + 1
        self.vocabulary = types + 2

    def length(self, size: int) -> int:
        return 2 * size + 1

    def check_size(self, size: int) -> None:
        super().check_size(size)
        if size > self.classes:
            raise ValueError(f"size {size} is too large: there are only {self.classes} different symbols (types)")

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, 2 * size + 1). ValueError where there is no such size."""
        self.check_size(size)
        symbols = rng.permuted(np.tile(np.arange(self.classes), (examples, 1)), axis=1)[:, :size]
        answer = np.sort(symbols, axis=1)
        return read_then_written(symbols, answer, self.bos, self.sep)

    def chance(self, size: int) -> float:
        """Of the likeliest symbol at each place: small ones come early and great ones late.

        Of the C(V, n) sets of n of V symbols, C(v, k) C(V - 1 - v, n - 1 - k) have k below v and v itself. From v - 1
        to v that number does not fall while v (n - 1) <= k V.
        """
        V, n = self.classes, size
        hits = 0
        for k in range(n):
            v = min(k * V // (n - 1), V - n + k) if n > 1 else 0
            hits += math.comb(v, k) * math.comb(V - 1 - v, n - 1 - k)
        return hits / math.comb(V, n) / n
