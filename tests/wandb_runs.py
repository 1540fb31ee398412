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
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb_fake import KEY

from rpe_bench.cli import main
from rpe_bench.config import Config
from rpe_bench.record import Record
from rpe_bench.schema import TABLES
from rpe_bench.wandb_mirror import AXES, Patience, WandbMirror, preload

PATIENT = Patience(init=60.0, close={"online": 100.0, "offline": 100.0}, finish=60.0)
"""For what is not about patience: the machine may be busy."""


def patience(monkeypatch: pytest.MonkeyPatch, patience: Patience) -> None:
    """That of the mirrors of all runs from now on."""
    defaults = WandbMirror.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "patience", patience)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no settings, no home directory, no hurry, no terminal and a working directory to be kept clean."""
    patience(monkeypatch, PATIENT)
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
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * len(works)


def sync(results_dir: Path, *options: str, status: int = 0) -> None:
    """The command, in a process of its own."""

    def work() -> None:
        assert main(["wandb", "sync", str(results_dir), *options]) == status

    in_processes(work)


def online(monkeypatch: pytest.MonkeyPatch, url: str, key: str = KEY) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", url)
    monkeypatch.setenv("WANDB_API_KEY", key)


@contextmanager
def unused_port() -> Iterator[int]:
    """A port of 127.0.0.1 on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class Real:
    """A server that others have written, on a port of 127.0.0.1.

    Attributes: url; files, the folder that it keeps; process, while it runs.
    """

    def __init__(self, program: str, files: Path) -> None:
        self.files = files
        with unused_port() as self.port:
            pass
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [program, "serve", "--host=127.0.0.1", f"--port={self.port}", f"--data-dir={files}"]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError(f"{self._command}: does not listen")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def history(self, run_id: str) -> list[dict[str, Any]]:
        """What it has of a run's curves."""
        (file,) = self.files.rglob(f"{run_id}/**/wandb-history.jsonl")
        return [json.loads(line) for line in file.read_text().splitlines() if line]


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


def write(
    config: Config, error: Exception | None = None, midway: Callable[[Record], None] = lambda record: None
) -> None:
    """A run with the tables of `rows`, which at its end raises. midway: what happens after training."""
    tables = rows()
    with Record(config) as record:
        record.note(parameters=1234)
        for row in tables.pop("train"):
            record.train(row)
        midway(record)
        for name, of_table in tables.items():
            record.table(name, of_table)
        if error:
            raise error


def until_it_has_begun(record: Record) -> None:
    """Wait until the mirror has passed on what it was given."""
    mirror = record._mirror
    assert mirror is not None
    for _ in range(600):
        if mirror._inbox.empty():
            return
        time.sleep(0.1)
    raise TimeoutError


@dataclass
class Cost:
    """What a mirror costs the run whose process it is in, in seconds that a busy machine adds nothing to.

    The thread that trains may wait for those of the mirror, with a limit, and for nothing else: it never enters wandb.
    Beyond its limit a wait lasts only where the machine has no core to go on with.
    """

    waited: float = 0.0
    """By the thread that trains, up to its own limits."""
    cpu: float = 0.0
    """Of the processor: by the thread that trains, in the mirror, and until the run ends by the mirror's own threads
    and by wandb's process, which on a single core training would have to do without."""
    entered: list[str] = field(default_factory=list)
    """Functions of wandb that the thread that trains has called."""

    @property
    def total(self) -> float:
        return self.waited + self.cpu


@contextmanager
def cost(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cost]:
    """Of the one mirror that is made and closed within, by the thread that calls this."""
    found = Cost()
    training = threading.get_ident()

    def others() -> float:
        return time.process_time() - time.thread_time() + _of_children()

    def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        call = getattr(owner, name)

        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            of_training = threading.get_ident() == training
            return (partial(wrapper, call) if of_training else call)(*arguments, **keywords)

        patched.setattr(owner, name, wrapped)

    def mirror(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*arguments, **keywords)
        finally:
            found.cpu += time.thread_time() - began

    def close(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        found.cpu += others() - before
        return mirror(call, *arguments, **keywords)

    def join(call: Callable[..., Any], thread: threading.Thread, timeout: float = math.inf) -> None:
        began = time.monotonic()
        call(thread, None if timeout == math.inf else timeout)
        found.waited += min(timeout, time.monotonic() - began)

    def enter(name: str) -> Callable[..., Any]:
        def entering(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            found.entered.append(name)
            return call(*arguments, **keywords)

        return entering

    before = others()
    with monkeypatch.context() as patched:
        for name, wrapper in {"__init__": mirror, "log": mirror, "close": close}.items():
            wrap(WandbMirror, name, wrapper)
        wrap(threading.Thread, "join", join)
        for owner, names in {wandb: ("setup", "login", "init", "teardown"), wandb.Run: ("log", "finish")}.items():
            for name in names:
                wrap(owner, name, enter(name))
        yield found


def _of_children() -> float:
    """Seconds of the processor that this process's children have taken, those that live and those that have ended."""
    ended = os.times()
    living = sum(int(fields[11]) + int(fields[12]) for fields in _children())
    return ended.children_user + ended.children_system + living / os.sysconf("SC_CLK_TCK")


def _children() -> list[list[str]]:
    """The fields of /proc/PID/stat, from the state on, of this process's children."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended meanwhile
            found.append(stat.read_text().rpartition(")")[2].split())
    return [fields for fields in found if int(fields[1]) == os.getpid()]


def leaves_nothing_running() -> bool:
    """Whether this process's children end."""
    for _ in range(300):
        if all(fields[0] == "Z" for fields in _children()):
            return True
        time.sleep(0.1)
    return False


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


def check_figures(mirrored: Mirrored, *names: str) -> None:
    """That it has pictures of those names."""
    found = {key: value for point in mirrored.history for key, value in point.items() if key.startswith("figures/")}
    assert {key.partition(".")[0] for key in found} == {f"figures/{name}" for name in names}
    for name in names:
        assert found[f"figures/{name}._type"] == "image-file"
        content = (mirrored.folder / "files" / found[f"figures/{name}.path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == found[f"figures/{name}.sha256"]


def check_artifact(mirrored: Mirrored, run_dir: Path) -> None:
    """That it has every file of a run directory, with the bytes that are there, but for the checkpoint."""
    (artifact,) = [each for each in mirrored.artifacts if each["type"] == "run"]
    found = {entry["path"]: entry["digest"] for entry in artifact["manifest"]["contents"]}
    files = {path.relative_to(run_dir).as_posix(): path for path in run_dir.rglob("*") if path.is_file()}
    files.pop("checkpoint.pt", None)
    assert found == {n: base64.b64encode(hashlib.md5(f.read_bytes()).digest()).decode() for n, f in files.items()}
