"""Tests of paired differences, and what they could have seen.

The test flips the signs of the paired differences d_s: if the two things compared were the same under two names, each
sign would be as likely as the other. It assumes nothing of how scores are distributed, and is exact. Of n pairs there
are 2^n sign patterns, so that the smallest two-sided p is 2^(1-n), 0.25 for three: the number of pairs decides whether
anything can be concluded at all.

Shapes: L tests, N pairs, S sign patterns.
"""

import math
from functools import cache

import numpy as np

from rpe_bench.report.intervals import LEVEL, student_quantile

ALPHA = 1 - LEVEL
"""Significance level, of a test or of all those together that are corrected for one another."""

POWER = 0.8
"""How often a difference is to be seen, for it to count as one that could have been."""

EXACT_UP_TO = 16
"""Pairs up to which all sign patterns are counted; beyond, PATTERNS of them are drawn."""

PATTERNS = 9_999


def sign_flip_test(differences_LN: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two-sided p of each row of paired differences: the share of sign patterns whose |sum| is at least as large.

    Exact for up to EXACT_UP_TO pairs. Beyond, of PATTERNS random patterns and the one that was seen, so that p is never
    0. nan where a difference is not finite.
    """
    n = differences_LN.shape[1]
    if n <= EXACT_UP_TO:
        # The other half are the same with all signs changed.
        half = np.arange(2 ** (n - 1))[:, None] >> np.arange(n - 1)
        signs_SN = np.concatenate([np.ones((len(half), 1)), 1.0 - 2.0 * (half & 1)], axis=1)
    else:
        signs_SN = rng.choice([-1.0, 1.0], size=(PATTERNS, n))
        signs_SN = np.concatenate([np.ones((1, n)), signs_SN])
    with np.errstate(invalid="ignore"):
        sums_SL = np.abs(signs_SN @ differences_LN.T)
        # Accuracies are fractions: sums that are equal differ by rounding.
        seen_L = sums_SL[signs_SN.min(axis=1) > 0][0] - 1e-12 * np.abs(differences_LN).sum(axis=1)
        p_L = (sums_SL >= seen_L).mean(axis=0)
    return np.where(np.isfinite(differences_LN).all(axis=1), p_L, np.nan)


def holm(p_L: np.ndarray) -> np.ndarray:
    """p after Holm's correction (1979) over all of them: the i-th smallest of L times L - i + 1, never decreasing.

    A missing p counts as a test that was made, and stays missing.
    """
    p_L = np.asarray(p_L, dtype=float)
    filled_L = np.where(np.isnan(p_L), 1.0, p_L)
    order = np.argsort(filled_L, kind="stable")
    corrected_L = np.empty_like(filled_L)
    corrected_L[order] = np.minimum(np.maximum.accumulate(filled_L[order] * np.arange(len(order), 0, -1)), 1.0)
    return np.where(np.isnan(p_L), np.nan, corrected_L)


def smallest_p(n: int) -> float:
    """The smallest two-sided p that `sign_flip_test` can give for n pairs."""
    return 2.0 ** (1 - n)


def fewest_pairs(tests: int = 1, alpha: float = ALPHA) -> int:
    """The fewest pairs with which one of `tests` differences can be significant after Holm's correction."""
    return 1 + math.ceil(math.log2(tests / alpha) - 1e-9)


def power(effect: float, n: int, alpha: float = ALPHA) -> float:
    """Probability that a two-sided t test of n normal differences sees a mean of `effect` standard deviations.

    P(|T| > t_{1-alpha/2}), T noncentral t: the mean over s of Phi(delta - t s) + Phi(-delta - t s), with
    delta = effect sqrt(n) and s, the estimated over the true deviation, distributed as chi_{n-1} / sqrt(n - 1).
    """
    df = n - 1
    critical, delta = student_quantile(1 - alpha / 2, df), effect * math.sqrt(n)
    s = (np.arange(1000) + 0.5) / 1000 * (1 + 8 / math.sqrt(df))
    logs = (df - 1) * np.log(s) - df * s**2 / 2
    weights = np.exp(logs - logs.max())
    return float(weights @ (_phi(delta - critical * s) + _phi(-delta - critical * s)) / weights.sum())


def _phi(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.array([math.erf(value) for value in x / math.sqrt(2)]))


@cache
def detectable(n: int, alpha: float = ALPHA, wanted: float = POWER) -> float:
    """The smallest mean difference, in standard deviations of the differences, that a t test of n pairs sees in a share
    `wanted` of experiments; infinite for one pair."""
    if n < 2:
        return math.inf
    low, high = 0.0, 1.0
    while power(high, n, alpha) < wanted:
        high *= 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, n, alpha) < wanted else (low, middle)
    return high


def detectable_by_signs(n: int, tests: int = 1, wanted: float = POWER) -> float:
    """As `detectable`, by `sign_flip_test` as the first of so many tests under Holm's correction; infinite where no
    difference could be significant."""
    level = _level_of_signs(n, tests)
    return detectable(n, level, wanted) if level > 0 else math.inf


def _level_of_signs(n: int, tests: int) -> float:
    """The level of a t test that is about as good as `sign_flip_test` at ALPHA / tests; 0 where that can't reach it.

    Its p are whole multiples of 2^(1-n). Half of one below the largest that is small enough, the power of a t test is
    that of this one within 0.05, as simulated for 6 to 13 pairs and 1 to 7 tests.
    """
    if n > EXACT_UP_TO:
        return ALPHA / tests
    reached = math.floor(ALPHA / tests / smallest_p(n) + 1e-9)
    return max(reached - 0.5, 0.0) * smallest_p(n)


def pairs_needed(difference: float, sd: float, tests: int = 1, wanted: float = POWER, most: int = 1_000) -> int | None:
    """The fewest pairs of runs with which a difference is seen by `sign_flip_test`, as the first of so many tests, in a
    share `wanted` of experiments, if the differences of single pairs have the standard deviation `sd`; None where that
    is more than `most`."""

    def seen(n: int) -> bool:
        return power(difference / sd, n, _level_of_signs(n, tests)) >= wanted

    low = fewest_pairs(tests) - 1
    high = low + 1
    while high <= most and not seen(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high if high <= most else None
