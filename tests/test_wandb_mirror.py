"""The W&B mirror: that it says what the CSV files say, and that nothing of it can stop, slow or change a run.

Offline runs are read back with `wandb leet inspect`. What starts W&B does so in a forked process, as a sweep's jobs do,
with none of the settings, keys or home directory of whoever runs the tests.
"""

import csv
import json
import math
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rpe_bench import wandb_mirror
from rpe_bench.config import Config
from rpe_bench.record import Record
from rpe_bench.schema import TABLES
from rpe_bench.wandb_mirror import AXES, WandbMirror, bin_positions, points, preload

CURVES = {"loss", "perplexity", "accuracy"}


@pytest.fixture(autouse=True)
def _stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no settings, no home directory, no terminal and a working directory to be kept clean."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    return make_config(
        "copy", "alibi", {"logger.name": "wandb", "logger.mode": "offline", "logger.tags": ["mine", "copy"]}
    )


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
    """A table of each kind, in numbers that rounding would change."""
    lengths = [(8, "train_lengths"), (16, "train_lengths"), (64, "extrapolation")]
    train = [(step, 64 * step, 1 / (3 * step), 1e-3 / step, 1 / 7, 1e5 / 3) for step in (50, 100, 150)]
    evaluation = [(n, split, 640, 640 * n, 1 / n, math.exp(1 / n), 1 - 1 / n, 1 / 3) for n, split in lengths]
    memorised = [(16, 2000, 2000, 1 / 7, math.exp(1 / 7), 1 - 1 / 7, 2 / 3)]
    positions = [(n, p, 640, 1 / (p + n), math.exp(1 / (p + n)), 1 / (p + 1)) for n in (8, 16) for p in range(n, 2 * n)]
    slices = [(8, "distance", d, 320, 320, 1 / d, 1 / (d + 1)) for d in (1, 2, 3)]
    baselines = [(n, 1 / 3, 1 / n) for n in (8, 16, 64)]
    tuples: dict[str, list[Any]] = {
        "train": train,
        "eval": evaluation,
        "training_set": memorised,
        "positions": positions,
        "slices": slices,
        "baselines": baselines,
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


def fail(config: Config) -> None:
    with pytest.raises(ValueError, match="too\nbad"):
        write(config, ValueError("too\nbad"))


@dataclass
class Mirrored:
    """What W&B holds of one offline run."""

    folder: Path
    run: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
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
            elif record["type"] == "exit":
                mirrored.exit_code = content.get("exit_code", 0)
        return mirrored

    def curve(self, name: str, axis: str) -> dict[float, float]:
        return {point[axis]: point[name] for point in self.history if name in point}

    def table(self, name: str) -> list[dict[str, Any]]:
        (file,) = (self.folder / "files" / "media" / "table" / "tables").glob(f"{name}_*.table.json")
        content = json.loads(file.read_text())
        return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def read_csv(config: Config, name: str) -> list[dict[str, Any]]:
    def value(text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text

    with (config.run_dir / f"{name}.csv").open() as file:
        return [{key: value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def test_it_holds_the_numbers_of_the_csv_files(config: Config) -> None:
    in_processes(lambda: write(config))
    mirrored = Mirrored.read(config.results_dir, config.run_id)

    train = read_csv(config, "train")
    assert len(train) == 3
    for column in list(TABLES["train"])[1:]:
        assert mirrored.curve(f"train/{column}", "step") == {row["step"]: row[column] for row in train}
    for prefix in ("eval", "training_set"):
        chosen = read_csv(config, prefix)
        for column in ("loss", "perplexity", "token_accuracy", "exact_match", "tokens", "examples"):
            assert mirrored.curve(f"{prefix}/{column}", "length") == {row["length"]: row[column] for row in chosen}
        assert all(mirrored.summary[f"{prefix}/exact_match_L{row['length']:g}"] == row["exact_match"] for row in chosen)
    for column in ("chance", "majority"):
        expected = {row["length"]: row[column] for row in read_csv(config, "baselines")}
        assert mirrored.curve(f"baselines/{column}", "length") == expected
    positions = read_csv(config, "positions")
    for length in (8, 16):
        for column in CURVES:
            expected = {row["position"]: row[column] for row in positions if row["length"] == length}
            assert mirrored.curve(f"positions/{column}_L{length}", "position") == expected
    for name in ("eval", "training_set", "positions", "slices", "baselines"):
        assert mirrored.table(name) == read_csv(config, name)


def test_it_says_what_run_it_is(config: Config) -> None:
    in_processes(lambda: write(config))
    mirrored = Mirrored.read(config.results_dir, config.run_id)
    run = mirrored.run
    assert run["run_id"] == run["display_name"] == config.run_id
    assert run["project"] == "rpe_bench" and run["run_group"] == "copy" and run["job_type"] == "train"
    assert run["tags"] == ["alibi", "copy", "quick", "mine"]
    assert run["config"]["update"].items() >= config.as_dict().items()
    axes = {"train": "step", "validation": "step", "eval": "length", "training_set": "length", "baselines": "length"}
    axes |= {"floor": "length", "positions": "position", "floor_positions": "position"}
    assert {name: axis for name, axis in mirrored.metrics.items() if axis} == {f"{k}/*": v for k, v in axes.items()}
    assert mirrored.summary["status"] == "finished" and mirrored.summary["parameters"] == 1234
    assert mirrored.exit_code == 0
    assert list(Path.cwd().iterdir()) == []


def test_jobs_at_once_each_have_a_run_of_their_own(config: Config, make_config: Callable[..., Config]) -> None:
    other = make_config("copy", "rope", {"logger.name": "wandb", "logger.mode": "offline", "logger.group": "ours"})
    in_processes(lambda: write(config), lambda: fail(other))
    good, bad = (Mirrored.read(config.results_dir, each.run_id) for each in (config, other))
    assert good.exit_code == 0 and bad.exit_code == 1
    assert bad.summary["status"] == "failed" and bad.summary["exception"] == "ValueError: too bad"
    assert good.run["run_group"] == "copy" and bad.run["run_group"] == "ours"
    assert len(good.history) == len(bad.history) > 20


def test_the_next_attempt_takes_the_place_of_a_failed_one(config: Config) -> None:
    def twice() -> None:
        fail(config)
        write(config)

    in_processes(twice)
    assert Mirrored.read(config.results_dir, config.run_id).exit_code == 0


def mirror(results_dir: Path, mode: Any = "online") -> WandbMirror:
    names: dict[str, Any] = {"project": "p", "entity": None, "group": "g", "tags": [], "config": {"a": 1}}
    return WandbMirror("task-encoding-quick-s0-01234567", results_dir, mode=mode, **names)


def mirror_online(results_dir: Path) -> None:
    wandb_mirror.INIT_SECONDS = 0.5
    wandb_mirror.CLOSE_SECONDS["online"] = 60.0  # the machine may be busy; patience has a test of its own
    online = mirror(results_dir)
    online.log("baselines", [{"length": 8, "chance": 0.5, "majority": 0.75}])
    online.close({"status": "finished"}, exit_code=0)


def check_it_went_offline(results_dir: Path, stderr: str, reason: str) -> None:
    (line,) = stderr.splitlines()
    assert line.startswith("rpe-bench: W&B mirror of task-encoding-quick-s0-01234567: offline instead of online")
    assert reason in line
    mirrored = Mirrored.read(results_dir, "task-encoding-quick-s0-01234567")
    assert f"`wandb sync {mirrored.folder}`" in line
    assert mirrored.curve("baselines/chance", "length") == {8: 0.5}
    assert mirrored.exit_code == 0


def test_online_without_a_key_goes_offline_without_asking(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    in_processes(lambda: mirror_online(tmp_path))
    check_it_went_offline(tmp_path, capfd.readouterr().err, "no API key")


def test_online_without_a_server_goes_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as bound:  # to a port on which nobody listens
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{bound.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        in_processes(lambda: mirror_online(tmp_path))
    check_it_went_offline(tmp_path, capfd.readouterr().err, "CommError")


def test_what_goes_wrong_in_wandb_is_one_line(
    config: Config, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(self: WandbMirror) -> None:
        raise RuntimeError("out of\norder")

    monkeypatch.setattr(WandbMirror, "_start", fail)
    write(config)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"rpe-bench: W&B mirror of {config.run_id}: incomplete after RuntimeError: out of order")
    assert json.loads((config.run_dir / "run.json").read_text())["status"] == "finished"
    assert len(read_csv(config, "eval")) == 3


def test_a_run_that_cannot_be_continued_is_still_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Run:
        finished: int | None = None

        def log(self, point: dict[str, Any]) -> None:
            raise OSError("disk full")

        def finish(self, exit_code: int) -> None:
            self.finished = exit_code

    run = Run()
    monkeypatch.setattr(WandbMirror, "_start", lambda self: run)
    broken = mirror(tmp_path, "offline")
    broken.log("baselines", [{"length": 8, "chance": 0.5, "majority": 0.75}])
    broken.close({}, exit_code=0)
    assert run.finished is not None
    (line,) = capfd.readouterr().err.splitlines()
    assert "incomplete after OSError: disk full" in line


def test_the_end_of_a_run_does_not_wait_for_a_mirror_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    let_go = threading.Event()

    def hang(self: WandbMirror) -> None:
        let_go.wait()
        raise RuntimeError("abandoned")

    monkeypatch.setattr(WandbMirror, "_start", hang)
    monkeypatch.setitem(wandb_mirror.CLOSE_SECONDS, "offline", 0.1)
    hung = mirror(tmp_path, "offline")
    hung.log("baselines", [{"length": 8, "chance": 0.5, "majority": 0.75}])
    started = time.monotonic()
    hung.close({}, exit_code=0)
    assert time.monotonic() - started < 5
    let_go.set()
    hung._thread.join(60)
    (line,) = capfd.readouterr().err.splitlines()  # and what it comes to later is not told again
    assert "incomplete, not waited for any longer than 0.1 s" in line


def test_a_run_that_became_an_offline_one_is_waited_for_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Run:
        settings = SimpleNamespace(sync_dir="there")
        summary: dict[str, Any] = {}
        finished: int | None = None

        def finish(self, exit_code: int) -> None:
            self.finished = exit_code

    run = Run()

    def slowly(self: WandbMirror, mode: str) -> Run:
        time.sleep(1)  # longer than the patience with a server
        return run

    monkeypatch.setattr(WandbMirror, "_init", slowly)
    for name in ("setup", "login", "teardown"):  # a login without a key
        monkeypatch.setattr(wandb_mirror.wandb, name, lambda *_, **__: False)
    monkeypatch.setitem(wandb_mirror.CLOSE_SECONDS, "online", 0.2)
    mirror(tmp_path, "online").close({"status": "finished"}, exit_code=0)
    assert run.finished == 0 and run.summary == {"status": "finished"}
    (line,) = capfd.readouterr().err.splitlines()
    assert "offline instead of online (no API key)" in line


def test_the_patience_with_a_server_is_five_seconds_in_all() -> None:
    assert wandb_mirror.CLOSE_SECONDS["online"] + wandb_mirror.FINISH_SECONDS <= 5.5
    assert wandb_mirror.INIT_SECONDS < wandb_mirror.CLOSE_SECONDS["online"]


def position_rows(length: int, positions: range, loss: Callable[[int], float]) -> list[dict[str, Any]]:
    values = ((length, p, 10 + p, loss(p), math.exp(loss(p)), 1 / (p + 1)) for p in positions)
    return [dict(zip(TABLES["positions"], row, strict=True)) for row in values]


def test_few_positions_are_not_binned() -> None:
    rows = position_rows(8, range(8, 16), lambda p: 1 / p)
    assert bin_positions(rows, 8) == rows


def test_bins_are_means_over_tokens() -> None:
    rows = position_rows(8, range(5), lambda p: float(p)) + position_rows(4, range(2), lambda p: 0.1)
    first, second, third, *short = bin_positions(rows, 3)
    assert [row["position"] for row in (first, second, third)] == [1, 3, 4]
    assert first["tokens"] == 10 + 11
    assert first["loss"] == pytest.approx((10 * 0 + 11 * 1) / 21)
    assert first["perplexity"] == pytest.approx(math.exp(first["loss"]))
    assert first["accuracy"] == pytest.approx((10 * 1 + 11 / 2) / 21)
    assert second["loss"] == pytest.approx((12 * 2 + 13 * 3) / 25)
    assert third == rows[4] | {"perplexity": pytest.approx(rows[4]["perplexity"])}
    assert short == rows[5:]


def test_a_bin_of_great_loss_has_infinite_perplexity() -> None:
    (row,) = bin_positions(
        [dict(zip(TABLES["positions"], (8, p, 1, 1e3, math.inf, 0.0), strict=True)) for p in (0, 1)], 1
    )
    assert row["perplexity"] == math.inf


def test_lengths_share_the_points_at_a_position() -> None:
    rows = position_rows(8, range(2), float) + position_rows(16, range(1, 3), float)
    drawn = list(points("positions", rows))
    assert [point["position"] for point in drawn] == [0, 1, 2]
    assert set(drawn[1]) == {"position"} | {f"positions/{column}_L{length}" for column in CURVES for length in (8, 16)}


def test_floors_are_curves_beside_what_they_are_the_floor_of() -> None:
    assert {axis for table, axis in AXES.items() if table.startswith("floor")} == {"length", "position"}
    rows = [{key: row[key] for key in TABLES["floor_positions"]} for row in position_rows(8, range(6), lambda p: 0.5)]
    drawn = list(points("floor_positions", bin_positions(rows, 3)))
    assert [point["position"] for point in drawn] == [1, 3, 5]
    curves = {"floor_positions/loss_L8": 0.5, "floor_positions/perplexity_L8": pytest.approx(math.exp(0.5))}
    assert drawn[0] == {"position": 1} | curves
    (point,) = points("floor", [{"length": 8, "tokens": 9, "loss": 0.5, "perplexity": 1.6}])
    assert point == {"length": 8, "floor/tokens": 9, "floor/loss": 0.5, "floor/perplexity": 1.6}


def test_slices_have_no_curve() -> None:
    assert list(points("slices", rows()["slices"])) == []


def test_checks_of_early_stopping_are_drawn_against_steps() -> None:
    rows = [dict(zip(TABLES["validation"], (step, 16, 256, 4096, 1.5, 4.5, 0.5, 0.25), strict=True)) for step in (5, 9)]
    drawn = list(points("validation", rows))
    assert [point["step"] for point in drawn] == [5, 9]
    assert drawn[0]["validation/exact_match"] == 0.25 and "validation/step" not in drawn[0]
