"""How often an interval holds what it is of: measured on simulated seeds whose truth is known, looked up, put in words.

No method can do it all with few seeds. Where one seed in ten fails, more than half of all sets of 5 have no failure
among them, and nothing in those tells of one; where one seed in four errs at all, a fifth of them have no error among
them, and the interval is the one point 1. So the intervals are printed with the coverage that was measured, from
coverage.csv beside this file, which `scripts/coverage.py` writes:

    statistic, method, shape, n, simulations, coverage, width (median), used (whether the reports use the method at n)

Shapes are of accuracies: what seeds look like that all fit, those that are tied at 1, and those of which some fail.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from rpe_bench.report.intervals import (
    BOOTSTRAP_FROM,
    TRIM,
    percentile_interval,
    resamples,
    student_interval,
    studentised_interval,
    trimmed,
    trimmed_mean,
    wilson_interval,
)
from rpe_bench.seeds import stream

TABLE = Path(__file__).with_name("coverage.csv")

Interval = tuple[np.ndarray, np.ndarray]

TIED = "most seeds are tied at 1"
FAILING = "some seeds fail"


@dataclass(frozen=True)
class Shape:
    """What seeds are drawn from: the share `failing` of them with a mean of 0.3, the others as `fitting` draws them."""

    words: str
    fitting: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
    fitted_mean: float
    failing: float = 0.0
    tied: bool = False
    """Whether most seeds have the same accuracy, 1."""

    @property
    def where(self) -> str:
        """What sets it apart from seeds that all fit, and differ."""
        return TIED if self.tied else FAILING if self.failing else ""

    @property
    def mean(self) -> float:
        return (1 - self.failing) * self.fitted_mean + self.failing * 0.3

    def sample(self, rng: np.random.Generator, groups: int, n: int) -> np.ndarray:
        """(G, N) accuracies."""
        fitted_GN, failed_GN = self.fitting(rng, (groups, n)), rng.beta(6, 14, (groups, n))
        return np.where(rng.random((groups, n)) < self.failing, failed_GN, fitted_GN)


def _near(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return rng.beta(45, 5, size)  # near 0.9


SHAPES = {
    "normal": Shape("normal seeds", lambda rng, size: rng.normal(0.6, 0.05, size), 0.6),
    "skewed": Shape("skewed ones", lambda rng, size: rng.beta(9, 1, size), 0.9),
    "saturated": Shape("seeds just below 1", lambda rng, size: 1 - np.minimum(rng.exponential(0.01, size), 1), 0.99),
    "tied": Shape(TIED, lambda rng, size: 1 - rng.binomial(640, 0.0005, size) / 640, 0.9995, tied=True),
    "half fail": Shape("one in two fails", _near, 0.9, 0.5),
    "three in ten fail": Shape("three in ten fail", _near, 0.9, 0.3),
    "one in ten fails": Shape("one in ten fails", _near, 0.9, 0.1),
}

SHARES = {"half": 0.5, "four in five": 0.8, "nineteen in twenty": 0.95}
"""True shares of seeds that generalise."""

METHODS: dict[str, dict[str, Callable[[np.ndarray, np.ndarray], Interval]]] = {
    "mean": {
        "student": lambda values, counts: student_interval(values),
        "studentised": studentised_interval,
        "percentile": percentile_interval,
    },
    "interquartile": {
        "student": lambda values, counts: student_interval(values, TRIM),
        "percentile": lambda values, counts: percentile_interval(values, counts, TRIM),
    },
    "difference": {
        "student": lambda values, counts: student_interval(values),
        "studentised": studentised_interval,
        "percentile": percentile_interval,
    },
    "share": {"wilson": lambda values, counts: wilson_interval(values.sum(axis=1), values.shape[1])},
}
"""Statistic -> the methods that were compared, of values (G, N) and the counts (S, N) of resamples."""


def used(statistic: str, n: int) -> str:
    """The method that reports use for a statistic of n seeds."""
    if statistic == "mean":
        return "student" if n < BOOTSTRAP_FROM else "studentised"
    if statistic == "interquartile":
        return "student" if trimmed(n) < 2 else "percentile"
    return {"difference": "student", "share": "wilson"}[statistic]


def shapes_of(statistic: str) -> list[str]:
    """The shapes that a statistic is measured on."""
    return list(SHARES if statistic == "share" else SHAPES)


def simulated(statistic: str, shape: str, n: int, simulations: int) -> tuple[np.ndarray, float]:
    """Values (G, N) of as many experiments with n seeds, and the truth that an interval is to hold.

    "difference": the shape's seeds less those of an encoding that always fits, near 0.9.
    """
    rng = stream("coverage", statistic, shape, n)
    if statistic == "share":
        return (rng.random((simulations, n)) < SHARES[shape]).astype(float), SHARES[shape]
    values_GN = SHAPES[shape].sample(rng, simulations, n)
    if statistic == "difference":
        values_GN = values_GN - _near(rng, values_GN.shape)
    if statistic == "interquartile":
        return values_GN, _interquartile_mean(shape)
    return values_GN, SHAPES[shape].mean - (0.9 if statistic == "difference" else 0.0)


@cache
def _interquartile_mean(shape: str) -> float:
    return float(trimmed_mean(SHAPES[shape].sample(stream("coverage truth", shape), 1, 1_000_000))[0])


def measure(
    statistic: str,
    shape: str,
    n: int,
    method: Callable[[np.ndarray, np.ndarray], Interval],
    simulations: int = 2_000,
    count: int = 2_000,
) -> tuple[float, float]:
    """Share of the simulated experiments whose interval holds the truth, and the median width; `count` resamples.

    Intervals end where accuracies do, as in reports.
    """
    values_GN, truth = simulated(statistic, shape, n, simulations)
    low_G, high_G = method(values_GN, resamples(n, stream("coverage resamples", n), count))
    least = -1.0 if statistic == "difference" else 0.0
    low_G, high_G = np.clip(low_G, least, 1.0), np.clip(high_G, least, 1.0)
    return float(((low_G <= truth) & (truth <= high_G)).mean()), float(np.median(high_G - low_G))


@cache
def table() -> pd.DataFrame:
    """coverage.csv."""
    return pd.read_csv(TABLE)


def coverage_of(statistic: str, n: int) -> Mapping[str, float]:
    """Shape -> measured coverage of the interval that is used for n seeds; empty for one, which has none.

    Of a number of seeds that was not measured, that of the next lower one.
    """
    rows = _measured(statistic, n)
    return dict(zip(rows["shape"], rows["coverage"], strict=True))


def _measured(statistic: str, n: int) -> pd.DataFrame:
    rows = table()
    rows = rows[(rows["statistic"] == statistic) & rows["used"] & (rows["n"] <= n)]
    return rows[rows["n"] == rows["n"].max()]


def _measured_at(statistic: str, n: int) -> int:
    """The number of seeds that `coverage_of` is of: what is said of it names no other."""
    return int(_measured(statistic, n)["n"].iloc[0])


def coverage_line(statistic: str, n: int) -> str:
    """What stands beside an interval of n seeds: `measured coverage at 3 seeds: 95 % for normal seeds, ...`."""
    found = coverage_of(statistic, n)
    if not found:
        return "one seed: no interval"
    words = {name: shape.words for name, shape in SHAPES.items()} | {
        name: f"a true share of {share:g}" for name, share in SHARES.items()
    }
    parts = [
        f"{100 * share:.0f} % {'where' if shape in SHAPES and SHAPES[shape].where else 'for'} {words[shape]}"
        for shape, share in found.items()
    ]
    return f"measured coverage of a 95 % interval of {_measured_at(statistic, n)} seeds: {', '.join(parts)}"


def coverage_range(statistic: str, n: int) -> str:
    """`coverage_line` for a caption: the least and the most over the shapes of seeds that all fit and differ, and over
    those of each other kind; "" for one seed, which has no interval."""
    found = coverage_of(statistic, n)
    if not found:
        return ""
    kinds: dict[str, list[float]] = {}
    for shape, share in found.items():
        kinds.setdefault(SHAPES[shape].where, []).append(share)
    parts = [f"{_span(shares)} {f'where {where}' if where else 'of the time'}" for where, shares in kinds.items()]
    seeds = _measured_at(statistic, n)
    return f"in simulations, such intervals of {seeds} seeds held the true mean {', '.join(parts)}"


def _span(shares: list[float]) -> str:
    least, most = (f"{100 * share:.0f}" for share in (min(shares), max(shares)))
    return f"{least} %" if least == most else f"{least} to {most} %"
