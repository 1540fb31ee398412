"""Run directories -> tidy DataFrames, where no run is lost, counted twice or taken for one of another configuration."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import pandas as pd
import yaml

from rpe_bench.catalogue import LOADER
from rpe_bench.schema import FORMAT, ON_DEMAND, OPTIONAL, SPLITS, TABLES

_T = TypeVar("_T")

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

STATUSES = ("finished", "failed", "unfinished", "unreadable", "other format", "duplicate", "foreign")
"""What a directory under runs/ can be; only what is finished is averaged."""

NOT_COMPARED = {"seed", "results_dir", "checkpoint", "logger", "sweep", "evaluation.multiples", "start.run"}
"""Keys whose difference doesn't set two runs apart: `evaluation.lengths` already says what the multiples came to, and
`start.line` what a run began with."""

EXECUTION = {"device", "threads", "start.run_id", "start.digest"}
"""Keys that set runs apart only where a seed would otherwise count twice: those that change a number by rounding alone,
and what says which of several like runs, one a seed, a run began with."""

INT64 = range(-(2**63), 2**63)
"""What a column of integers can hold; JSON, YAML and Python know no such limit."""

IMPLIED = {
    "positions.name": "plain",
    "positions.target": "rpe_bench.positions.plain.Plain",
    "recipe.optimiser": "adamw",
    "recipe.momentum": "null",
    "recipe.schedule": "cosine",
    "recipe.decay_share": "null",
    "recipe.accumulate": "1",
    "recipe.curriculum_start": "null",
    "recipe.curriculum_share": "null",
    **{f"start.{key}": "null" for key in ("run", "run_id", "digest", "encoding", "steps", "line")},
}
"""What the config of a run means that was made before there was a choice."""

DERIVED = {
    "evaluation.lengths": "recipe.train_length",
    "recipe.betas": "recipe.optimiser",
    "recipe.momentum": "recipe.optimiser",
    "recipe.min_lr_ratio": "recipe.schedule",
    "recipe.decay_share": "recipe.schedule",
    "recipe.curriculum_start": "recipe.lengths",
    "recipe.curriculum_share": "recipe.lengths",
    **{f"start.{key}": "recipe.name" for key in ("line", "encoding", "steps")},
    **{
        f"recipe.early_stop.{key}": "recipe.early_stop.metric"
        for key in ("every", "patience", "min_improvement", "threshold", "examples", "keep")
    },
}
"""Key -> the key that it usually follows from, where that is not the name of its section, and then is not shown
beside."""


class ReportError(ValueError):
    """There is nothing to report; the message is one line that names the directory."""


@dataclass(frozen=True)
class Results:
    """The runs of one results directory.

    runs         one row a directory under runs/, whatever it is: directory, status (of STATUSES), reason (why it is not
                 averaged), the columns of KEYS and what else run.json records
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
    evaluation differs among its runs. `encoding_label` names what is one line there, the encoding and the positions it
    was given, in the same way. Runs with both labels the same differ in their seed alone.
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
    configs: dict[str, dict[str, str]]

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
    """One directory under runs/; config is flat: dotted key -> the value as it is shown."""

    directory: str
    status: str
    reason: str = ""
    record: dict[str, object] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    task_label: str = ""
    encoding_label: str = ""


def load_results(results_dir: str | Path) -> Results:
    """Read every directory under RESULTS_DIR/runs. ReportError where there is no such place.

    A directory that can't be used is a row of `runs` with its status and reason, and has no row elsewhere.
    """
    root = Path(results_dir) / "runs"
    if not root.is_dir():
        raise ReportError(f"no runs in {results_dir}: there is no directory {root}")
    # Hidden directories are of tools and editors, and of whoever is writing a run that has no name yet.
    directories = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    runs = [_read(directory) for directory in directories]
    for name in [name for name in TABLES if name not in ON_DEMAND]:
        finished = [run for run in runs if run.status == "finished"]
        for start in range(0, len(finished), _BATCH):
            _read_tables(finished[start : start + _BATCH], root, name)
    _label([run for run in runs if run.status == "finished"])

    return Results(
        runs=_overview(runs),
        evaluations=_table(runs, "eval"),
        training_set=_table(runs, "training_set"),
        validation=_table(runs, "validation"),
        positions=_table(runs, "positions"),
        training=_table(runs, "train"),
        slices=_table(runs, "slices"),
        baselines=_table(runs, "baselines"),
        floor=_table(runs, "floor"),
        floor_positions=_table(runs, "floor_positions"),
        configs={run.directory: run.config for run in runs if run.config},
    )


def load_examples(results_dir: str | Path, directories: Iterable[str]) -> pd.DataFrame:
    """The rows of examples.csv of some finished runs, each with its `directory`; none of those that have no such file.

    ReportError where one can't be read.
    """
    columns = TABLES["examples"]
    frames = [pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in {"directory": "str", **columns}.items()})]
    for directory in directories:
        path = Path(results_dir) / "runs" / directory / "examples.csv"
        try:
            frames.append(_csv(path, columns).assign(directory=directory))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ReportError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise ReportError(f"{path}: {_first_line(error)}") from error
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _read(directory: Path) -> _Run:
    run = _Run(directory.name, "foreign", "no run.json")
    path = directory / "run.json"
    if not path.exists():
        if (directory / "config.yaml").exists():
            run.status, run.reason = "unfinished", "no run.json yet"
        return run
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not {"run_id", "status"} <= record.keys():
            run.reason = "run.json is not the record of a run"
            return run
        run.record = record
        _check_integers(record)
        if record.get("format") != FORMAT:
            run.status = "other format"
            run.reason = f"results format {record.get('format')}, where this version reads {FORMAT}"
            return run
        path = directory / "config.yaml"
        # A run that has only just started has none.
        if path.exists() or record["status"] == "finished":
            run.config = IMPLIED | _config(path.read_text(encoding="utf-8"))
            run.config.pop("recipe.early_stop", None)  # null: without it. A group has keys of its own
        if record["status"] == "finished":
            _check_keys(run)
    except OSError as error:
        run.status, run.reason = "unreadable", f"{path.name}: {error.strerror or _first_line(error)}"
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


def _read_tables(runs: list[_Run], root: Path, name: str) -> None:
    """Read one table of each of some finished runs; those of which it can't be are no longer finished.

    pandas takes about a millisecond for a file, however short, so that files that are as a run writes them are parsed
    as one. Where anything is odd, each is parsed alone, which also tells whose fault it is.
    """
    header = (",".join(TABLES[name]) + "\n").encode()
    together: list[tuple[_Run, bytes]] = []
    alone: list[_Run] = []
    for run in runs:
        path = root / run.directory / f"{name}.csv"
        try:
            text = path.read_bytes()
        except OSError:
            alone.append(run)
            continue
        rows = text[len(header) :]
        plain = (
            text.startswith(header) and text.endswith(b"\n") and not any(odd in text for odd in (b'"', b"\r", b"\n\n"))
        )
        # With a field too many in each line, pandas would take the first for an index.
        plain = plain and rows.count(b",") == rows.count(b"\n") * (len(TABLES[name]) - 1)
        if plain and (rows or name != "eval"):
            together.append((run, rows))
        else:
            alone.append(run)
    sizes = [rows.count(b"\n") for _, rows in together]
    try:
        frame = _parsed(BytesIO(header + b"".join(rows for _, rows in together)), TABLES[name])
        if len(frame) != sum(sizes) or (name == "eval" and not frame["split"].isin(SPLITS).all()):
            raise ValueError
    except ValueError:
        alone += [run for run, _ in together]
    else:
        start = 0
        for (run, _), size in zip(together, sizes, strict=True):
            run.tables[name] = frame.iloc[start : start + size]
            start += size
    for run in alone:
        path = root / run.directory / f"{name}.csv"
        try:
            if path.exists() or name not in OPTIONAL:
                run.tables[name] = _csv(path, TABLES[name])
        except OSError as error:
            run.status, run.reason = "unreadable", f"{path.name}: {error.strerror or _first_line(error)}"
        except ValueError as error:
            run.status, run.reason = "unreadable", f"{path.name}: {_first_line(error)}"


def _parsed(source: Path | BytesIO, columns: dict[str, str]) -> pd.DataFrame:
    # An encoding named "null" or "nan" is a name; only numbers can be missing.
    missing_values = {column: ["nan", ""] for column, kind in columns.items() if kind == "float64"}
    return pd.read_csv(source, dtype=columns, keep_default_na=False, na_values=missing_values)


def _csv(path: Path, columns: dict[str, str]) -> pd.DataFrame:
    frame = _parsed(path, columns)
    missing = [column for column in columns if column not in frame]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}")
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
        if value is None:
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


_COUNTED = ("threads", "parameters", "encoding_parameters", "max_tokens", "peak_memory_bytes")
_RECORDED = (
    *("device", "seconds", "train_seconds", "evaluation_seconds", "tokens_per_second"),
    *("started", "finished", "commit", "dirty"),
)


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


def _table(runs: list[_Run], name: str) -> pd.DataFrame:
    """The rows of one file of all finished runs, each with the columns of KEYS."""
    used = [run for run in runs if run.status == "finished" and name in run.tables]
    if not used:
        frame = pd.DataFrame({column: pd.Series(dtype=kind) for column, kind in {**KEYS, **TABLES[name]}.items()})
    else:
        keys = pd.DataFrame([_keys(run) for run in used]).astype(KEYS)
        rows = pd.concat([run.tables[name] for run in used], keys=range(len(used)), names=["run", None])
        frame = keys.loc[rows.index.get_level_values("run")].reset_index(drop=True)
        frame = pd.concat([frame, rows.reset_index(drop=True)], axis="columns")
    if "length" in frame:
        frame["ratio"] = frame["length"] / frame["train_length"]
    return frame


# What sets runs apart


def _label(runs: list[_Run]) -> None:
    """Give finished runs their labels, so that no two with the same ones have the same seed.

    The first of several runs that agree in everything stays, the others become duplicates.
    """
    for task in _grouped(runs, lambda run: run.config["task.name"]):
        for run, variant in zip(task, variants([_part(run, _about_task) for run in task]), strict=True):
            run.task_label = labelled(run.config["task.name"], variant)
    # Over all encodings: beside the bare name of one that was given plain positions, no other may stand for randomised.
    by_positions = variants([_part(run, _about_positions) for run in runs])
    positions = {run.directory: variant for run, variant in zip(runs, by_positions, strict=True)}
    for encoding in _grouped(runs, lambda run: run.config["encoding.name"]):
        by_encoding = variants([_part(run, _about_encoding) for run in encoding])
        parts = [
            ", ".join(text for text in (part, positions[run.directory]) if text)
            for run, part in zip(encoding, by_encoding, strict=True)
        ]
        # Device and threads are asked only where the rest leaves one seed in twice.
        execution = {run.directory: "" for run in encoding}
        for line in _grouped(list(zip(encoding, parts, strict=True)), lambda pair: (pair[0].task_label, pair[1])):
            same = [run for run, _ in line]
            if len({run.config["seed"] for run in same}) < len(same):
                by_execution = variants([_part(run, EXECUTION.__contains__) for run in same])
                execution.update((run.directory, variant) for run, variant in zip(same, by_execution, strict=True))
        for run, part in zip(encoding, parts, strict=True):
            variant = ", ".join(text for text in (part, execution[run.directory]) if text)
            run.encoding_label = labelled(run.config["encoding.name"], variant)
    for same in _grouped(runs, lambda run: (run.task_label, run.encoding_label, run.config["seed"])):
        for run in same[1:]:
            run.status, run.reason = "duplicate", f"the seed and configuration of {same[0].directory}"


def variants(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """What sets each flat configuration apart from the others: "" or such as "combine=concatenate, causal=False".

    Equal texts mean equal configurations. Of keys that differ, one that follows from the section's name (`model.dim`
    from `model.name`) isn't shown, nor one that only choices of another name have, and a key is shown by its last part
    where that is clear.
    """
    # What a key says hangs on which configurations there are, not on how many runs have each.
    keys = [tuple(sorted(config.items())) for config in configs]
    texts = _variants([dict(key) for key in dict.fromkeys(keys)])
    by_config = dict(zip(dict.fromkeys(keys), texts, strict=True))
    return [by_config[key] for key in keys]


def _variants(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """`variants` of configurations that are all different."""

    def values(key: str) -> list[str]:
        return [config.get(key, "unset") for config in configs]

    differing = [key for key in sorted({key for c in configs for key in c}) if len(set(values(key))) > 1]

    def follows(key: str) -> bool:
        section = f"{key.split('.')[0]}.name"
        parents = {section, DERIVED.get(key, section)} - {key}
        return any(
            len(set(zip(values(by), values(key), strict=True))) == len(set(values(by)))
            for by in parents.intersection(differing)
        )

    # The name of a model or a recipe explains the most, a list of lengths the least.
    shown = sorted(
        (key for key in differing if not follows(key)), key=lambda k: (not k.endswith(".name"), k in DERIVED)
    )
    short = {key: key.removesuffix(".name").split(".")[-1] for key in shown}
    names = {key: key if list(short.values()).count(name) > 1 else name for key, name in short.items()}

    def belongs(key: str, config: Mapping[str, str]) -> bool:
        """Whether it is for this choice of a section to have the key, rather than for one of another name, and whether
        it has the group of keys that the key is in."""
        group = key.rpartition(".")[0]
        if "." in group and not any(other.startswith(f"{group}.") for other in config):
            return False
        by = f"{key.split('.')[0]}.name"
        return by not in differing or any(key in other for other in configs if other.get(by) == config.get(by))

    return [
        ", ".join(f"{names[key]}={config.get(key, 'unset')}" for key in shown if belongs(key, config))
        for config in configs
    ]


def labelled(name: str, variant: str) -> str:
    """`rope`, or `rope (base=500000)`."""
    return f"{name} ({variant})" if variant else name


def flatten(config: object, prefix: str = "") -> dict[str, str]:
    """A nested configuration as dotted key -> text; different values have different texts, and 1.0 is written 1."""
    if not isinstance(config, Mapping):
        if not prefix:
            raise ValueError("not a mapping")
        return {prefix: _text(config)}
    flat: dict[str, str] = {}
    for key, value in config.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and math.isfinite(value):
        short = f"{value:.12g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list):
        return f"[{','.join(_text(item) for item in value)}]"
    return str(value)


def _part(run: _Run, wanted: Callable[[str], bool]) -> dict[str, str]:
    return {key: value for key, value in run.config.items() if wanted(key)}


@cache
def _about_encoding(key: str) -> bool:
    return key.startswith("encoding.")


@cache
def _about_positions(key: str) -> bool:
    return key.startswith("positions.")


@cache
def _about_task(key: str) -> bool:
    """Everything else that could change a number, so that a key of the future sets runs apart too."""
    unimportant = NOT_COMPARED | EXECUTION
    by_line = _about_encoding(key) or _about_positions(key)
    return not by_line and key not in unimportant and key.split(".")[0] not in unimportant


def _grouped(items: list[_T], key: Callable[[_T], object]) -> list[list[_T]]:
    groups: defaultdict[object, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def _first_line(message: object) -> str:
    """The first line of an error, without the folders that files are in: those of a machine say nothing elsewhere."""
    line = (str(message).splitlines() or [""])[0]
    return re.sub(r"(?<![\w.)])/(?:[^\s/'\":,;]+/)+", "", line)
