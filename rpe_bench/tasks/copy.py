"""Copying random symbols."""

import numpy as np

from rpe_bench.tasks.base import IGNORE, Batch, Task


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
    """

    isolates = "relative offset"
    default_train_length = 16
    min_size = 4
    causal = True

    def __init__(self, types: int = 16) -> None:
        """types: number of different symbols, at least 2 (else ValueError)."""
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        self.classes = types
        self.bos, self.sep = types, types + 1
        self.vocabulary = types + 2

    def length(self, size: int) -> int:
        return 2 * size + 1

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, 2 * size + 1). ValueError where size is too small."""
        self.check_size(size)
        symbols = rng.integers(self.classes, size=(examples, size))
        tokens = np.empty((examples, self.length(size)), dtype=np.int64)
        tokens[:, 0] = self.bos
        tokens[:, 1 : size + 1] = symbols
        tokens[:, size + 1] = self.sep
        tokens[:, size + 2 :] = symbols[:, :-1]
        targets = np.full_like(tokens, IGNORE)
        targets[:, size + 1 :] = symbols
        return Batch.from_numpy(tokens, targets)

    def chance(self, size: int) -> float:
        return 1 / self.classes
