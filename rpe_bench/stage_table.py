"""Finished runs that began with others, side by side: a tidy table by part of the sequence, and what a terminal shows.

Everything is read from run directories.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from rpe_bench.errors import ConfigError
from rpe_bench.files import write_text
from rpe_bench.means import token_mean
from rpe_bench.report.statistics import over_seeds
from rpe_bench.stages import BEFORE, Step

WHOLE = "whole"
"""The part of a row that is of all scored tokens of a length."""
COLUMNS = (
    *("source", "seed", "what", "stage", "run", "length"),
    *("part", "lo", "hi", "tokens", "loss", "perplexity", "accuracy"),
)


@dataclass(frozen=True)
class Entry(Step):
    """A finished run of a comparison."""

    what: str
    """Is compared: a scaling, or an encoding."""


@dataclass(frozen=True)
class Part:
    """Positions of a sequence in tokens, from `lo` to one less than `hi`."""

    name: str
    lo: int
    hi: int


def parts_of(trained: int, longest: int) -> list[Part]:
    """Halves of the tokens trained on, and quarters of the longest sequence, whose bounds are rounded down."""
    cuts = {"trained half": [trained * n // 2 for n in range(3)], "quarter": [longest * n // 4 for n in range(5)]}
    return [
        Part(f"{name} {n + 1}", lo, hi)
        for name, bounds in cuts.items()
        for n, (lo, hi) in enumerate(zip(bounds, bounds[1:], strict=False))
    ]


def tidy(entries: Sequence[Entry], what: str) -> pd.DataFrame:
    """One row for each run, length evaluated and part of the sequence, of those parts that lie within the length.

    Args:
        what: the name of the column of `Entry.what`.

    Returns:
        source (its run id), seed, `what`, stage, run, length (a size of the task), part, lo, hi (positions in tokens,
        hi not among them), tokens (scored), loss (their mean, in nats), perplexity, accuracy. Of a part in which
        nothing is scored there is no row, nor of any but the whole where a task has no scores by position. Of what was
        before, those lengths alone that others are evaluated at too.
    """
    lengths = {length for entry in entries if entry.stage != BEFORE for length in entry.config.evaluation.lengths or ()}
    rows = []
    for entry in entries:
        config = entry.config
        task = config.build_task()
        longest = task.length(max(lengths))
        about = {"source": entry.source.config.run_id, "seed": config.seed, "what": entry.what, "stage": entry.stage}
        evaluations = pd.read_csv(entry.directory / "eval.csv")
        positions = pd.read_csv(entry.directory / "positions.csv")
        for row in evaluations[evaluations["length"].isin(lengths)].to_dict("records"):
            tokens = task.length(row["length"])
            common = {**about, "run": config.run_id, "length": row["length"]}
            rows.append(
                {**common, "part": WHOLE, "lo": 0, "hi": tokens, "tokens": row["tokens"]}
                | {"loss": row["loss"], "perplexity": row["perplexity"], "accuracy": row["token_accuracy"]}
            )
            scored = positions[positions["length"] == row["length"]]
            for part in parts_of(entry.source.config.train_tokens, longest):
                within = scored[(scored["position"] >= part.lo) & (scored["position"] < part.hi)]
                if part.hi > tokens or within.empty:
                    continue
                weights = within["tokens"].to_numpy()
                loss = token_mean(within["loss"], weights)
                rows.append(
                    {**common, "part": part.name, "lo": part.lo, "hi": part.hi, "tokens": weights.sum(), "loss": loss}
                    | {"perplexity": float(np.exp(loss)), "accuracy": token_mean(within["accuracy"], weights)}
                )
    return pd.DataFrame(rows, columns=COLUMNS).rename(columns={"what": what})


def text(rows: pd.DataFrame, what: str) -> str:
    """The mean loss over seeds by length, and by part of the longest, for a terminal; with intervals where they are."""
    order = {pair: n for n, pair in enumerate(dict.fromkeys(zip(rows[what], rows["stage"], strict=True)))}
    longest = rows["length"].max()
    whole = rows[rows["part"] == WHOLE]
    blocks = [("mean loss in nats by length", whole.assign(column=whole["length"].astype(str)))]
    parts = rows[(rows["length"] == longest) & (rows["part"] != WHOLE)]
    if len(parts):
        columns = [f"{lo}-{hi}" for lo, hi in zip(parts["lo"], parts["hi"], strict=True)]
        blocks.append((f"the same at length {longest}, by position", parts.assign(column=columns)))
    seeds = rows["seed"].nunique()
    counted = f"{seeds} seed{'s: mean [95 % interval]' if seeds > 1 else ''}"
    shown = []
    for title, frame in blocks:
        frame = frame.drop_duplicates([what, "stage", "seed", "column"])  # a half may be a quarter
        summary = over_seeds(frame, "loss", (what, "stage", "column"), np.random.default_rng(0))
        values = summary[["mean", "low", "high", "n"]].to_numpy()
        cells = [_cell(mean, low, high, int(n), seeds) for mean, low, high, n in values]
        table = summary.assign(cell=cells).pivot(index=[what, "stage"], columns="column", values="cell").fillna("")
        wanted = list(dict.fromkeys(frame["column"]))
        table = table.loc[sorted(table.index, key=order.__getitem__), wanted]
        table.columns.name = None
        shown.append(f"{title} ({counted})\n{table.reset_index().to_string(index=False)}")
    return "\n\n".join(shown)


def _cell(mean: float, low: float, high: float, n: int, seeds: int) -> str:
    cell = f"{mean:.3f}" if math.isnan(low) else f"{mean:.3f} [{low:.3f}, {high:.3f}]"
    return cell if n == seeds else f"{cell} n={n}"


def publish(entries: Sequence[Entry], what: str, out: Path | None, folder: str) -> None:
    """Write the tidy table, whole or not at all, and print what a terminal shows.

    Args:
        out: the file; by default one in `folder` of the results directory, the same for the same request, and no
            other's.

    Raises:
        ConfigError: it cannot be written there.
    """
    rows = tidy(entries, what)
    if out is None:
        ids = sorted(entry.config.run_id for entry in entries)
        digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:8]
        out = entries[-1].config.results_dir / folder / f"{entries[0].source.config.line}-{digest}.csv"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, rows.to_csv(index=False, lineterminator="\n"))
    except OSError as error:
        raise ConfigError(f"--out={out}: {error.strerror}") from error
    print(text(rows, what), "", out, sep="\n")
