"""One page to explore the runs of a results directory: a single HTML file that asks nothing of any network.

The page is `page/page.html` with `page/*.css`, `page/*.js` and the data inlined. All statistics are computed here, by
`rpe_bench.report.statistics`; the page only chooses, draws and sorts. What it gets is one JSON object:

    title, digits     of the directory; significant digits of the numbers below
    encodings         label, colour, dashes, marker of each, in order, as in the figures
    looks             the same of anything else that is numbered, such as the heads of a run
    tasks             label, train_length, train_tokens; and of each of GRIDS its cells, a list a column
    lines             one a task and encoding: which (`task`, `encoding`, by number), `runs` behind it (by number),
                      effective length, cost, and over its seeds `n`, mean, interval and range in each cell of a grid
    runs              a list a column of the table of runs: all directories, whatever they are
    configs           dotted key -> what it is in each run
    scores            of each run in the order of `runs`: its value in each cell of a grid, its curve of training, what
                      it scored on its training set, and the attention of its heads; null for a run without scores
    left_out          sentences on what single runs lack on a page of so many; what is over seeds is of all of them

A column that says the same again and again is coded: {"values": [...], "of": [0, 0, 1, ...]}, with -1 for none, and
without `of` where all are the one value. Numbers that are not finite are null.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rpe_bench.means import token_mean
from rpe_bench.report.figures import styles
from rpe_bench.report.load import STATUSES, Results
from rpe_bench.report.statistics import LINE, effective_lengths, over_seeds, token_means
from rpe_bench.report.tables import THRESHOLD, baseline_table, effective_table
from rpe_bench.schema import TABLES

DIGITS = 6
"""Significant digits of numbers on the page; FINE of those there are thousands of, which are only drawn."""

FINE = 4

POSITION_VALUES = 320_000
"""Numbers by position that a page holds of all runs together, at most: what sets how many positions share a bin."""

BINS = range(24, 65)
"""How many bins of positions there can be at one length."""

ATTENTION_VALUES = 160_000
"""The same of attention by distance, and of its kernels."""

DISTANCES = range(8, 49)
"""How many bins of distances a head can have."""

SHARES = 10
"""Bins of a slice's value as a share of the greatest at its length."""

CURVES = 240_000
"""The same of curves of training."""

CURVE = range(12, 121)
"""How many points one can have."""

METRICS = ("token_accuracy", "exact_match", "loss")
"""Perplexity follows from the loss: its mean over seeds is a geometric one."""

_PARTS = files("rpe_bench.report").joinpath("page")
_SCRIPTS = ("data.js", "format.js", "chart.js", "panels.js", "runs.js", "main.js")

_RUN_COLUMNS = (
    *("directory", "status", "reason", "task", "task_label", "encoding", "encoding_label", "seed", "recipe", "model"),
    *("train_length", "train_tokens", "max_tokens", "parameters", "encoding_parameters", "train_seconds", "seconds"),
    *("tokens_per_second", "device", "threads", "started", "commit", "dirty"),
)


def write_dashboard(results: Results, results_dir: str | Path, path: Path) -> Path:
    """Write the page of a results directory. The same runs give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(dashboard_data(results, results_dir)), encoding="utf-8", newline="\n")
    return path


def page(data: Mapping[str, Any], version: str = "") -> str:
    """The page as text. version: of data that a server keeps current; the page then asks it for newer ones."""
    style = _part("style.css")
    script = "\n".join(_part(name) for name in _SCRIPTS)
    # What a run says in its config or its error is text and stays so: nothing runs but this very script.
    allowed = {"default": "none", "script": _digest(script), "style": _digest(style)}
    allowed["connect"] = "self" if version else "none"
    sources = [f"{kind}-src '{what}'" for kind, what in allowed.items()]
    policy = "; ".join([*sources, "img-src data:", "base-uri 'none'"])
    parts = {
        "POLICY": policy,
        "TITLE": _escaped(f"{data['title']} · rpe_bench"),
        "VERSION": version,
        "STYLE": style,
        "SCRIPT": script,
        "DATA": as_json(data).replace("<", "\\u003c"),
    }
    return re.sub(f"@({'|'.join(parts)})@", lambda match: parts[match[1]], _part("page.html"))


def as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _part(name: str) -> str:
    return _PARTS.joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def dashboard_data(results: Results, results_dir: str | Path) -> dict[str, Any]:
    """What the page is told of the runs of a directory, as described above."""
    root = Path(results_dir) / "runs"
    runs = results.runs.reset_index(drop=True)
    numbers = _run_numbers(runs)
    grids = _grids(results, numbers)
    tasks, encodings = results.task_labels, results.encoding_labels
    seeds = _seeds_by_position(numbers, grids["positions"])
    points = _curve_points(runs)
    return {
        "title": Path(results_dir).resolve().name,
        "digits": DIGITS,
        "threshold": THRESHOLD,
        "statuses": list(STATUSES),
        "encodings": _looks(encodings),
        "looks": _looks([str(number) for number in range(12)]),
        "tasks": [_task(results, label, grids) for label in tasks],
        "lines": _lines(results, runs, numbers, grids),
        "runs": _runs(results, runs, numbers),
        "configs": _configs([results.configs.get(directory, {}) for directory in runs["directory"]]),
        "scores": _scores(results, runs, numbers, grids, root, seeds, points),
        "left_out": _left_out(numbers, seeds, points),
    }


def _looks(labels: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"label": label, "colour": look.colour, "dashes": list(look.dashes[1]), "marker": look.marker}
        for label, look in styles(labels).items()
    ]


# Cells: what a task was measured at, and the values there


@dataclass(frozen=True)
class _Grid:
    """Values of one table by the cells that all runs of a task share, such as its lengths.

    cells: task_label, cell (its number within the task), and the columns that say what it is
    runs:  run (its number), cell, and a column a value
    lines: LINE, cell, and for each value over_seeds of it, its columns named VALUE_mean and so on, with n
    digits: significant ones
    """

    cells: pd.DataFrame
    runs: pd.DataFrame
    lines: pd.DataFrame
    values: tuple[str, ...]
    digits: int


def _grid(
    rows: pd.DataFrame, by: Sequence[str], values: Sequence[str], digits: int, with_intervals: bool = False
) -> _Grid:
    """rows: LINE, seed, run, `by` and values, one row for each run and cell; others of `by` follow from the first."""
    about = ["task_label", *by]
    cells = rows[about].drop_duplicates().sort_values(about, ignore_index=True)
    cells["cell"] = cells.groupby("task_label").cumcount()
    rows = rows.merge(cells, on=about)
    key = [*LINE, "cell"]
    summaries = []
    for value in values:
        rng = np.random.default_rng(0) if with_intervals else None
        summaries.append(over_seeds(rows, value, key, rng, middle=False).set_index([*key, "n"]).add_prefix(f"{value}_"))
    lines = pd.concat(summaries, axis="columns").reset_index()
    return _Grid(cells, rows[["run", "cell", *values]], lines, tuple(values), digits)


def _grids(results: Results, numbers: pd.DataFrame) -> dict[str, _Grid]:
    """lengths: the rows of eval.csv; positions: those of positions.csv, in bins; slices: those of slices.csv, in bins
    of the value, and of it as a share of the greatest at each length, which is the depth of what is to be found."""
    evaluations = results.evaluations.merge(numbers, on=[*LINE, "seed"])
    grids = {"lengths": _grid(evaluations, ("length", "ratio"), METRICS, DIGITS, with_intervals=True)}
    positions = _in_position_bins(results.positions).merge(numbers, on=[*LINE, "seed"])
    grids["positions"] = _grid(positions, ("length", "start", "stop"), ("loss", "accuracy"), FINE)
    for name, binned in (("slices", _in_value_bins), ("shares", _in_share_bins)):
        rows = binned(results.slices).merge(numbers, on=[*LINE, "seed"])
        grids[name] = _grid(rows, ("slice", "length", "start", "stop"), ("accuracy", "loss"), FINE)
    return grids


def _in_position_bins(positions: pd.DataFrame) -> pd.DataFrame:
    """Loss and accuracy in bins of token positions, from `start` to `stop`, which is the last one.

    Where a length has few enough positions, each is a bin. Where the longest training sequence ends, a bin ends too.
    """
    runs = positions[[*LINE, "seed", "length"]].drop_duplicates()
    bins = max(BINS[0], min(BINS[-1], POSITION_VALUES // max(1, 2 * len(runs))))
    start, stop = np.zeros(len(positions), dtype="int64"), np.zeros(len(positions), dtype="int64")
    for _, index in positions.groupby(["task_label", "length"]).indices.items():
        there = positions["position"].to_numpy()[index]
        distinct = np.unique(there)
        starts = distinct
        if len(distinct) > bins:
            trained = int(positions["train_tokens"].to_numpy()[index].max())
            starts = distinct[np.linspace(0, len(distinct), bins, endpoint=False).astype(int)]
            starts = np.union1d(starts, distinct[distinct >= trained][:1])
        place = np.searchsorted(starts, there, side="right") - 1
        last = np.append(distinct[np.searchsorted(distinct, starts[1:]) - 1], distinct[-1])
        start[index], stop[index] = starts[place], last[place]
    rows = positions.assign(start=start, stop=stop)
    return token_means(rows, [*LINE, "seed", "length", "start", "stop"], ("loss", "accuracy"))


def _in_value_bins(slices: pd.DataFrame) -> pd.DataFrame:
    """Bins of a slice's value, of any size: each up to 4 by itself, and two for each doubling from there."""
    edges = np.unique(np.concatenate([np.arange(-4, 5), *(np.array([4, 6]) * 2**octave for octave in range(40))]))
    place = np.searchsorted(edges, slices["value"].to_numpy(), side="right") - 1
    start = np.where(place < 0, slices["value"], edges[place])
    stop = np.where(place < 0, slices["value"], edges[np.minimum(place + 1, len(edges) - 1)] - 1)
    rows = slices.assign(start=start, stop=np.maximum(start, stop))
    return token_means(rows, [*LINE, "seed", "slice", "length", "start", "stop"], ("loss", "accuracy"))


def _in_share_bins(slices: pd.DataFrame) -> pd.DataFrame:
    """Bins of a slice's value as a share of the greatest at its length, in percent."""
    # All runs of a task are scored on the same examples, and so at the same values.
    greatest = slices.groupby(["task_label", "slice", "length"])["value"].transform("max").clip(lower=1)
    place = np.ceil(SHARES * slices["value"] / greatest).clip(1, SHARES).astype("int64") - 1
    width = 100 // SHARES
    rows = slices.assign(start=place * width, stop=(place + 1) * width)
    return token_means(rows, [*LINE, "seed", "slice", "length", "start", "stop"], ("loss", "accuracy"))


# The parts of the data


def _run_numbers(runs: pd.DataFrame) -> pd.DataFrame:
    """LINE, seed and run, the row of the table of runs: of finished ones, where the first three say which it is."""
    finished = runs[runs["status"] == "finished"]
    numbers = finished[[*LINE, "seed"]].assign(run=finished.index)
    return numbers.astype({"seed": "int64", "run": "int64"})


def _task(results: Results, label: str, grids: Mapping[str, _Grid]) -> dict[str, Any]:
    rows = results.evaluations[results.evaluations["task_label"] == label]
    task: dict[str, Any] = {
        "label": label,
        "train_length": int(rows["train_length"].max()),
        "train_tokens": int(rows["train_tokens"].max()),
    }
    for name, grid in grids.items():
        cells = grid.cells[grid.cells["task_label"] == label]
        columns = [column for column in cells if column not in ("task_label", "cell")]
        task[name] = {column: _column(cells[column]) for column in columns}
    baselines = baseline_table(results)
    baselines = baselines[baselines["task_label"] == label].set_index("length")
    lengths = grids["lengths"].cells.query("task_label == @label")["length"]
    for name in ("chance", "majority"):
        task["lengths"][name] = _column(lengths.map(baselines[name]))
    floor = results.floor[results.floor["task_label"] == label].groupby("length")["loss"].first()
    if len(floor):
        task["lengths"]["floor"] = _column(lengths.map(floor))
        task["positions"]["floor"] = _floor_by_position(results, label, grids["positions"])
    return task


def _floor_by_position(results: Results, label: str, grid: _Grid) -> list[float | None]:
    """The ideal predictor's mean loss in each bin of positions: that of the examples, which runs of a task share."""
    rows = results.floor_positions[results.floor_positions["task_label"] == label]
    rows = rows.drop_duplicates(["length", "position"])
    found = []
    cells = grid.cells[grid.cells["task_label"] == label]
    for length, start, stop in cells[["length", "start", "stop"]].to_numpy():
        part = rows[(rows["length"] == length) & rows["position"].between(start, stop)]
        found.append(token_mean(part["loss"], part["tokens"]) if len(part) else math.nan)
    return _numbers(found, FINE)


def _lines(
    results: Results, runs: pd.DataFrame, numbers: pd.DataFrame, grids: Mapping[str, _Grid]
) -> list[dict[str, Any]]:
    tasks = {label: number for number, label in enumerate(results.task_labels)}
    encodings = {label: number for number, label in enumerate(results.encoding_labels)}
    effective = effective_table(results).set_index(list(LINE))[["mean", "min", "max", "at_limit"]].to_dict()
    of_line = numbers.sort_values("seed").groupby(list(LINE))["run"].agg(list).to_dict()
    costs = {name: _cost(runs, numbers, name) for name in ("train_seconds", "parameters")}
    by_line = {name: dict(list(grid.lines.groupby(list(LINE), sort=True))) for name, grid in grids.items()}
    sizes = {name: grid.cells.groupby("task_label").size() for name, grid in grids.items()}
    lines = []
    for task, encoding in numbers[list(LINE)].drop_duplicates().itertuples(index=False):
        key = (task, encoding)
        # Where nothing was evaluated at the training length or beyond, there is none.
        held = {name: _number(of_all.get(key, math.nan)) for name, of_all in effective.items()}
        line: dict[str, Any] = {
            "task": tasks[task],
            "encoding": encodings[encoding],
            "runs": of_line[key],
            "effective": held,
            "cost": {name: cost.get(key) for name, cost in costs.items()},
        }
        for name, grid in grids.items():
            if key in by_line[name]:
                line[name] = _summary(by_line[name][key], int(sizes[name][task]), grid)
        lines.append(line)
    return sorted(lines, key=lambda line: (line["task"], line["encoding"]))


def _summary(rows: pd.DataFrame, size: int, grid: _Grid) -> dict[str, Any]:
    """n in each cell, or once where it is the same in all, and for each value its mean; then low, high, min and max, as
    far as they say more than the mean."""
    cells = rows["cell"].to_numpy()

    def placed(column: str, digits: int) -> list[float | None]:
        values = np.full(size, np.nan)
        values[cells] = rows[column].to_numpy(dtype=float)
        return _numbers(values, digits)

    counts = placed("n", DIGITS)
    summary: dict[str, Any] = {"n": counts[0] if len(set(counts)) == 1 else counts}
    kinds = [kind for kind in ("low", "high", "min", "max") if f"{grid.values[0]}_{kind}" in rows]
    for value in grid.values:
        summary[value] = {"mean": placed(f"{value}_mean", grid.digits)}
        if rows["n"].max() > 1:
            summary[value] |= {kind: placed(f"{value}_{kind}", grid.digits) for kind in kinds}
    return summary


def _cost(runs: pd.DataFrame, numbers: pd.DataFrame, name: str) -> dict[object, dict[str, float | None]]:
    """Mean and range over seeds of what the runs of each line took; not of a line where one run doesn't say."""
    values = pd.to_numeric(runs[name], errors="coerce").astype(float)
    rows = numbers.assign(**{name: values.loc[numbers["run"]].to_numpy()})
    found = over_seeds(rows, name, LINE).dropna(subset="mean").set_index(list(LINE))
    return {key: {kind: _number(row[kind]) for kind in ("mean", "min", "max")} for key, row in found.iterrows()}


def _runs(results: Results, runs: pd.DataFrame, numbers: pd.DataFrame) -> dict[str, Any]:
    columns: dict[str, Any] = {name: _column(runs[name]) for name in _RUN_COLUMNS}
    effective = effective_lengths(results.evaluations, THRESHOLD).merge(numbers, on=[*LINE, "seed"]).set_index("run")
    for name in ("effective_length", "at_limit"):
        columns[name] = _column(effective[name].reindex(runs.index))
    return columns


def _configs(configs: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Key -> coded column, less the folder that the runs were written to, which says nothing elsewhere."""
    keys = sorted({key for config in configs for key in config} - {"results_dir"})
    return {key: _coded([config.get(key) for config in configs]) for key in keys}


def _seeds_by_position(numbers: pd.DataFrame, grid: _Grid) -> int:
    """Of how many seeds of each line, the lowest ones, a page has the scores of single runs by position: of all where
    there is room, and of one at least."""
    cells = numbers["task_label"].map(grid.cells.groupby("task_label").size()).fillna(0)
    rank = numbers.sort_values("seed").groupby(list(LINE)).cumcount()
    values = (len(grid.values) * cells).groupby(rank).sum().cumsum()
    # Every length may have one bin more than BINS says, where training ended.
    return max(1, int((values <= POSITION_VALUES * (BINS[0] + 1) / BINS[0]).sum()))


def _curve_points(runs: pd.DataFrame) -> int:
    return max(CURVE[0], min(CURVE[-1], CURVES // max(1, 2 * len(runs))))


def _left_out(numbers: pd.DataFrame, seeds: int, points: int) -> list[str]:
    most = int(numbers.groupby(list(LINE)).size().max()) if len(numbers) else 0
    found = []
    if seeds < most:
        which = "the lowest seed" if seeds == 1 else f"the {seeds} lowest seeds"
        found.append(f"Scores of single runs by position are on this page for {which} of each line, of up to {most}.")
    if points < CURVE[-1]:
        found.append(f"Curves of training have {points} points of each run.")
    return [*found, "Means and intervals are of all runs, and so is the table."] if found else []


def _scores(
    results: Results,
    runs: pd.DataFrame,
    numbers: pd.DataFrame,
    grids: Mapping[str, _Grid],
    root: Path,
    seeds: int,
    points: int,
) -> list[dict[str, Any] | None]:
    scores: list[dict[str, Any]] = [{} for _ in range(len(runs))]
    tasks = dict(zip(numbers["run"], numbers["task_label"], strict=True))
    rank = numbers.sort_values("seed").groupby(list(LINE)).cumcount()
    few = set(numbers.loc[rank < seeds, "run"])
    for name in ("lengths", "positions"):
        grid = grids[name]
        sizes = grid.cells.groupby("task_label").size().to_dict()
        for run, (cells, *columns) in _by_run(grid.runs, ["cell", *grid.values]):
            if name == "positions" and run not in few:
                continue
            values = np.full((len(columns), sizes[tasks[run]]), np.nan)
            values[:, cells.astype(int)] = columns
            scores[run][name] = {
                value: _numbers(row.tolist(), grid.digits) for value, row in zip(grid.values, values, strict=True)
            }
    tables = {"training": results.training, "training_set": results.training_set, "validation": results.validation}
    for name, frame in tables.items():
        wanted = [column for column in ("length", "step", *METRICS, "grad_norm") if column in frame]
        for run, columns in _by_run(frame.merge(numbers, on=[*LINE, "seed"]), wanted):
            rows = dict(zip(wanted, columns, strict=True))
            scores[run][name] = _training_set(rows) if name == "training_set" else _curve(rows, points)
    for run in np.flatnonzero(runs["status"].isin(["failed", "unfinished", "unreadable"])).tolist():
        curve = _unfinished_curve(root / runs["directory"][run], points)
        if curve is not None:
            scores[run]["training"] = curve
    for run, attention in _attention(root, runs, numbers).items():
        scores[run]["attention"] = attention
    return [score or None for score in scores]


def _by_run(rows: pd.DataFrame, columns: Sequence[str]) -> Iterable[tuple[int, list[np.ndarray]]]:
    """The number of each run and its part of some columns, in the order of the rows."""
    order = np.argsort(rows["run"].to_numpy(), kind="stable")
    numbers = rows["run"].to_numpy()[order]
    ends = np.flatnonzero(np.diff(numbers)) + 1
    parts = [np.split(rows[column].to_numpy()[order], ends) for column in columns]
    if len(numbers):
        yield from zip(numbers[[0, *ends]].tolist(), map(list, zip(*parts, strict=True)), strict=True)


def _curve(rows: Mapping[str, np.ndarray], points: int) -> dict[str, Any]:
    """At most so many rows, the last one among them."""
    steps = rows["step"]
    wanted = np.unique(np.linspace(0, len(steps) - 1, min(points, len(steps))).round().astype(int))
    steps = steps[wanted]
    curve: dict[str, Any] = {}
    if len(steps) > 2 and len(set(np.diff(steps).tolist())) == 1:
        curve["steps"] = {"from": int(steps[0]), "by": int(steps[1] - steps[0]), "count": len(steps)}
    else:
        curve["steps"] = steps.tolist()
    for name, digits in (("loss", DIGITS), ("grad_norm", FINE), ("exact_match", FINE)):
        if name in rows:
            curve[name] = _numbers(rows[name][wanted].tolist(), digits)
    return curve


def _training_set(rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: _numbers(rows[name].tolist(), DIGITS) for name in ("length", *METRICS)}


def _unfinished_curve(directory: Path, points: int) -> dict[str, Any] | None:
    """What train.csv says of a run that goes on, or failed; None where there is none, or it is not one that was written
    whole."""
    try:
        rows = pd.read_csv(directory / "train.csv", dtype=TABLES["train"])
    except (OSError, ValueError):
        return None  # its status and the reason are in the table of runs
    if not len(rows) or not set(TABLES["train"]) <= set(rows):
        return None
    return _curve({str(name): rows[name].to_numpy() for name in rows}, points)


# Attention of single runs


def _attention(root: Path, runs: pd.DataFrame, numbers: pd.DataFrame) -> dict[int, dict[str, Any]]:
    """Of the runs that `rpe-bench attention` has been asked for, by number.

    heads: the columns of attention.csv. by_distance: at the training length and the longest, `start` (of bins of
    distances) and for each layer and head the mean weight there. kernel: the same of offsets, at the longest length. Of
    tables that can't be read, `problem` says why.
    """
    found = {run: root / runs["directory"][run] / "attention" for run in numbers["run"]}
    found = {run: place for run, place in found.items() if (place / "attention.csv").is_file()}
    bins = max(DISTANCES[0], min(DISTANCES[-1], ATTENTION_VALUES // max(1, 3 * 8 * len(found))))
    attention: dict[int, dict[str, Any]] = {}
    for run, place in found.items():
        try:
            attention[run] = _of_heads(place, int(runs["train_length"][run]), bins)
        except (OSError, ValueError, KeyError) as error:  # of other columns, or of a file that is no table
            attention[run] = {"problem": f"attention/ cannot be read: {type(error).__name__}"}
    return attention


def _of_heads(place: Path, train_length: int, bins: int) -> dict[str, Any]:
    heads = pd.read_csv(place / "attention.csv")
    of_heads = heads[["length", "layer", "head", "distance_mean", "entropy_share", "unseen_share"]]
    attention: dict[str, Any] = {"heads": {name: _column(of_heads[name], FINE) for name in of_heads}}
    longest = int(heads["length"].max())
    within = int(heads["length"][heads["length"] <= train_length].max()) if train_length >= heads["length"].min() else 0
    if (place / "by_distance.csv").is_file():
        rows = pd.read_csv(place / "by_distance.csv")
        attention["by_distance"] = [
            {"length": length, **_binned_heads(rows[rows["length"] == length], "distance", "weight", bins)}
            for length in sorted({within or longest, longest})
        ]
    if (place / "kernel.csv").is_file():
        rows = pd.read_csv(place / "kernel.csv")
        if "offset" in rows:  # on a grid there are two
            rows = rows[rows["length"] == longest]
            attention["kernel"] = {"length": longest, **_binned_heads(rows, "offset", "kernel", bins)}
    return attention


def _binned_heads(rows: pd.DataFrame, x: str, value: str, bins: int) -> dict[str, Any]:
    """Means of a value in bins of x that grow with its magnitude: start and stop of each, and a list a head."""
    distinct = np.unique(rows[x].to_numpy())
    starts = distinct
    if len(distinct) > bins:
        # Evenly spaced in sign(x) log(1 + |x|): single offsets near 0, and wide bins far from it.
        scaled = np.sign(distinct) * np.log1p(np.abs(distinct))
        steps = np.linspace(scaled[0], scaled[-1], bins, endpoint=False)
        starts = distinct[np.unique(np.searchsorted(scaled, steps))]
    place = np.searchsorted(starts, rows[x].to_numpy(), side="right") - 1
    table = rows.assign(bin=place).pivot_table(index=["layer", "head"], columns="bin", values=value, aggfunc="mean")
    table = table.reindex(columns=range(len(starts)))
    stops = np.append(distinct[np.searchsorted(distinct, starts[1:]) - 1], distinct[-1])
    return {
        "start": starts.tolist(),
        "stop": stops.tolist(),
        "heads": [[int(layer), int(head)] for layer, head in table.index],
        "values": [_numbers(row, FINE) for row in table.to_numpy()],
    }


# Numbers and columns as JSON


def _numbers(values: Iterable[float], digits: int) -> list[float | None]:
    return [_number(value, digits) for value in values]


def _number(value: float, digits: int = DIGITS) -> float | None:
    """Rounded, whole ones without a point; None where it isn't finite."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(value) if value == int(value) else int(short) if short == int(short) else short


def _column(values: pd.Series, digits: int = DIGITS) -> Any:
    """A list, or a coded column where that is shorter."""
    if pd.api.types.is_float_dtype(values) or pd.api.types.is_integer_dtype(values):
        plain: list[Any] = [None if pd.isna(value) else _number(value, digits) for value in values]
        return plain
    plain = [None if value is None or value is pd.NA or value != value else value for value in values]
    plain = [_number(value, digits) if type(value) in (int, float) else value for value in plain]
    return _coded(plain) if len(set(map(str, plain))) <= len(plain) / 2 else plain


def _coded(values: Sequence[Any]) -> dict[str, Any]:
    distinct = list(dict.fromkeys(value for value in values if value is not None))
    codes = {value: code for code, value in enumerate(distinct)}
    if len(distinct) == 1 and None not in values:
        return {"values": distinct, "count": len(values)}
    return {"values": distinct, "of": [-1 if value is None else codes[value] for value in values]}
