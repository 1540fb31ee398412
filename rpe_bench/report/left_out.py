"""Which runs are in no average, and why, in a few lines however many there are."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pandas as pd

from rpe_bench.report.load import STATUSES

SHOWN = 10
"""Lines on runs of one status; how many more runs there are is one more."""


def left_out(runs: pd.DataFrame, everywhere: str = "") -> list[str]:
    """Lines on the rows of `Results.runs` that are not finished, by status.

    Runs that differ in nothing but their seed, and what only the hash in their names tells, share a line if the reason
    is the same: `failed: 3 runs copy-rope-quick, seeds 0-1, 4 (ValueError: loss is nan)`.

    Args:
        everywhere: where all of them are named, said if not all are here.
    """
    lines = []
    for status in STATUSES[1:]:
        rows = runs[runs["status"] == status]
        alike: dict[tuple[str, str], list[str]] = {}
        for directory, reason in zip(rows["directory"], rows["reason"], strict=True):
            alike.setdefault((_configuration(directory), reason), []).append(directory)
        shown = list(alike.items())[:SHOWN]
        lines += [f"{status}: {_together(names, directories)} ({reason})" for (names, reason), directories in shown]
        if rest := len(rows) - sum(len(directories) for _, directories in shown):
            lines.append(f"{status}: and {rest} more{everywhere}")
    return lines


_RUN_ID = re.compile(r"(?P<names>.+)-s(?P<seed>[0-9]+)-[0-9a-f]+")


def _configuration(directory: str) -> str:
    """TASK-ENCODING-RECIPE; of what is named otherwise, the name."""
    match = _RUN_ID.fullmatch(directory)
    return match["names"] if match else directory


def _together(names: str, directories: list[str]) -> str:
    if len(directories) == 1:
        return directories[0]
    seeds = sorted({int(match["seed"]) for name in directories if (match := _RUN_ID.fullmatch(name))})
    return f"{len(directories)} runs {names}, seed{'s' if len(seeds) > 1 else ''} {', '.join(_ranges(seeds))}"


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """`0-2`, `5` of 0, 1, 2, 5: what is sorted, and has no number twice."""
    numbers = list(numbers)
    breaks = [index for index, (one, other) in enumerate(pairwise(numbers), start=1) if other > one + 1]
    for start, stop in pairwise([0, *breaks, len(numbers)]):
        first, last = numbers[start], numbers[stop - 1]
        yield str(first) if first == last else f"{first}-{last}"
