"""`rpe-bench status`: what it counts, how soon it answers, and what it says of the time left."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rpe_bench import ledger
from rpe_bench.cli import main
from rpe_bench.locks import hold, lock_path, machine, start_of
from rpe_bench.status import Status, duration, rate

Capture = pytest.CaptureFixture[str]
AddRun = Callable[..., Path]


@pytest.fixture
def add(tmp_path: Path) -> AddRun:
    """A function that leaves a run directory under tmp_path."""

    def make(run_id: str, status: str, **facts: Any) -> Path:
        directory = tmp_path / "runs" / run_id
        directory.mkdir(parents=True)
        record = {"format": 1, "run_id": run_id, "status": status, "bytes": {}, "exception": None} | facts
        (directory / "run.json").write_text(json.dumps(record))
        return directory

    return make


def test_what_is_counted(add: AddRun, tmp_path: Path) -> None:
    add("copy-rope-quick-s0-0", "finished", train_seconds=50.0, evaluation_seconds=10.0)
    add("copy-rope-quick-s1-1", "failed", exception={"type": "ValueError", "message": "no\ngood"})
    add("copy-t5-quick-s0-2", "running")  # by nobody
    add("copy-t5-quick-s1-3", "interrupted")
    add("copy-t5-quick-s2-4", "failed", exception={"type": "ValueError", "message": "now tried again"})
    (add("sort-t5-quick-s0-5", "finished", bytes={"eval.csv": 9}) / "eval.csv").touch()
    (tmp_path / "runs" / "sort-t5-quick-s1-6").mkdir()
    (tmp_path / "runs" / ".hidden").mkdir()
    add("sort-t5-quick-s2-7", "finished", format=0)
    asked = ["copy-t5-quick-s2-4", "copy-t5-quick-s3-8", "copy-rope-quick-s0-0"]
    ledger.append(tmp_path, "sweep", runs=["older-x-y-s0-9"])
    me = {"machine": machine(), "started": start_of(os.getpid())}
    ledger.append(tmp_path, "sweep", runs=asked, **me)
    ledger.append(tmp_path, "started", run_id="copy-rope-quick-s0-0")
    ledger.append(tmp_path, "finished", run_id="copy-rope-quick-s0-0")
    with hold(lock_path(tmp_path, "copy-t5-quick-s2-4")), hold(lock_path(tmp_path, "copy-new-quick-s0-a")):
        lines = str(Status.of(tmp_path)).splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["task", "encoding", "finished", "running", "failed", "interrupted", "damaged", "waiting"],
        ["copy", "new", *"010000"],
        ["copy", "rope", *"101000"],
        ["copy", "t5", *"010201"],
        ["sort", "t5", *"000030"],
    ]
    counts, _, left = lines[5].rpartition(" an hour, ")
    assert counts.startswith("1 of 10 finished, 2 running, 1 failed, 2 interrupted, 3 damaged, 1 waiting, ")
    assert left.startswith("about 1 min 30 s") or left.startswith("about 60 s") or left.startswith("about 1 min ")
    assert lines[6:] == [
        "failed: copy-rope-quick-s1-1: ValueError: no good",
        "damaged: sort-t5-quick-s0-5: eval.csv has 0 bytes, not the 9 that were written",
        "damaged: sort-t5-quick-s1-6: run.json is missing or is not the record of a run",
        "damaged: sort-t5-quick-s2-7: run.json is of results format 0, not 1",
    ]


def test_time_left_is_that_of_the_same_encoding_and_survives_a_clock_set_back(add: AddRun, tmp_path: Path) -> None:
    add("copy-rope-quick-s0-0", "finished", train_seconds=100.0, evaluation_seconds=20.0)
    add("copy-nope-quick-s0-1", "finished", train_seconds=10.0, evaluation_seconds=2.0)
    started = datetime.now(UTC) - timedelta(seconds=30)
    add("copy-rope-quick-s1-2", "running", started=started.isoformat())
    with hold(lock_path(tmp_path, "copy-rope-quick-s1-2")):
        left = Status.of(tmp_path).seconds_left()
        assert left == pytest.approx(90, abs=5)
        later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        path = tmp_path / "runs" / "copy-rope-quick-s1-2" / "run.json"
        path.write_text(json.dumps({"status": "running", "started": later}))
        assert Status.of(tmp_path).seconds_left() == pytest.approx(120)
    assert Status.of(tmp_path).seconds_left() is None  # nothing runs


def test_a_run_on_another_host_is_on_its_way_while_its_heart_beats(add: AddRun, tmp_path: Path) -> None:
    add("copy-rope-quick-s0-0", "running")
    lock = lock_path(tmp_path, "copy-rope-quick-s0-0")
    lock.parent.mkdir()
    lock.write_text(json.dumps({"host": "far", "pid": 1, "machine": "far", "started": 1}))
    assert Status.of(tmp_path).states == {"copy-rope-quick-s0-0": "running"}
    os.utime(lock, (0, 0))
    assert Status.of(tmp_path).states == {"copy-rope-quick-s0-0": "interrupted"}


def test_the_command(add: AddRun, tmp_path: Path, capsys: Capture) -> None:
    assert main(["status", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(f"error: no runs in {tmp_path / 'none'}: there is no directory ")
    for number in range(12):
        add(f"copy-rope-quick-s{number}-0", "failed", exception={"type": "E", "message": "m"})
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "and 2 more"


def test_trials_of_learning_rates_are_shown_until_they_are_finished(
    add: AddRun, tmp_path: Path, capsys: Capture
) -> None:
    command = ["status", str(tmp_path)]

    def said() -> list[str]:
        assert main(command) == 0
        return [line for line in capsys.readouterr().out.splitlines() if not line.startswith(("task", "copy"))]

    trial = tmp_path / "lr_search" / "runs" / "copy-rope-quick-s1000-0"
    trial.mkdir(parents=True)
    (trial / "run.json").write_text('{"format": 1, "status": "interrupted"}')
    shown = [f"trials of learning rates, in {tmp_path / 'lr_search'}:", "0 of 1 finished, 1 interrupted"]
    assert said() == shown  # there are no other runs yet
    add("copy-rope-quick-s0-0", "finished")
    assert said() == [*shown, "", "1 of 1 finished"]
    (trial / "run.json").write_text((tmp_path / "runs" / "copy-rope-quick-s0-0" / "run.json").read_text())
    assert said() == ["1 of 1 finished"]


def test_ten_thousand_runs_take_seconds_and_no_torch(add: AddRun, tmp_path: Path) -> None:
    first = add("copy-rope-quick-s0-0", "finished", train_seconds=1.0, evaluation_seconds=1.0, bytes={"eval.csv": 1})
    (first / "eval.csv").write_text("\n")
    record = (first / "run.json").read_bytes()
    for number in range(1, 10_000):
        directory = f"{tmp_path}/runs/copy-rope-quick-s{number}-0"
        os.mkdir(directory)
        os.link(first / "eval.csv", f"{directory}/eval.csv")
        with open(f"{directory}/run.json", "wb") as file:
            file.write(record)
    code = f"import sys\nfrom rpe_bench.cli import main\nmain(['status', {str(tmp_path)!r}])\n"
    code += "assert not {'torch', 'numpy', 'pydantic', 'yaml'} & sys.modules.keys()"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert answer.stdout.splitlines()[-1] == "10000 of 10000 finished"
    # Of its own: others on the machine do not count.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (39.2, "40 s"), (130, "2 min 10 s"), (3900, "1 h 5 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("per_hour", "text"), [(0.412, "0.41 an hour"), (25.3, "25 an hour"), (24100.0, "24,100 an hour")]
)
def test_rates(per_hour: float, text: str) -> None:
    assert rate(per_hour) == text


# The ledger


def test_a_line_that_was_cut_short_costs_no_other(tmp_path: Path) -> None:
    ledger.append(tmp_path, "started", run_id="a")
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"event": "fini')
    ledger.append(tmp_path, "started", run_id="b")
    found = list(ledger.read(tmp_path))
    assert [entry["run_id"] for entry in found] == ["a", "b"]
    assert {"time", "event", "host", "pid", "user"} <= found[0].keys()
    assert list(ledger.read(tmp_path / "none")) == []


def test_a_ledger_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").mkdir()
    ledger.append(tmp_path, "started", run_id="a")
