"""Run directories -> tidy DataFrames, where no run is lost, counted twice or taken for one of another configuration."""

import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from rpe_bench import ledger
from rpe_bench.catalogue import LOADER
from rpe_bench.files import read_record
from rpe_bench.report import kept
from rpe_bench.report.kept import Rows, joined
from rpe_bench.report.labels import IMPLIED, flatten, label
from rpe_bench.schema import FORMAT, ON_DEMAND, OPTIONAL, SPLITS, TABLES

KEYS = {
    "run_id": "str",
    "task": "str",
    "task_label": "str",
    "encoding": "str",
    "encoding_label": "str",
    "recipe": "str",
    "model": "str",
    "seed": "int64",
    "train_length": "int64",
    "train_tokens": "int64",
}
"""Columns that every row carries, and their types."""

STATUSES = ("finished", "failed", "unfinished", "unreadable", "other format", "duplicate", "foreign", "missing")
"""What a directory under runs/ can be; only what is finished is averaged. `missing`: a run that the last sweep asked
for and that has none."""


_COUNTED = ("threads", "parameters", "encoding_parameters", "max_tokens", "peak_memory_bytes")
_RECORDED = (
    *("device", "seconds", "train_seconds", "evaluation_seconds", "tokens_per_second"),
    *("started", "finished", "commit", "dirty"),
)
_FACTS = ("run_id", "train_length", "train_tokens", *_COUNTED, *_RECORDED)
"""What is made use of in run.json."""

_TEXTS = {"run_id", "device", "started", "finished", "commit"}
"""Which of these are texts; the others are numbers."""

_READ = tuple(name for name in TABLES if name not in ON_DEMAND)
_LOOKED_AT = frozenset({"run.json", "config.yaml", *(f"{name}.csv" for name in _READ)})
"""The files whose change makes a run another one."""

INT64 = range(-(2**63), 2**63)
"""What a column of integers can hold; JSON, YAML and Python know no such limit."""


class ReportError(ValueError):
    """There is nothing to report; the message is one line that names the directory."""


@dataclass(frozen=True)
class Results:
    """The runs of one results directory.

    runs         one row a directory under runs/, whatever it is, and a run that is missing there: directory, status (of
                 STATUSES), reason (why it is not averaged), the columns of KEYS and what else run.json records
    evaluations  finished runs alone from here on: KEYS, the columns of eval.csv and ratio = length / train_length
    training_set KEYS, the columns of training_set.csv and ratio, of the runs that have one
    validation   KEYS, the columns of validation.csv and ratio, of the runs that might stop early
    positions    KEYS, the columns of positions.csv and ratio
    training     KEYS and the columns of train.csv
    slices       KEYS, the columns of slices.csv and ratio
    baselines    KEYS, the columns of baselines.csv and ratio
    floor, floor_positions   KEYS, the columns of these files and ratio, of the runs that have them
    configs      directory -> flat config, dotted key -> text, of the runs that have one that can be read

    `task_label` names what may share a panel: the task, and behind it whatever else about task, model, recipe or
    evaluation differs among its runs. `encoding_label` names what is one line there, the encoding, in the same way, and
    the positions it was given unless they are plain. Runs with both labels the same differ in their seed alone.
    """

    runs: pd.DataFrame
    evaluations: pd.DataFrame
    training_set: pd.DataFrame
    validation: pd.DataFrame
    positions: pd.DataFrame
    training: pd.DataFrame
    slices: pd.DataFrame
    baselines: pd.DataFrame
    floor: pd.DataFrame
    floor_positions: pd.DataFrame
    configs: dict[str, dict[str, str]] = field(repr=False)

    @property
    def task_labels(self) -> list[str]:
        """In the order in which they are shown."""
        return in_order(self.evaluations["task_label"])

    @property
    def encoding_labels(self) -> list[str]:
        """In the order in which they are shown."""
        return in_order(self.evaluations["encoding_label"])


def in_order(labels: Iterable[str]) -> list[str]:
    """Each label once, alphabetically with numbers by value: base=10000 comes before base=500000."""

    def key(label: str) -> list[tuple[int, str]]:
        # A number sorts by its digits' count, then by its digits: exact, whatever its size.
        return [(len(part), part) if part.isdigit() else (0, part) for part in re.split(r"([0-9]+)", label)]

    return sorted(set(labels), key=lambda label: (key(label.casefold()), label))


@dataclass
class _Run:
    """One directory under runs/. record: of run.json what _FACTS names; config is flat: dotted key -> the value as it
    is shown."""

    directory: str
    status: str
    reason: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    task_label: str = ""
    encoding_label: str = ""
    is_of_the_moment: bool = False
    """Whether it could not be read for what says nothing of its files: who asks, or a disk that doesn't answer."""


_Files = dict[str, os.stat_result]
"""The files of a directory that loading looks at, by name."""


def load_results(results_dir: str | Path) -> Results:
    """Read every directory under RESULTS_DIR/runs. ReportError where there is no such place.

    A directory that can't be used is a row of `runs` with its status and reason, and has no row elsewhere. Of many
    runs, what was read is kept in RESULTS_DIR/.cache, and those that did not change since are not read again.
    """
    root = Path(results_dir) / "runs"
    if not root.is_dir():
        raise ReportError(f"no runs in {results_dir}: there is no directory {root}")
    try:
        runs, tables = _read_all(root)
    except PermissionError as error:
        raise ReportError(f"no runs in {results_dir}: {root}: {error.strerror}") from error
    label([run for run in runs if run.status == "finished"])
    used = np.array([run.status == "finished" for run in runs], dtype=bool)
    keys = pd.DataFrame([_keys(run) for run in runs if run.status == "finished"], columns=list(KEYS)).astype(KEYS)
    numbers = np.where(used, np.cumsum(used) - 1, -1)
    runs += _missing(Path(results_dir), {run.directory for run in runs})

    def table(name: str) -> pd.DataFrame:
        """The rows of one file of all finished runs, each with the columns of KEYS."""
        rows = tables[name].of(numbers)
        frame = pd.concat([keys.take(rows.owner).reset_index(drop=True), rows.frame], axis="columns")
        if "length" in frame:
            frame["ratio"] = frame["length"] / frame["train_length"]
        return frame

    return Results(
        runs=_overview(runs),
        evaluations=table("eval"),
        training_set=table("training_set"),
        validation=table("validation"),
        positions=table("positions"),
        training=table("train"),
        slices=table("slices"),
        baselines=table("baselines"),
        floor=table("floor"),
        floor_positions=table("floor_positions"),
        configs={run.directory: run.config for run in runs if run.config},
    )


def _read_all(root: Path) -> tuple[list[_Run], dict[str, Rows]]:
    """All runs in the order of their directories' names, and of each table the rows of those that are finished."""
    began = time.time()
    found = _directories(root)
    results_dir = root.parent
    before = kept.read(results_dir) if len(found) >= kept.WORTH else None
    stamps_of = {name: _stamp(inside) for name, inside in found.items()}
    known = {} if before is None else dict(zip(before.directories, range(len(before.directories)), strict=True))
    numbers = np.full(len(known), -1)
    runs: list[_Run] = []
    fresh: list[int] = []
    for number, (name, inside) in enumerate(found.items()):
        old = known.get(name)
        if before is not None and old is not None and before.stamps[old] == stamps_of[name] != "":
            status, reason, record = before.runs[old]
            runs.append(_Run(name, status, reason, record, before.configs[old]))
            numbers[old] = number
        else:
            runs.append(_read(root / name, inside))
            fresh.append(number)
    tables: dict[str, Rows] = {}
    for name in _READ:
        parts = [] if before is None else [before.tables[name].of(numbers)]
        finished = [number for number in fresh if runs[number].status == "finished"]
        for start in range(0, len(finished), _BATCH):
            parts += _read_tables(finished[start : start + _BATCH], runs, found, root, name)
        tables[name] = joined(parts or [Rows(_empty(TABLES[name]), np.empty(0, dtype="int64"))])
    changed = [
        number
        for number in fresh
        if _is_settled(found[runs[number].directory], began) and not runs[number].is_of_the_moment
    ]
    gone = known.keys() - found.keys()
    if len(found) >= kept.WORTH and len(changed) + len(gone) > kept.REWRITTEN * len(found):
        # One that may have been written again since within a tick of the clock, or that another time may be readable,
        # has no stamp, and is read anew.
        unsettled = set(fresh) - set(changed)
        anew = kept.Kept(
            [run.directory for run in runs],
            ["" if number in unsettled else stamps_of[run.directory] for number, run in enumerate(runs)],
            [[run.status, run.reason, run.record] for run in runs],
            [run.config for run in runs],
            tables,
        )
        kept.write(results_dir, anew)
    return runs, tables


def stamps(results_dir: str | Path) -> dict[str, str]:
    """Of each run's directory what its files are, which is another when any of them changes: see `kept.stamp`."""
    return {name: _stamp(inside) for name, inside in _directories(Path(results_dir) / "runs").items()}


def _stamp(inside: _Files | OSError) -> str:
    return kept.stamp(inside) if isinstance(inside, dict) else ""


def _directories(root: Path) -> dict[str, _Files | OSError]:
    """Name -> the files within that loading looks at, of every directory that is not hidden; what is in the way where
    they can't be seen."""
    found: dict[str, _Files | OSError] = {}
    with os.scandir(root) as entries:
        places = sorted((entry for entry in entries if _is_run(entry)), key=lambda entry: entry.name)
    for place in places:
        inside: _Files = {}
        try:
            with os.scandir(place.path) as entries:
                for entry in entries:
                    if entry.name in _LOOKED_AT:
                        with suppress(FileNotFoundError):  # a link to what is not there, or removed meanwhile
                            inside[entry.name] = entry.stat()
            found[place.name] = inside
        except FileNotFoundError as error:
            if place.is_symlink():
                found[place.name] = error
            # Else it was removed meanwhile.
        except OSError as error:
            found[place.name] = error
    return found


def _is_run(entry: os.DirEntry[str]) -> bool:
    """Whether it is to be counted: a directory, or a link to one that isn't there, as on a disk that isn't mounted."""
    # Hidden directories are of tools and editors, and of whoever is writing a run that has no name yet.
    if entry.name.startswith("."):
        return False
    return entry.is_dir() or (entry.is_symlink() and not os.path.exists(entry.path))


def _is_settled(inside: _Files | OSError, now: float) -> bool:
    if isinstance(inside, OSError):
        return False
    latest = max((max(stat.st_mtime, stat.st_ctime) for stat in inside.values()), default=0.0)
    return latest < now - kept.SETTLED


def _missing(results_dir: Path, there: set[str]) -> list[_Run]:
    """The runs that the last sweep asked for and that have no directory."""
    asked: list[str] = []
    try:
        for entry in ledger.read(results_dir):
            if entry.get("event") == "sweep":
                runs = entry.get("runs")
                asked = [run_id for run_id in runs if isinstance(run_id, str)] if isinstance(runs, list) else []
    except OSError:
        return []  # what cannot be read asks for nothing
    reason = "asked for by the last sweep, and without a directory"
    return [_Run(run_id, "missing", reason) for run_id in sorted(set(asked) - there)]


def load_examples(results_dir: str | Path, directories: Iterable[str]) -> pd.DataFrame:
    """The rows of examples.csv of some finished runs, each with its `directory`; none of those that have no such file.

    ReportError where one can't be read.
    """
    columns = TABLES["examples"]
    frames = [pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in {"directory": "str", **columns}.items()})]
    for directory in directories:
        path = Path(results_dir) / "runs" / directory / "examples.csv"
        try:
            if problem := _not_as_written(read_record(path.parent), {path.name: path.stat()}, ["examples"]):
                raise ValueError(problem.removeprefix(f"{path.name} "))
            frames.append(_csv(path, columns).assign(directory=directory))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ReportError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise ReportError(f"{path}: {_first_line(error)}") from error
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _read(directory: Path, inside: _Files | OSError) -> _Run:
    run = _Run(directory.name, "foreign", "no run.json")
    if isinstance(inside, OSError):
        what = "a link to what is not there" if directory.is_symlink() else inside.strerror or _first_line(inside)
        run.status, run.reason = "unreadable", what
        return run
    if "run.json" not in inside:
        if "config.yaml" in inside:
            run.status, run.reason = "unfinished", "no run.json yet"
        return run
    path = directory / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not {"run_id", "status"} <= record.keys():
            run.reason = "run.json is not the record of a run"
            return run
        odd = [name for name in _FACTS if not _is_as_known(name, record.get(name))]
        run.record = {name: record.get(name) for name in _FACTS if name not in odd}
        _check_integers(record)
        if record.get("format") != FORMAT:
            run.status = "other format"
            run.reason = f"results format {record.get('format')}, where this version reads {FORMAT}"
            return run
        if odd:
            raise ValueError(f"{odd[0]} is not {'a text' if odd[0] in _TEXTS else 'a number'}")
        path = directory / "config.yaml"
        # A run that has only just started has none.
        if "config.yaml" in inside or record["status"] == "finished":
            run.config = IMPLIED | _config(path.read_text(encoding="utf-8"))
            run.config.pop("recipe.early_stop", None)  # null: without it. A group has keys of its own
        if record["status"] == "finished":
            _check_keys(run)
            if problem := _not_as_written(record, inside, _READ):
                run.status, run.reason = "unreadable", problem
                return run
    except OSError as error:
        run.status, run.reason = "unreadable", f"{path.name}: {error.strerror or _first_line(error)}"
        run.is_of_the_moment = not isinstance(error, FileNotFoundError)
        return run
    except (ValueError, yaml.YAMLError) as error:
        run.status, run.reason = "unreadable", f"{path.name}: {_first_line(error)}"
        return run
    if record["status"] == "finished":
        run.status, run.reason = "finished", ""
    elif record["status"] == "failed":
        exception = record.get("exception")
        if isinstance(exception, Mapping):
            exception = f"{exception.get('type')}: {exception.get('message')}"
        run.status, run.reason = "failed", _first_line(exception)
    else:
        run.status, run.reason = "unfinished", f"run.json says {record['status']}"
    return run


def _is_as_known(name: str, value: object) -> bool:
    """Another version, or another program, may have something else to say under the name of a fact."""
    return value is None or isinstance(value, str if name in _TEXTS else int | float)


def _not_as_written(record: Mapping[str, Any], inside: _Files, tables: Iterable[str]) -> str:
    """What is wrong with tables of a finished run whose sizes it recorded, as where a copy was cut short; or ""."""
    sizes = record.get("bytes")
    for name in (f"{table}.csv" for table in tables):
        if isinstance(sizes, dict) and name in sizes and name in inside and inside[name].st_size != sizes[name]:
            return f"{name} has {inside[name].st_size} bytes, not the {sizes[name]} that were written"
    return ""


def _config(text: str) -> dict[str, str]:
    """`flatten` of the YAML of a config. Its sections are parsed one by one where that is the same, as in every config
    that a run wrote: thousands of runs share most of them."""
    keys = re.findall(r"^[A-Za-z_]\w*(?=:)", text, re.MULTILINE)
    by_section = re.fullmatch(r"(?![ -])(?:(?:[A-Za-z_]\w*:| |- ).*\n)+", text)
    if not by_section or len(set(keys)) < len(keys) or "&" in text or "*" in text:
        return flatten(_yaml(text))
    config: dict[str, str] = {}
    for section in re.split(r"^(?=[A-Za-z_])", text, flags=re.MULTILINE)[1:]:
        config.update(_section(section))
    return config


@lru_cache(maxsize=4096)
def _section(text: str) -> dict[str, str]:
    return flatten(_yaml(text))


def _yaml(text: str) -> object:
    return yaml.load(text, Loader=LOADER)


_BATCH = 500
"""Runs whose tables are parsed together."""


def _read_tables(
    numbers: Sequence[int], runs: Sequence[_Run], found: Mapping[str, _Files | OSError], root: Path, name: str
) -> list[Rows]:
    """The rows of one table of some finished runs; those of which it can't be read are no longer finished.

    pandas takes about a millisecond for a file, however short, so that files that are as a run writes them are parsed
    as one. Where anything is odd, each is parsed alone, which also tells whose fault it is.
    """
    header = (",".join(TABLES[name]) + "\n").encode()
    together: list[tuple[int, bytes]] = []
    alone: list[int] = []
    for number in numbers:
        inside = found[runs[number].directory]
        assert isinstance(inside, dict)
        if f"{name}.csv" not in inside:
            if name not in OPTIONAL:
                alone.append(number)
            continue
        try:
            with open(f"{root}/{runs[number].directory}/{name}.csv", "rb") as file:
                text = file.read()
        except OSError:
            alone.append(number)
            continue
        rows = text[len(header) :]
        plain = (
            text.startswith(header) and text.endswith(b"\n") and not any(odd in text for odd in (b'"', b"\r", b"\n\n"))
        )
        # With a field too many in each line, pandas would take the first for an index.
        plain = plain and rows.count(b",") == rows.count(b"\n") * (len(TABLES[name]) - 1)
        if plain and (rows or name != "eval"):
            together.append((number, rows))
        else:
            alone.append(number)
    parts = []
    sizes = [rows.count(b"\n") for _, rows in together]
    try:
        frame = _parsed(BytesIO(header + b"".join(rows for _, rows in together)), TABLES[name])
        if len(frame) != sum(sizes) or (name == "eval" and not frame["split"].isin(SPLITS).all()):
            raise ValueError
    except ValueError:
        alone += [number for number, _ in together]
    else:
        parts.append(Rows(frame, np.repeat(np.array([number for number, _ in together], dtype="int64"), sizes)))
    for number in alone:
        run, path = runs[number], root / runs[number].directory / f"{name}.csv"
        try:
            frame = _csv(path, TABLES[name])
        except OSError as error:
            run.status, run.reason = "unreadable", f"{path.name}: {error.strerror or _first_line(error)}"
            run.is_of_the_moment = not isinstance(error, FileNotFoundError)
        except ValueError as error:
            run.status, run.reason = "unreadable", f"{path.name}: {_first_line(error)}"
        else:
            parts.append(Rows(frame, np.full(len(frame), number)))
    return parts


def _empty(columns: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})


def read_csv(source: Path | BytesIO, **options: Any) -> pd.DataFrame:
    """pandas.read_csv, with every number as it was written, to the last bit, and texts as they are: an encoding named
    "null" or "nan" is a name."""
    options |= {"keep_default_na": False, **_EXACT}
    frame: pd.DataFrame = pd.read_csv(source, **options)
    return frame


_EXACT: Any = {"float_precision": "round_trip"} if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else {}
"""From 3.1 on, pandas reads so in any case, and warns of whoever asks for it."""


def _parsed(source: Path | BytesIO, columns: dict[str, str]) -> pd.DataFrame:
    # Only numbers can be missing.
    missing_values = {column: ["nan", ""] for column, kind in columns.items() if kind == "float64"}
    return read_csv(source, dtype=columns, na_values=missing_values)


def _csv(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    frame = _parsed(path, columns)
    missing = [column for column in columns if column not in frame]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}")
    frame = frame[list(columns)]
    if path.name == "eval.csv":
        if frame.empty:
            raise ValueError("no rows")
        if unknown := set(frame["split"]) - set(SPLITS):
            raise ValueError(f"no split is called {', '.join(sorted(unknown))}")
    return frame


def _check_integers(record: Mapping[str, object]) -> None:
    """Raise ValueError where a number of run.json is larger than a column can hold."""
    for key, value in record.items():
        if type(value) is int and value not in INT64:
            raise ValueError(f"{key} is beyond 64 bits")


def _check_keys(run: _Run) -> None:
    """Raise ValueError where a finished run lacks what every row carries."""
    for key, value in _keys(run).items():
        # What is trained on has a length; ratios to it are taken everywhere.
        if value is None or (key in ("train_length", "train_tokens") and isinstance(value, int) and value < 1):
            raise ValueError(f"no usable {key}, here or in run.json")


def _keys(run: _Run) -> dict[str, object]:
    """The columns of KEYS; None where a run that isn't finished doesn't have one."""
    seed = run.config.get("seed", "")
    return {
        "run_id": run.record.get("run_id"),
        "task": run.config.get("task.name"),
        "task_label": run.task_label,
        "encoding": run.config.get("encoding.name"),
        "encoding_label": run.encoding_label,
        "recipe": run.config.get("recipe.name"),
        "model": run.config.get("model.name"),
        "seed": _integer(int(seed)) if re.fullmatch("[0-9]{1,19}", seed) else None,
        "train_length": _integer(run.record.get("train_length")),
        "train_tokens": _integer(run.record.get("train_tokens")),
    }


def _integer(value: object) -> int | None:
    return value if type(value) is int and value in INT64 else None


def _overview(runs: list[_Run]) -> pd.DataFrame:
    rows = []
    for run in runs:
        counted = {name: _integer(run.record.get(name)) for name in _COUNTED}
        recorded = {name: run.record.get(name) for name in _RECORDED}
        about = {"directory": run.directory, "status": run.status, "reason": run.reason}
        rows.append({**about, **_keys(run), **counted, **recorded})
    overview = pd.DataFrame(rows, columns=["directory", "status", "reason", *KEYS, *_COUNTED, *_RECORDED])
    # Nullable, so that a run without a number doesn't make floats of the others'.
    integers = [*_COUNTED, *(key for key, kind in KEYS.items() if kind == "int64")]
    return overview.astype(dict.fromkeys(integers, "Int64"))


def _first_line(message: object) -> str:
    """The first line of an error, without the folders that files are in: those of a machine say nothing elsewhere."""
    line = (str(message).splitlines() or [""])[0]
    return re.sub(r"(?<![\w.)])/(?:[^\s/'\":,;]+/)+", "", line)
