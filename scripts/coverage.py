"""Measure how often intervals hold what they are of, and write rpe_bench/report/coverage.csv.

    python scripts/coverage.py        # about a minute on one core

Every method that was considered, on every shape of seeds in `rpe_bench.report.coverage`; the bias-corrected and
accelerated bootstrap (bca) is scipy's, of the test extra, at 5, 10 and 20 seeds. Of seeds that are all alike it gives
no interval, which counts as one that misses, and then no median width. The same numbers each time.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from rpe_bench.errors import of_extra
from rpe_bench.report.coverage import METHODS, TABLE, Interval, measure, shapes_of, used
from rpe_bench.report.intervals import TRIM

with of_extra("test", "scipy"):
    from scipy import stats

SEEDS = (2, 3, 4, 5, 6, 8, 10, 15, 20)


def bca(statistic: str, values_GN: np.ndarray) -> Interval:
    """scipy's BCa interval of the mean or the interquartile mean of each row."""

    def of(values: np.ndarray, axis: int) -> np.ndarray:
        return stats.trim_mean(values, TRIM, axis=axis) if statistic == "interquartile" else values.mean(axis=axis)

    found = stats.bootstrap(
        (values_GN,), of, axis=1, n_resamples=1000, batch=100, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    return found.low, found.high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=2_000, help="of each combination")
    parser.add_argument("--out", type=Path, default=TABLE)
    options = parser.parse_args()
    rows = []
    for statistic, methods in METHODS.items():
        for shape in shapes_of(statistic):
            for n in SEEDS:
                compared = dict(methods)
                if n in (5, 10, 20) and statistic != "share":
                    compared["bca"] = lambda values, counts, of=statistic: bca(of, values)
                for method, interval in compared.items():
                    coverage, width = measure(statistic, shape, n, interval, options.simulations)
                    chosen = method == used(statistic, n)
                    rows.append((statistic, method, shape, n, options.simulations, coverage, round(width, 4), chosen))
            print(f"{statistic}, {shape}", flush=True)
    columns = ["statistic", "method", "shape", "n", "simulations", "coverage", "width", "used"]
    pd.DataFrame(rows, columns=columns).to_csv(options.out, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
