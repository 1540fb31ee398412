"""What tests of the W&B mirror share: runs with tables of every kind, and what W&B holds of them, read back.

What starts W&B does so in a forked process, as a sweep's jobs do, with none of the settings, keys or home directory of
whoever runs the tests.
"""

import base64
import csv
import hashlib
import json
import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rpe_bench.config import Config
from rpe_bench.record import Record
from rpe_bench.schema import TABLES
from rpe_bench.wandb_mirror import AXES, preload


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no settings, no home directory, no terminal and a working directory to be kept clean."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def in_processes(*works: Callable[[], None]) -> None:
    """Do all at once, each in a forked process of a parent that has only imported wandb."""
    preload()
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work) for work in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * len(works)


def rows() -> dict[str, list[dict[str, Any]]]:
    """A table of each kind, in numbers that rounding would change, and some that JSON has no word for."""
    lengths = [(8, "train_lengths"), (16, "train_lengths"), (64, "extrapolation")]
    train = [(step, 64 * step, 1 / (3 * step), 1e-3 / step, 1 / 7, 1e5 / 3) for step in (50, 100)]
    train.append((150, 9600, math.inf, 1e-5, math.nan, 1e5 / 3))
    evaluation = [(n, split, 640, 640 * n, 1 / n, math.exp(1 / n), 1 - 1 / n, 1 - n / 300) for n, split in lengths]
    evaluation[-1] = (64, "extrapolation", 640, 640 * 64, 800.0, math.inf, 1 / 7, 1 - 64 / 300)
    validation = [(step, 16, 256, 4096, 1 / step, math.exp(1 / step), 1 / 3, 1 / 7) for step in (50, 100)]
    memorised = [(16, 2000, 2000, 1 / 7, math.exp(1 / 7), 1 - 1 / 7, 2 / 3)]
    positions = [(n, p, 640, 1 / (p + n), math.exp(1 / (p + n)), 1 / (p + 1)) for n in (8, 16) for p in range(n, 2 * n)]
    slices = [(n, "distance", d, 320, 320, 1 / d, n / (d + 16)) for n in (8, 16) for d in (1, 2, 3)]
    baselines = [(n, 1 / 3, 1 / n) for n in (8, 16, 64)]
    floor = [(n, 640 * n, 1 / (3 * n), math.exp(1 / (3 * n))) for n in (8, 16)]
    floor_positions = [(8, p, 640, 1 / (p + 3), math.exp(1 / (p + 3))) for p in range(8)]
    tuples: dict[str, list[Any]] = {
        "train": train,
        "eval": evaluation,
        "training_set": memorised,
        "validation": validation,
        "positions": positions,
        "slices": slices,
        "baselines": baselines,
        "floor": floor,
        "floor_positions": floor_positions,
    }
    return {name: [dict(zip(TABLES[name], row, strict=True)) for row in values] for name, values in tuples.items()}


def write(config: Config, error: Exception | None = None) -> None:
    """A run with the tables of `rows`, which at its end raises."""
    tables = rows()
    with Record(config) as record:
        record.note(parameters=1234)
        for row in tables.pop("train"):
            record.train(row)
        for name, of_table in tables.items():
            record.table(name, of_table)
        if error:
            raise error


@dataclass
class Mirrored:
    """What W&B holds of one offline run."""

    folder: Path
    run: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None

    @classmethod
    def read(cls, results_dir: Path, run_id: str) -> "Mirrored":
        (folder,) = (results_dir / "wandb").glob(f"*-{run_id}")
        mirrored = cls(folder)
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        for record in map(json.loads, answer.stdout.splitlines()):
            content = record.get(record["type"])
            if record["type"] == "run":
                mirrored.run = content
            elif record["type"] == "metric":
                mirrored.metrics[content.get("name") or content["glob_name"]] = content.get("step_metric")
            elif record["type"] == "history":
                mirrored.history.append({k: v for k, v in content["item"].items() if not k.startswith("_")})
            elif record["type"] == "summary":
                mirrored.summary |= content.get("update", {})
            elif record["type"] == "artifact":
                mirrored.artifacts.append(content)
            elif record["type"] == "exit":
                mirrored.exit_code = content.get("exit_code", 0)
        return mirrored

    def curve(self, name: str, axis: str) -> dict[float, str]:
        """Place on the axis -> value, in all its digits."""
        return {point[axis]: digits(point[name]) for point in self.history if name in point}

    def table(self, name: str) -> list[dict[str, Any]]:
        (file,) = (self.folder / "files" / "media" / "table" / "tables").glob(f"{name}_[0-9]*.table.json")
        content = json.loads(file.read_text())
        return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def digits(value: Any) -> str:
    """A number as W&B or a CSV file has it, so that equal ones are equal and not-a-number is too."""
    return repr(float({"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(value, value)))


def comparable(row: dict[str, Any]) -> dict[str, str]:
    return {key: value if key in ("split", "slice") else digits(value) for key, value in row.items()}


def read_csv(run_dir: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table, in which a number of any kind is a float."""

    def value(text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text

    with (run_dir / f"{name}.csv").open() as file:
        return [{key: value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def check_numbers(mirrored: Mirrored, run_dir: Path) -> None:
    """That W&B holds the numbers of the CSV files of a run with the tables of `rows`, to the digit."""
    for table, axis in AXES.items():
        by_place = axis in ("position", "value")
        curves: dict[str, dict[float, str]] = {}
        for row in read_csv(run_dir, table):
            for column in row.keys() - {axis, "length", "split", "slice"}:
                if by_place and column not in ("loss", "perplexity", "accuracy"):
                    continue
                kind = f"{row['slice']}_" if "slice" in row else ""
                name = f"{table}/{kind}{column}" + (f"_L{row['length']:g}" if by_place else "")
                curves.setdefault(name, {})[row[axis]] = digits(row[column])
        assert curves
        for name, curve in curves.items():
            assert mirrored.curve(name, axis) == curve
        if table != "train":
            assert [comparable(row) for row in mirrored.table(table)] == [
                comparable(row) for row in read_csv(run_dir, table)
            ]
    for row in read_csv(run_dir, "eval"):
        for column in ("loss", "perplexity", "token_accuracy", "exact_match"):
            assert digits(mirrored.summary[f"eval/{column}_L{row['length']:g}"]) == digits(row[column])
    record = json.loads((run_dir / "run.json").read_text())
    for key in ("status", "started", "finished", "seconds", "parameters", "commit"):
        assert mirrored.summary.get(key) == record[key]
    assert mirrored.summary["effective_length"] == 16  # 64 is beyond, where 0.79 is right


def check_artifact(mirrored: Mirrored, run_dir: Path) -> None:
    """That it has every file of a run directory, with the bytes that are there, but for the checkpoint."""
    (artifact,) = [each for each in mirrored.artifacts if each["type"] == "run"]
    found = {entry["path"]: entry["digest"] for entry in artifact["manifest"]["contents"]}
    files = [path for path in run_dir.iterdir() if path.name != "checkpoint.pt"]
    assert found == {f.name: base64.b64encode(hashlib.md5(f.read_bytes()).digest()).decode() for f in files}
