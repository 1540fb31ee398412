"""The mean over tokens, by which losses and accuracies of parts of a sequence make those of a larger one."""

import numpy as np
from numpy.typing import ArrayLike


def token_mean(values_N: ArrayLike, tokens_N: ArrayLike) -> float:
    """sum of value x tokens / sum of tokens: every token weighs the same, whichever part it is in.

    Not a number where a value is none, as no part is left out.
    """
    tokens = np.asarray(tokens_N, dtype=float)
    return float(np.asarray(values_N, dtype=float) @ tokens / tokens.sum())
