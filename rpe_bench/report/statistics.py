"""What several seeds say together. Every seed counts, one that failed to fit as much as any other."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

LINE = ("task_label", "encoding_label")
"""Columns that name one line of a figure, or one row of a table."""

POINT = (*LINE, "length", "ratio")
"""Columns that name one point of it."""


def over_seeds(
    rows: pd.DataFrame,
    value: str,
    by: Sequence[str] = POINT,
    rng: np.random.Generator | None = None,
) -> pd.DataFrame:
    """Number, mean and range of a column over the seeds, for every combination of `by`.

    rows: one row for each seed and combination. rng: also the bootstrap 95 % interval of the mean, as `low` and `high`.
    Returns the columns of `by`, then n, mean, min, max(, low, high), sorted by `by`. Where a value isn't finite for one
    seed, the mean isn't either: no seed is dropped.
    """
    rows = rows.sort_values([*by, "seed"])
    groups = [(key, group.to_numpy()) for key, group in rows.groupby(list(by), sort=True)[value]]
    records = []
    # Every group of n seeds gets the same resamples, so that its interval doesn't hang on what else is in the table.
    weights: dict[int, np.ndarray] = {}
    for key, values in groups:
        n = len(values)
        record = [*key, n, values.mean(), values.min(), values.max()]
        if rng is not None:
            if n not in weights:
                weights[n] = resamples(n, rng)
            record += bootstrap_interval(values, weights[n])
        records.append(record)
    columns = [*by, "n", "mean", "min", "max", *(("low", "high") if rng is not None else ())]
    return pd.DataFrame(records, columns=columns)


def resamples(n: int, rng: np.random.Generator, count: int = 10_000) -> np.ndarray:
    """Weights (count, n) of `count` samples of n drawn with replacement from n: each row sums to 1."""
    return rng.multinomial(n, np.full(n, 1 / n), size=count) / n


def bootstrap_interval(values: np.ndarray, weights: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of values (n,) with the `resamples` of n; (nan, nan) for a single one.

    With few seeds it is too narrow, and never wider than their range; for two or three it is their range.
    """
    if len(values) < 2:
        return np.nan, np.nan
    low, high = np.quantile(weights @ values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def effective_lengths(evaluations: pd.DataFrame, threshold: float = 0.9) -> pd.DataFrame:
    """How far each run holds: the longest evaluated length up to which its exact match stays at or above a threshold.

    It is looked for from the smallest evaluated length at or above the training length, and 0 where that one fails.
    Returns one row a run: LINE, seed, train_length, effective_length, effective_ratio (to the training length) and
    at_limit, true where no evaluated length failed, so that the run may hold further than was measured.
    """
    rows = evaluations[evaluations["length"] >= evaluations["train_length"]]
    rows = rows.sort_values([*LINE, "seed", "length"])
    records = []
    for key, run in rows.groupby([*LINE, "seed", "train_length"], sort=True):
        holds = np.logical_and.accumulate(run["exact_match"].to_numpy() >= threshold)
        records.append([*key, int(run["length"].to_numpy()[holds].max(initial=0)), bool(holds.all())])
    columns = [*LINE, "seed", "train_length", "effective_length", "at_limit"]
    lengths = pd.DataFrame(records, columns=columns)
    lengths.insert(5, "effective_ratio", lengths["effective_length"] / lengths["train_length"])
    return lengths


def over_seeds_effective(evaluations: pd.DataFrame, threshold: float = 0.9) -> pd.DataFrame:
    """Mean and range of the effective length over seeds.

    Returns LINE, train_length, n, mean, min, max (lengths) and at_limit, the number of seeds that never failed.
    """
    lengths = effective_lengths(evaluations, threshold)
    by = [*LINE, "train_length"]
    summary = over_seeds(lengths, "effective_length", by)
    limits = lengths.groupby(by, sort=True)["at_limit"].sum().reset_index(drop=True)
    return summary.assign(at_limit=limits.astype("int64"))
