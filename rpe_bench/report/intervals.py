"""95 % intervals of what seeds say together, a row of seeds at a time. Pure functions of arrays.

Seeds are few, bounded and skewed: accuracies crowd below 1, and a seed that fails to fit lies far from the others. What
each method covers then was measured, and is in `rpe_bench.report.coverage`; the ones used are those that came out best:

    mean             from 5 seeds on the studentised bootstrap (bootstrap-t: Efron and Tibshirani 1993, chapter 12),
                     which follows the skew; with fewer, Student's t
    interquartile    from 8 seeds on the percentile bootstrap (as Agarwal et al. 2021, arXiv 2108.13264); with fewer,
                     which leave out one at either end or none, Student's t about it, with the spread of all seeds
    difference       Student's t of the paired differences, which are less skewed than what they are of
    share            Wilson's interval of a proportion (1927)

The percentile bootstrap of the mean, which is the usual one, covers 84 % at 5 normal seeds and 82 % at 5 skewed ones,
and BCa does not mend that.

Shapes: G groups, N seeds in each, S resamples.
"""

import math
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
"""Nominal coverage."""

BOOTSTRAP_FROM = 5
"""Fewest seeds that the studentised bootstrap is used for. Of 4, one resample in 64 is a single seed four times, whose
spread is zero, and the interval is far wider than need be; of 3, one in 9, and the bootstrap gives none."""

WIDEST = 3.0
"""How many times further from the mean than Student's t an end of the studentised bootstrap can be. Accuracies are
fractions of a few hundred examples: where most seeds have the same, most resamples have no spread, and the bootstrap
alone would let 0.9997 reach from 0 to 1. On the shapes of `rpe_bench.report.coverage` the limit costs at most 0.5 % of
coverage, with seeds of 320 examples near 1 none, and makes what were intervals of half the axis ones of a hundredth."""

TRIM = 0.25
"""Share of the seeds that the interquartile mean leaves out at either end."""


def mean_interval(values_GN: np.ndarray, counts_SN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the mean of each row; nan for a single seed, and where a value is not finite."""
    if values_GN.shape[1] < BOOTSTRAP_FROM:
        return student_interval(values_GN)
    return studentised_interval(values_GN, counts_SN)


def interquartile_interval(values_GN: np.ndarray, counts_SN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the interquartile mean of each row; nan for a single seed, and where a value is not finite."""
    if trimmed(values_GN.shape[1]) < 2:
        return student_interval(values_GN, TRIM)
    return percentile_interval(values_GN, counts_SN, TRIM)


def trimmed(n: int, trim: float = TRIM) -> int:
    """How many of n a trimmed mean leaves out at either end (as scipy's trim_mean): 0 of 3, 1 of 4 to 7, 2 of 8."""
    return int(trim * n)


def trimmed_mean(values_GN: np.ndarray, trim: float = TRIM) -> np.ndarray:
    """Mean of what is left in the middle of each row; nan where a value is nan, as no seed is dropped."""
    n = values_GN.shape[1]
    cut = trimmed(n, trim)
    ordered_GN = np.sort(values_GN, axis=1)  # nan comes last, where it would be trimmed
    return np.where(np.isnan(values_GN).any(axis=1), np.nan, ordered_GN[:, cut : n - cut].mean(axis=1))


def student_interval(values_GN: np.ndarray, trim: float = 0.0, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """(trimmed) mean ± t_{N-1} s / sqrt(N), s of all N; nan for a single seed."""
    n = values_GN.shape[1]
    if n < 2:
        return np.full(len(values_GN), np.nan), np.full(len(values_GN), np.nan)
    with np.errstate(invalid="ignore"):  # of infinite losses
        mean_G = trimmed_mean(values_GN, trim)
        half_G = student_quantile((1 + level) / 2, n - 1) * values_GN.std(axis=1, ddof=1) / math.sqrt(n)
        return mean_G - half_G, mean_G + half_G


def resamples(n: int, rng: np.random.Generator, count: int = 10_000) -> np.ndarray:
    """`count` samples of n drawn with replacement from n: how often each is in it, (S, N); each row sums to n."""
    return rng.multinomial(n, np.full(n, 1 / n), size=count)


def percentile_interval(
    values_GN: np.ndarray, counts_SN: np.ndarray, trim: float = 0.0, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles of the (trimmed) means of the resamples."""
    n = values_GN.shape[1]
    cut = trimmed(n, trim)
    # The counts taken as those of the values in order: of their running sum, the part between cut and n - cut is left.
    kept_SN = np.diff(np.clip(np.cumsum(counts_SN, axis=1), cut, n - cut), axis=1, prepend=cut) / (n - 2 * cut)
    ordered_GN = np.sort(values_GN, axis=1)
    low_G, high_G = np.empty((2, len(values_GN)))
    for part in _parts(values_GN, counts_SN):
        with np.errstate(invalid="ignore"):
            low_G[part], high_G[part] = np.quantile(
                kept_SN @ ordered_GN[part].T, [(1 - level) / 2, (1 + level) / 2], axis=0
            )
    return _of_finite(values_GN, low_G, high_G)


def studentised_interval(
    values_GN: np.ndarray, counts_SN: np.ndarray, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """[m - q_high se, m - q_low se], with se = sd / sqrt(N) and q the quantiles of t* = (m* - m) / se* over resamples.

    Where a resample is a single seed again and again, or one of equal seeds, se* is 0 and t* infinite; the ends are no
    further than WIDEST allows. Seeds that are all equal have an interval of no width. n: two or more.
    """
    n = values_GN.shape[1]
    weights_SN = counts_SN / n
    # se is of the standard deviation that divides by N, and Student's t of the one that divides by N - 1.
    limit = WIDEST * student_quantile((1 + level) / 2, n - 1) * math.sqrt(n / (n - 1))
    low_G, high_G = np.empty((2, len(values_GN)))
    for part in _parts(values_GN, counts_SN):
        mean_G = values_GN[part].mean(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            centred_GN = values_GN[part] - mean_G[:, None]
            se_G = centred_GN.std(axis=1) / math.sqrt(n)
            shift_SG = weights_SN @ centred_GN.T
            variance_SG = np.maximum(weights_SN @ (centred_GN**2).T - shift_SG**2, 0.0)
            variance_SG[variance_SG < 1e-12 * n * se_G**2] = 0.0  # where rounding leaves some 1e-16 of the whole
            t_SG = np.where(shift_SG == 0, 0.0, shift_SG / np.sqrt(variance_SG / n))
            # One of them rather than a point between two, which infinite ones do not have.
            q_low, q_high = np.quantile(t_SG, [(1 - level) / 2, (1 + level) / 2], axis=0, method="nearest")
            q_low, q_high = np.clip(q_low, -limit, limit), np.clip(q_high, -limit, limit)
            equal_G = se_G <= 1e-14 * np.abs(mean_G)
            low_G[part] = np.where(equal_G, mean_G, mean_G - q_high * se_G)
            high_G[part] = np.where(equal_G, mean_G, mean_G - q_low * se_G)
    return _of_finite(values_GN, low_G, high_G)


def _parts(values_GN: np.ndarray, counts_SN: np.ndarray) -> Iterator[slice]:
    """Some groups at a time, so that 32 MiB hold a number for each of their resamples."""
    step = max(1, 2**22 // len(counts_SN))
    return (slice(start, start + step) for start in range(0, len(values_GN), step))


def _of_finite(values_GN: np.ndarray, low_G: np.ndarray, high_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    finite_G = np.isfinite(values_GN).all(axis=1)
    return np.where(finite_G, low_G, np.nan), np.where(finite_G, high_G, np.nan)


def wilson_interval(
    successes: np.ndarray | int, n: np.ndarray | int, level: float = LEVEL
) -> tuple[np.ndarray, np.ndarray]:
    """The proportions p that are no further than z standard errors sqrt(p (1 - p) / n) from successes / n."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    k, n = np.asarray(successes, dtype=float), np.asarray(n, dtype=float)
    middle = (k + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(k * (n - k) / n + z**2 / 4)
    return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)


def student_cdf(t: float, df: int) -> float:
    """P(T <= t) for Student's t of a whole number of degrees of freedom, as a sum (Abramowitz and Stegun 26.7.3-4).

    With theta = atan(t / sqrt(df)): for odd df (2/pi) (theta + sin theta (cos theta + 2/3 cos^3 theta + ...)), for even
    df sin theta (1 + 1/2 cos^2 theta + ...) is P(|T| <= t).
    """
    theta = math.atan2(t, math.sqrt(df))
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = df % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(odd, df - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    inside = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return (1 + inside) / 2


@cache
def student_quantile(probability: float, df: int) -> float:
    """The t with P(T <= t) = probability, of 0.5 or more, by bisection."""
    low, high = 0.0, 1.0
    while student_cdf(high, df) < probability:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if student_cdf(middle, df) < probability else (low, middle)
    return high
