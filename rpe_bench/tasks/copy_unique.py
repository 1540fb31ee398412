"""Copying symbols of which no two are the same."""

import numpy as np

from rpe_bench.tasks.copy import Copy


class CopyUnique(Copy):
    """Repeat a string of symbols that are all different, token by token.

    As `Copy`, but the symbols are drawn without replacement: the string is uniform over the arrangements of `size` of
    the `types` values. What followed the last symbol of the copy is then never ambiguous, and looking it up is enough:
    no place need be known but the next one. `types` bounds the size; longer strings are refused.

    `size` is the number of symbols n; the sequence has 2n + 1 tokens, n of them scored (n = 4 here; '.' is not scored):

        index      0    1    2    3    4    5    6    7    8
        tokens   BOS    7  140   26   93  SEP    7  140   26
        targets    .    .    .    .    .    7  140   26   93

    The answers, the input tokens and copies written `times` times are as those of `Copy`.
    """

    isolates = "content match"

    def __init__(self, types: int = 150, times: int = 1) -> None:
        """types: number of different symbols, at least 2.

        times: how often the copy is written, at least 1.

        ValueError where either is out of range.
        """
        super().__init__(types, times)

    def check_size(self, size: int) -> None:
        super().check_size(size)
        if size > self.types:
            raise ValueError(f"size {size} is too large: there are only {self.types} different symbols (types)")

    def symbols(self, rng: np.random.Generator, examples: int, size: int) -> np.ndarray:
        return rng.permuted(np.tile(np.arange(self.types), (examples, 1)), axis=1)[:, :size]
