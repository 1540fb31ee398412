"""How many seeds it takes to see a difference between two encodings on a task, by the spread of those that ran."""

import math

import numpy as np
import pandas as pd

from rpe_bench.report.load import Results
from rpe_bench.report.significance import POWER, pairs_needed

SIZES = (0.05, 0.1, 0.2)
"""Differences of token accuracy for which it is said."""

MOST = 1_000


def typical_spread(evaluations: pd.DataFrame, metric: str = "token_accuracy") -> float:
    """Of one task: the median, over pairs of encodings and lengths from the training length on, of the standard
    deviation of their differences paired by seed.

    Pairs that differ by the same under every seed are left out: most are at chance together, or both at 1. nan where
    nothing is left.
    """
    found = []
    for _, rows in evaluations[evaluations["ratio"] >= 1].groupby("length"):
        values_SK = rows.pivot(index="seed", columns="encoding_label", values=metric).to_numpy(dtype=float)
        for place in range(values_SK.shape[1] - 1):
            with_others_SK = values_SK[:, place : place + 1] - values_SK[:, place + 1 :]
            counts_K = np.isfinite(with_others_SK).sum(axis=0)  # the seeds that both have
            paired_SK = with_others_SK[:, counts_K > 1]
            found.append(np.nanstd(paired_SK, axis=0, ddof=1))
    spreads = np.concatenate([np.empty(0), *found])
    spreads = spreads[spreads > 1e-12]
    return float(np.median(spreads)) if len(spreads) else math.nan


def seeds_lines(results: Results) -> list[str]:
    """`copy: ... 0.1 with 9 seeds, ...`, for each task of which something can be said."""
    lines = []
    for task in results.task_labels:
        rows = results.evaluations[results.evaluations["task_label"] == task]
        if math.isnan(spread := typical_spread(rows)):
            continue
        needed = [(size, pairs_needed(size, spread, most=MOST)) for size in SIZES]
        parts = [f"{size:g} with {f'{count}' if count else f'more than {MOST:,}'} seeds" for size, count in needed]
        seeds = rows.groupby("encoding_label")["seed"].nunique()
        there = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
        lines.append(f"{task}: {', '.join(parts)} (sd {spread:.2g}; here are {there})")
    return lines


HEADING = (
    f"Seeds that it takes to see a difference of token accuracy between two encodings in {100 * POWER:.0f} of 100 such "
    "experiments, at one length, by the permutation test of `rpe-bench compare`, if differences paired by seed are "
    "spread as those here are (median of the standard deviation over pairs of encodings and lengths from the training "
    "length on):"
)
