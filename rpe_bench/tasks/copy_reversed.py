"""Copying random symbols from the last to the first."""

import numpy as np

from rpe_bench.tasks.copy import Copy


class CopyReversed(Copy):
    """Repeat a string of random symbols in reverse, token by token.

    As `Copy`, but the last symbol is written first. From one answer to the next the distance back to it grows by two,
    so that no offset serves twice; what stays is the sum of the two indices, 2n + 2. A model that knows positions only
    as offsets has to tell how far it has come before it can tell how far to look.

    `size` is the number of symbols n; the sequence has 2n + 1 tokens, n of them scored (n = 4 here; '.' is not scored):

        index      0    1    2    3    4    5    6    7    8
        tokens   BOS    7    3    3   12  SEP   12    3    3
        targets    .    .    .    .    .   12    3    3    7

    The answers, the input tokens and copies written `times` times are as those of `Copy`.
    """

    isolates = "absolute index"
    default_train_length = 8

    def written(self, symbols: np.ndarray) -> np.ndarray:
        return symbols[:, ::-1]
