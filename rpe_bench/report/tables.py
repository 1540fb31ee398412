"""Tables: tidy ones for the next program, wide ones for a reader."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rpe_bench.report.left_out import left_out
from rpe_bench.report.load import STATUSES, Results, in_order
from rpe_bench.report.published import grouped_positions
from rpe_bench.report.statistics import (
    HOLDS,
    LINE,
    POINT,
    areas,
    effective_lengths,
    over_seeds,
    over_seeds_effective,
    over_tasks,
    token_means,
)

THRESHOLD = HOLDS
"""Exact match that counts as still holding in the effective length."""


def accuracy_table(results: Results) -> pd.DataFrame:
    """One row for each task, encoding, split and length: statistics of token accuracy and exact match over seeds.

    Columns: task_label, encoding_label, length, ratio, split, n, token_accuracy_{mean,min,max,low,high,iqm,iqm_low,
    iqm_high}, the same of exact_match, chance, majority. low and high bound the 95 % interval of the mean, missing with
    one seed; `coverage.coverage_line` says how often such intervals hold it.
    """
    by = (*POINT, "split")
    measures = []
    for metric in ("token_accuracy", "exact_match"):
        summary = over_seeds(results.evaluations, metric, by, np.random.default_rng(0)).set_index([*by, "n"])
        measures.append(summary.add_prefix(f"{metric}_"))
    table = pd.concat(measures, axis="columns").reset_index()
    on = ["task_label", "length", "ratio"]
    return table.merge(baseline_table(results), on=on, how="left", validate="many_to_one")


def baseline_table(results: Results) -> pd.DataFrame:
    """Chance and majority of each task and length: task_label, length, ratio, chance, majority.

    The runs behind one task label are scored on the same examples, so that any of them says the same.
    """
    by = ["task_label", "length", "ratio"]
    return results.baselines.groupby(by, sort=True)[["chance", "majority"]].first().reset_index()


def effective_table(results: Results) -> pd.DataFrame:
    """`statistics.over_seeds_effective` at the threshold of 0.9."""
    return over_seeds_effective(results.evaluations, THRESHOLD, np.random.default_rng(0))


def leaderboard(results: Results) -> pd.DataFrame:
    """One row an encoding, over the tasks that some run holds at its training length, of those that were evaluated
    beyond it; the best area first.

    Columns: encoding_label, tasks, runs, area_{mean,low,high}, the area under exact match over log length beyond the
    training length, and effective_ratio_{mean,low,high}, how far exact match holds in training lengths; both as
    `statistics.over_tasks` has them. Of an encoding with fewer tasks than another, the numbers say something else.
    """
    numbers = ["mean", "low", "high"]
    measures = []
    for name, scores in leaderboard_scores(results).items():
        found = over_tasks(scores, name).set_index(["encoding_label", "tasks", "runs"])[numbers]
        measures.append(found.add_prefix(f"{name}_"))
    table = measures[1].join(measures[0]).reset_index()
    columns = ["encoding_label", "tasks", "runs", *measures[0].columns, *measures[1].columns]
    return table[columns].sort_values(
        ["tasks", "area_mean", "encoding_label"], ascending=[False, False, True], ignore_index=True
    )


def leaderboard_scores(results: Results) -> dict[str, pd.DataFrame]:
    """`statistics.areas` and `statistics.effective_lengths` of the tasks that a `leaderboard` is over, by the column
    that counts in them."""
    lengths = effective_lengths(results.evaluations)
    best = lengths.groupby("task_label")["effective_length"].transform("max")
    lengths = lengths[best > 0]
    surfaces = areas(results.evaluations)
    surfaces = surfaces[surfaces["task_label"].isin(lengths["task_label"])]
    # Of a single length there is no area, and both numbers of a row are over the same runs.
    lengths = lengths[lengths["task_label"].isin(surfaces["task_label"])]
    return {"area": surfaces, "effective_ratio": lengths}


def position_bins(results: Results) -> pd.DataFrame:
    """Every seed's scores at the longest length of its task, by where they stand beside what was trained on.

    Bins of token positions go up to 0.5, 1, 1.5, 2, 4, 8 ... times the longest sequence trained on, and to the end; one
    that would cut a group of `published.grouped_positions` goes on to its end. Columns: LINE, seed, train_tokens,
    length, from, to (the first position that is not of the bin), tokens, loss, perplexity, accuracy: means over the
    tokens of the bin.
    """
    rows = grouped_positions(results.positions)
    longest = rows.groupby(list(LINE))["length"].transform("max")
    rows = rows[rows["length"] == longest].reset_index(drop=True)
    start, stop = np.empty((2, len(rows)), dtype="int64")
    # All runs of a task are scored at the same positions.
    alike: Any = rows.groupby(["task_label", "train_tokens", "length"]).indices
    for (_, trained, _), index in alike.items():
        groups = rows.loc[index, ["position", "to"]].drop_duplicates()
        edges = _bin_edges(groups, int(trained))
        place = np.searchsorted(edges, rows["position"].to_numpy()[index], side="right")
        start[index], stop[index] = edges[place - 1], edges[place]
    by = [*LINE, "seed", "train_tokens", "length", "from", "to"]
    found = token_means(rows.assign(**{"from": start, "to": stop}), by, ("loss", "accuracy"))
    with np.errstate(over="ignore"):  # of a model that is certain and wrong
        found.insert(len(by) + 2, "perplexity", np.exp(found["loss"]))
    return found


def _bin_edges(groups: pd.DataFrame, trained: int) -> np.ndarray:
    """Where bins of positions begin, and the last one ends; groups: position and to of each group of neighbours."""
    end = int(groups["to"].max())
    doublings = 2 ** np.arange(1, max(2, math.ceil(math.log2(max(end / trained, 2)))))
    edges = [0, *(round(trained * multiple) for multiple in (0.5, 1, 1.5, *doublings)), end]
    cut = [groups.loc[(groups["position"] < edge) & (edge < groups["to"]), "to"].max() for edge in edges]
    edges = [edge if np.isnan(stop) else int(stop) for edge, stop in zip(edges, cut, strict=True)]
    return np.array(sorted({edge for edge in edges if edge <= end}))


def wide_tables(results: Results, times: str = "x") -> dict[str, pd.DataFrame]:
    """For each task label a table of text for a reader: token accuracy, rows of encodings, columns of ratios.

    The columns are `0.5x` and so on (times: what stands behind the number), `training set` for a task that has one, and
    `seeds`; the last two rows are chance and majority.
    """
    table = accuracy_table(results)
    wide = {}
    for task in results.task_labels:
        rows = table[table["task_label"] == task]
        ratios = sorted(rows["ratio"].unique())
        columns = {f"{ratio:.4g}{times}": rows[rows["ratio"] == ratio] for ratio in ratios}
        cells = {name: _cells(part, "token_accuracy_mean") for name, part in columns.items()}
        trained = results.training_set[results.training_set["task_label"] == task]
        if len(trained):
            cells["training set"] = _cells(over_seeds(trained, "token_accuracy"), "mean")
        encodings = in_order(rows["encoding_label"])
        frame = pd.DataFrame(cells, index=encodings)
        seeds = rows.groupby("encoding_label")["n"].max()
        frame["seeds"] = [str(seeds[encoding]) for encoding in encodings]
        for baseline in ("chance", "majority"):
            frame.loc[baseline] = {name: f"{part[baseline].iloc[0]:.3f}" for name, part in columns.items()}
        wide[task] = frame.fillna("")
    return wide


def _cells(rows: pd.DataFrame, column: str) -> pd.Series:
    return rows.set_index("encoding_label")[column].map("{:.3f}".format)


def trained_up_to(rows: pd.DataFrame) -> str:
    """`trained up to 16`; with several training lengths, all of them."""
    lengths = sorted(rows["train_length"].unique())
    return f"trained up to {' and '.join(str(length) for length in lengths)}"


def count_seeds(rows: pd.DataFrame) -> str:
    """`3 seeds`, or `1 to 3 seeds` where the lines among the rows have different numbers of them."""
    counts = rows.groupby(list(LINE))["seed"].nunique()
    fewest, most = counts.min(), counts.max()
    return f"{'' if fewest == most else f'{fewest} to '}{most} seed{'s' if most > 1 else ''}"


def task_caption(results: Results, task: str) -> str:
    """What the numbers of a task's table are, in a line."""
    rows = results.evaluations[results.evaluations["task_label"] == task]
    seeds = count_seeds(rows)
    return f"{trained_up_to(rows)}, {seeds if seeds == '1 seed' else f'mean of {seeds}'}"


def text_tables(results: Results, width: int = 100) -> str:
    """The wide tables for a terminal, and what was left out of them.

    Where a table is wider than `width`, lengths that are no power of two times the training length are left out.
    """
    blocks = []
    for task, frame in wide_tables(results).items():
        shown = frame
        if max(map(len, frame.to_string().splitlines())) > width:
            powers = [
                name for name in map(str, frame) if not name.endswith("x") or math.log2(float(name[:-1])) % 1 == 0
            ]
            shown = frame[powers]
        left_out = "" if len(shown.columns) == len(frame.columns) else "; other lengths: tables/accuracy.md"
        blocks.append(
            f"{task}: token accuracy by length / training length ({task_caption(results, task)}{left_out})\n"
            + shown.to_string()
        )
    return "\n\n".join([*blocks, "\n".join(notes(results))])


def notes(results: Results, named: int = 20) -> list[str]:
    """How many runs there are of each status; those that are in no average; and what one name is several configurations
    of, of which it names the first few."""
    counts = results.runs["status"].value_counts()
    missing = int(counts.get("missing", 0))
    total = len(results.runs) - missing
    present = [f"{counts[status]} {status}" for status in STATUSES if status in counts and status != "missing"]
    lines = [f"{total} run director{'ies' if total != 1 else 'y'}: {', '.join(present) or 'none to read'}"]
    if missing:
        lines[0] += f"; {missing} more {'is' if missing == 1 else 'are'} missing"
    lines += left_out(results.runs, ", in tables/runs.csv")
    return [*lines, *_kept_apart(results.task_labels, named), *_kept_apart(results.encoding_labels, named)]


def _kept_apart(labels: Sequence[str], named: int) -> list[str]:
    """`rope: 2 configurations, kept apart: rope, rope (base=500000)`, for each name that is several."""
    by_name: dict[str, list[str]] = {}
    for label in labels:
        by_name.setdefault(label.partition(" (")[0], []).append(label)
    return [
        f"{name}: {len(of_name)} configurations, kept apart: "
        + ", ".join([*of_name[:named], *([f"{len(of_name) - named} more"] if len(of_name) > named else [])])
        for name, of_name in by_name.items()
        if len(of_name) > 1
    ]
