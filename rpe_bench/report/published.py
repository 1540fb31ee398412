"""The tidy tables that a report's figures and other tables are made of, small enough to be kept under version control.

    runs.csv             every run directory, whatever became of it
    evaluations.csv      every finished run and length, as it recorded them; training_set.csv likewise
    positions.csv        loss and accuracy of every seed by position, in at most GROUPS groups a length
    training.csv         the loss of every seed in training, in at most GROUPS parts
    slices.csv           accuracy of every seed by distance, in bins
    baselines.csv, floor_positions.csv    what all runs of a task share

`write_tables` and `read_tables` are the inverse of each other for what `published` leaves of a `Results`. So the
figures of a published experiment can be made again, and checked, without its run directories. Means are rounded to
DIGITS significant digits, but for evaluations, whose numbers are those of the runs.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rpe_bench.report.load import KEYS, ReportError, Results, read_csv
from rpe_bench.report.statistics import LINE, token_means
from rpe_bench.schema import TABLES

GROUPS = 64
"""Most positions, or moments of training, that are told apart: about what a panel can show."""

BINS = 10
"""Of the distance, as a share of the greatest there is at a length."""

SLICE = "distance"
"""The slice that is kept: how many tokens, or on a grid cells, lie between the question and its answer."""

DIGITS = 6

_RUN = (*LINE, "seed")
"""Columns that name a finished run."""

_COLUMNS: dict[str, dict[str, str]] = {
    "evaluations": {"train_length": "int64", **TABLES["eval"], "ratio": "float64"},
    "training_set": {"train_length": "int64", **TABLES["training_set"], "ratio": "float64"},
    "positions": {
        "length": "int64",
        "position": "int64",
        "to": "int64",
        "tokens": "int64",
        "loss": "float64",
        "accuracy": "float64",
    },
    "training": {"step": "int64", "tokens": "int64", "loss": "float64"},
    "slices": {"length": "int64", "slice": "str", "bin": "int64", "tokens": "int64", "accuracy": "float64"},
}
"""Tables of rows of runs: the columns behind _RUN."""

_SHARED: dict[str, dict[str, str]] = {
    "baselines": {
        "task_label": "str",
        "length": "int64",
        "ratio": "float64",
        "chance": "float64",
        "majority": "float64",
    },
    "floor_positions": {
        "task_label": "str",
        "length": "int64",
        "position": "int64",
        "to": "int64",
        "tokens": "int64",
        "loss": "float64",
    },
}

NAMES = ("runs", *_COLUMNS, *_SHARED)
"""The tables, in the order in which a report lists them."""


def published(results: Results) -> Results:
    """What is kept of the results; of that, the same again."""
    return Results(
        **{
            **vars(results),
            "positions": grouped_positions(results.positions),
            "training": grouped_training(results.training),
            "slices": distance_bins(results.slices),
            "baselines": _first(results.baselines, ["task_label", "length", "ratio"]),
            "floor_positions": _first(grouped_floor(results.floor_positions), ["task_label", "length", "position"]),
        }
    )


def _first(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The runs behind one task label are scored on the same examples, so that any of them says the same."""
    return rows.drop_duplicates(by).sort_values(by, ignore_index=True)


def grouped_positions(positions: pd.DataFrame) -> pd.DataFrame:
    """Means over groups of neighbouring positions: the rows of positions.csv with `to` behind `position`, the first
    position that is not of the group.

    Groups of a length are equally wide, so that there are at most GROUPS. One begins where training ended.
    """
    if "to" in positions:
        return positions
    return _grouped(positions, [*_RUN, "length"], ["loss", "accuracy"])


def grouped_floor(floor: pd.DataFrame) -> pd.DataFrame:
    """`grouped_positions` of the entropy floor."""
    return floor if "to" in floor else _grouped(floor, [*_RUN, "length"], ["loss"])


def _grouped(rows: pd.DataFrame, by: list[str], means: list[str]) -> pd.DataFrame:
    at = rows.groupby(["task_label", "length"])["position"]
    extent = at.transform("max") - at.transform("min")
    width = np.ceil((extent + 2) / GROUPS).clip(lower=1).astype("int64")
    trained = rows["train_tokens"]
    start = trained + (rows["position"] - trained) // width * width
    stop = start + width
    # As far as there are positions at all.
    start, stop = start.clip(lower=at.transform("min")), stop.clip(upper=at.transform("max") + 1)
    rows = rows.assign(position=start, to=stop)
    keys = [column for column in rows if column in KEYS or column == "ratio"]
    found = token_means(rows, [*by, "position", "to"], means)
    found = found.assign(**{name: _rounded(found[name]) for name in means})
    others = rows[[*by, *(key for key in keys if key not in by)]].drop_duplicates(by)
    found = found.merge(others, on=by, validate="many_to_one")
    return found[[*(key for key in rows if key in KEYS), "length", "position", "to", "tokens", *means, "ratio"]]


def grouped_training(training: pd.DataFrame) -> pd.DataFrame:
    """Mean loss of each run over parts of its training: step and tokens at the end of a part."""
    count = training.groupby(list(_RUN))["step"].transform("size")
    place = training.groupby(list(_RUN)).cumcount()
    part = place // np.ceil(count / GROUPS).clip(lower=1).astype("int64")
    kept = training.assign(part=part).groupby([*_RUN, "part"], sort=True)
    keys = [key for key in training if key in KEYS]
    ends = kept[[*(key for key in keys if key not in _RUN), "step", "tokens"]].last()
    found = ends.join(_rounded(kept["loss"].mean()).rename("loss")).reset_index()
    return found[[*keys, "step", "tokens", "loss"]]


def distance_bins(slices: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of each run by bin of the distance: 0 for the nearest, BINS - 1 for the farthest of a length.

    Distances count by their tokens. A bin that no distance of a length falls into has no row.
    """
    if "bin" in slices:
        return slices
    rows = slices[slices["slice"] == SLICE]
    # All runs of a task are scored on the same examples, and so at the same distances.
    farthest = rows.groupby(["task_label", "length"])["value"].transform("max")
    place = np.ceil(BINS * rows["value"] / farthest).astype("int64").clip(1, BINS) - 1
    rows = rows.assign(bin=place)
    keys = [key for key in rows if key in KEYS]
    by = [*_RUN, "length"]
    found = token_means(rows, [*by, "slice", "bin"], ["accuracy"])
    found["accuracy"] = _rounded(found["accuracy"])
    others = rows[[*by, *(key for key in keys if key not in by), "ratio"]].drop_duplicates(by)
    found = found.merge(others, on=by, validate="many_to_one")
    return found[[*keys, "length", "slice", "bin", "tokens", "accuracy", "ratio"]]


def _rounded(values: pd.Series) -> pd.Series:
    """To DIGITS significant digits: a quotient of whole numbers, so that it is the float that is written as briefly."""
    found = values.to_numpy(dtype=float, copy=True)
    usual = np.isfinite(found) & (found != 0)
    decimals = np.zeros(len(found), dtype=int)
    decimals[usual] = DIGITS - 1 - np.floor(np.log10(np.abs(found[usual]))).astype(int)
    for places in np.unique(decimals[usual]):
        chosen = usual & (decimals == places)
        found[chosen] = np.round(found[chosen], int(places))
    return pd.Series(found, index=values.index)


def write_tables(results: Results, folder: Path) -> list[Path]:
    """Write what `published` left to FOLDER; a table without rows is not written, but for runs.csv."""
    paths = []
    for name in NAMES:
        frame = getattr(results, name)
        if name in _COLUMNS:
            frame = frame[[*_RUN, *_COLUMNS[name]]].sort_values(list(_RUN), kind="stable")
        elif name in _SHARED:
            frame = frame[list(_SHARED[name])]
        if len(frame) or name == "runs":
            paths.append(folder / f"{name}.csv")
            frame.to_csv(paths[-1], index=False, lineterminator="\n")
    return paths


def has_tables(results_dir: str | Path) -> bool:
    return all(
        (Path(results_dir) / "tables" / f"{name}.csv").is_file() for name in ("runs", "evaluations", "baselines")
    )


def read_tables(results_dir: str | Path) -> Results:
    """The `published` results behind RESULTS_DIR/tables. ReportError, which names the file, where one can't be used."""
    folder = Path(results_dir) / "tables"
    runs = _read(folder / "runs.csv", {"directory": "str", "status": "str", "reason": "str", **KEYS})
    finished = runs.loc[runs["status"] == "finished", list(KEYS)]
    keys = finished.astype(KEYS)
    frames: dict[str, pd.DataFrame] = {}
    for name, columns in _COLUMNS.items():
        path = folder / f"{name}.csv"
        kinds = {**{key: KEYS[key] for key in _RUN}, **columns}
        rows = _read(path, kinds) if path.exists() else _empty(kinds)
        rows = rows.drop(columns="train_length", errors="ignore")
        frame = keys.merge(rows, on=list(_RUN), how="right", validate="one_to_many", indicator=True)
        if (alone := frame["_merge"] != "both").any():
            row = frame[alone].iloc[0]
            where = ", ".join(f"{column} {row[column]}" for column in _RUN)
            raise ReportError(f"{path}: {where} is no finished run of runs.csv")
        frame = frame.drop(columns="_merge").astype(KEYS)
        if "length" in frame:
            frame["ratio"] = frame["length"] / frame["train_length"]
        frames[name] = frame
    for name, columns in _SHARED.items():
        path = folder / f"{name}.csv"
        frames[name] = _read(path, columns) if path.exists() else _empty(columns)
    unused: dict[str, Any] = {name: _empty({**KEYS, **TABLES[name]}) for name in ("validation", "floor")}
    return Results(runs=runs, configs={}, **frames, **unused)


def _read(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    """Numbers as they were written, to the last bit; other columns as text."""
    floats = {name: ["nan", ""] for name, kind in columns.items() if kind == "float64"}
    nullable = {"int64": "Int64"} if path.name == "runs.csv" else {}
    try:
        header = path.read_text(encoding="utf-8").partition("\n")[0].split(",")
        kinds = {name: nullable.get(kind := columns.get(name, "str"), kind) for name in header}
        missing = {name: [""] for name, kind in kinds.items() if kind == "Int64"}
        frame = read_csv(path, dtype=kinds, na_values={**floats, **missing})
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path}: {error}") from error
    if absent := [name for name in columns if name not in frame]:
        raise ReportError(f"{path}: no column {', '.join(absent)}")
    return frame


def _empty(columns: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})
