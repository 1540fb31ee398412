"""A comparison in words: what can and cannot be concluded from it, and what more seeds would show."""

import textwrap
from pathlib import Path

import numpy as np
import pandas as pd

from rpe_bench.report.build import file_stems
from rpe_bench.report.comparison import HIGHER_IS_BETTER, METRICS, Comparison
from rpe_bench.report.coverage import coverage_line
from rpe_bench.report.significance import (
    ALPHA,
    EXACT_UP_TO,
    PATTERNS,
    POWER,
    fewest_pairs,
    pairs_needed,
    smallest_p,
)

SIZES = (0.05, 0.1, 0.2)
"""Differences, of accuracies or in nats, for which it is said how many seeds it takes to see them."""

MOST_PAIRS = 1_000


def heading(found: Comparison) -> str:
    """What is compared, on what."""
    return f"{found.task}: {METRICS[found.metric]} of {found.a} less that of {found.b}"


def subject(found: Comparison) -> str:
    """How it is paired."""
    n, seeds = len(found.seeds), ", ".join(map(str, found.seeds))
    by = f"and by example, {found.examples} a length" if found.examples else "scored on the same examples"
    return f"{n} pair{'s' if n > 1 else ''} of runs, by seed ({seeds}), {by}"


def readable(found: Comparison, times: str = "x") -> pd.DataFrame:
    """The table of lengths for a reader, as text."""
    rows = found.lengths
    columns = {
        "length": [f"{row.length} ({row.ratio:.4g}{times})" for row in rows.itertuples()],
        found.a: [_number(value) for value in rows["a"]],
        found.b: [_number(value) for value in rows["b"]],
        "difference": [_signed(value) for value in rows["difference"]],
        "95 % interval": _intervals(rows["low"], rows["high"]),
    }
    if "fresh_low" in rows:
        columns["fresh examples too"] = _intervals(rows["fresh_low"], rows["fresh_high"])
    columns |= {
        "p": [_p(value) for value in rows["p"]],
        "p, corrected": [_p(value) for value in rows["p_holm"]],
        "could be seen": ["" if np.isnan(value) else _number(value) for value in rows["detectable"]],
    }
    return pd.DataFrame(columns)


def conclusions(found: Comparison) -> list[str]:
    """What can and cannot be concluded, a sentence or two each."""
    rows, n, tests = found.lengths, len(found.seeds), len(found.lengths)
    if n == 1:
        single = "One pair: no interval and no test. What one seed shows, the next may turn round."
        return [single, f"A test takes {fewest_pairs()} pairs at a single length, and {_corrected(tests)}."]
    return [
        _of_test(n, tests),
        *_verdicts(found),
        _seen(rows, n, tests),
        _needed(rows, n, tests),
        f"The interval is of the mean over fresh seeds; {coverage_line('difference', n)}.",
        *([_parts(rows)] if found.examples else []),
    ]


def _of_test(n: int, tests: int) -> str:
    if smallest_p(n) * tests > ALPHA + 1e-12:
        single = fewest_pairs()
        at_one = f"{single} pairs at a single length, and " if n < single else ""
        return (
            f"With {n} pairs the smallest two-sided p of a permutation test is {smallest_p(n):.4g}: no difference, "
            f"however large, could have been significant at {ALPHA:.2g}. That takes {at_one}{_corrected(tests)}."
        )
    patterns = f"exact over {2**n} patterns" if n <= EXACT_UP_TO else f"over {PATTERNS} random patterns"
    return f"Permutation test of the signs of the paired differences, {patterns}; {_correction(tests)}."


def _correction(tests: int) -> str:
    return f"Holm's correction over {tests} lengths" if tests > 1 else "a single length, so that nothing is corrected"


def _corrected(tests: int) -> str:
    over = f"with Holm's correction over {tests} lengths" if tests > 1 else "for this length"
    return f"{fewest_pairs(tests)} {over}"


def _verdicts(found: Comparison) -> list[str]:
    rows, words = found.lengths, METRICS[found.metric]
    sure = rows["p_holm"] <= ALPHA + 1e-12
    lines = []
    for label, side in ((found.a, rows["difference"] > 0), (found.b, rows["difference"] < 0)):
        if (chosen := rows[sure & side]).size:
            better = "" if HIGHER_IS_BETTER[found.metric] else ", which is worse"
            most = _p(chosen["p_holm"].max())
            lines.append(
                f"Can be concluded: {label} has the higher {words}{better}, at {_lengths(chosen)} "
                f"(corrected p at most {most})."
            )
    open_ = rows[~sure]
    if open_.empty:
        return lines
    where = "at any length" if len(open_) == len(rows) else f"at {_lengths(open_)}"
    lines.append(f"Cannot be concluded: that {found.a} and {found.b} differ {where}.")
    around = open_[(open_["low"] <= 0) & (open_["high"] >= 0)]
    if len(around):
        widest = around.iloc[int(np.argmax((around["high"] - around["low"]).to_numpy()))]
        lines[-1] += (
            f" Nor that they are alike: at {int(widest['length'])} the interval reaches from {_signed(widest['low'])} "
            f"to {_signed(widest['high'])}."
        )
    for label, chosen in ((found.a, open_[open_["low"] > 0]), (found.b, open_[open_["high"] < 0])):
        if len(chosen):
            lines.append(
                f"An indication, no more: the interval leaves out 0 at {_lengths(chosen)}, where {label} is higher. It "
                "is corrected for nothing, and rests on differences that are near to normal."
            )
    return lines


def _seen(rows: pd.DataFrame, n: int, tests: int) -> str:
    known = rows[rows["detectable"].notna()]
    if known.empty:
        return "The differences are the same in all pairs: nothing can be said of what could have been seen."
    order = np.argsort(known["detectable"].to_numpy(), kind="stable")
    least, most = known.iloc[order[0]], known.iloc[order[-1]]
    spread = f"by the spread of these {n} pairs{', itself a rough one' if n < 10 else ''}"
    line = f"Could have been seen in {100 * POWER:.0f} of 100 such experiments, {spread}: "
    line += f"a difference of {_number(least['detectable'])} (at {int(least['length'])})"
    if len(known) > 1:
        line += f" to {_number(most['detectable'])} (at {int(most['length'])})"
    line += " by the interval, at one length by itself"
    if np.isfinite(known["detectable_holm"]).all():
        low, high = known["detectable_holm"].min(), known["detectable_holm"].max()
        line += f"; {_number(low)} to {_number(high)} by the test, corrected over {tests}"
    return f"{line}."


def _needed(rows: pd.DataFrame, n: int, tests: int) -> str:
    spreads = rows["sd"].to_numpy()
    if not (spreads > 0).any():
        return f"Nor how many seeds would show a difference; the test takes {_corrected(tests)} at least."
    middle, largest = float(np.median(spreads[spreads > 0])), float(spreads.max())
    at = int(rows["length"].iloc[int(np.argmax(spreads))])
    parts = []
    for size in SIZES:
        counts = [pairs_needed(size, sd, tests, most=MOST_PAIRS) for sd in (middle, largest)]
        few, many = (f"{count}" if count else f"more than {MOST_PAIRS}" for count in counts)
        parts.append(f"{size:g} takes {few} seeds" + ("" if few == many else f" (at {at}: {many})"))
    spread = f"of sd {_number(middle)}, the median over lengths, and {_number(largest)} at {at}"
    return f"With differences {spread}, to see by the corrected test a difference of {'; '.join(parts)}."


def _parts(rows: pd.DataFrame) -> str:
    names = ["variance_seeds", "variance_examples", "variance_rest"]
    total = rows[names].sum(axis=1).to_numpy()
    row, whole = rows.iloc[int(np.argmax(total))], total.max()
    if whole == 0:
        return "By example: no two runs differ on any."
    seeds, examples, rest = (100 * row[name] / whole for name in names)
    more = "more seeds would narrow it, more examples hardly" if seeds > 50 else "more examples would narrow it too"
    return (
        f"By example: of the variance of the mean difference at {int(row['length'])}, where it is largest, "
        f"{seeds:.0f} % is from seeds, {examples:.0f} % from examples and {rest:.0f} % from what they do together: "
        f"{more}. An interval over examples alone would be of one pair of models, and is not given."
    )


def comparison_text(found: Comparison, width: int = 110) -> str:
    """For a terminal."""
    lines = [
        textwrap.fill(f"- {line}", width, subsequent_indent="  ", break_on_hyphens=False)
        for line in [*conclusions(found), *found.notes]
    ]
    return "\n".join([heading(found), subject(found), "", readable(found).to_string(index=False), "", *lines])


def comparison_markdown(found: Comparison) -> str:
    """As a Markdown page."""
    table = readable(found, times="×").to_markdown(index=False, disable_numparse=True, stralign="right")
    blocks = [f"# {heading(found)}", f"{subject(found)}.", table]
    blocks.append("\n".join(f"- {line}" for line in [*conclusions(found), *found.notes]))
    return "\n\n".join(blocks) + "\n"


def write_comparison(found: Comparison, out: Path) -> list[Path]:
    """Write OUT/TASK-A-B-METRIC.md, the table of lengths as .csv and that of pairs as -pairs.csv.

    The same runs give the same bytes.
    """
    [stem] = file_stems([f"{found.task}-{found.a}-{found.b}-{found.metric}"]).values()
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{stem}.md", out / f"{stem}.csv", out / f"{stem}-pairs.csv"]
    paths[0].write_text(comparison_markdown(found), encoding="utf-8", newline="\n")
    for path, frame in zip(paths[1:], (found.lengths, found.pairs), strict=True):
        frame.to_csv(path, index=False, lineterminator="\n")
    return paths


def _lengths(rows: pd.DataFrame) -> str:
    *first, last = (str(length) for length in rows["length"])
    return f"{', '.join(first)} and {last}" if first else last


def _number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or value >= 0.001 else f"{value:.1g}"


def _signed(value: float) -> str:
    return f"{value:+.3f}"


def _intervals(lows: pd.Series, highs: pd.Series) -> list[str]:
    return [
        "" if np.isnan(low) else f"{_signed(low)} to {_signed(high)}" for low, high in zip(lows, highs, strict=True)
    ]


def _p(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2g}"
