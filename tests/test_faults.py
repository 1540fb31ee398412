"""Sweeps that are killed, run out of room, or meet each other: the same command ends with what an undisturbed one has.

The sweeps are processes forked from that of the tests, which has imported everything already. The long form, of 50
kills each followed by the same command to its end: pytest -m long tests/test_faults.py
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from rpe_bench import ledger
from rpe_bench.config import Config
from rpe_bench.files import is_whole
from rpe_bench.sweep.attempt import perform
from rpe_bench.sweep.jobs import run_jobs
from rpe_bench.sweep.plan import Job
from rpe_bench.sweep.pool import GRACE, import_all, run_pool

MakeConfig = Callable[..., Config]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

SHORT = {"recipe.steps": 12, "recipe.log_every": 5, "checkpoint.steps": 3, "sweep.workers": 2}
TABLES = ("eval", "positions", "slices", "examples", "baselines")


@dataclass
class Sweep:
    """A sweep in a process of its own, at the head of a group."""

    process: BaseProcess
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def workers(self) -> list[int]:
        """Its children, by their numbers."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and fields[0] != "Z":
                found.append(int(path.parent.name))
        return found

    def end(self, timeout: float = 60) -> int:
        self.process.join(timeout)
        assert self.process.exitcode is not None, self.said
        return self.process.exitcode

    def kill(self, whom: str) -> None:
        assert self.process.pid is not None
        if whom == "worker":
            for worker in self.workers()[:1]:
                os.kill(worker, signal.SIGKILL)
        elif whom == "parent":
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.join()
        else:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    started: list[Sweep] = []
    import_all([])  # once, rather than by each sweep

    def go(configs: Sequence[Config], work: Callable[[Config], None] = perform) -> Sweep:
        log = tmp_path / f"log{len(started)}"

        def body() -> None:
            os.setsid()
            descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            jobs = [Job([], config) for config in configs]
            status = run_jobs(jobs, lambda todo: run_pool([job.config for job in todo], work))
            sys.stdout.flush()
            os._exit(status)

        process = get_context("fork").Process(target=body)
        process.start()
        started.append(Sweep(process, log))
        number = process.pid
        assert number is not None
        wait_until(lambda: os.getpgid(number) == number)  # before that there is no group to be killed
        return started[-1]

    yield go
    for one in started:
        if one.process.is_alive():
            one.kill("both")


@pytest.fixture
def configs(make_config: MakeConfig) -> Callable[..., list[Config]]:
    """Twelve short runs, wherever they are to go."""

    def make(results: Path, count: int = 12, **overrides: Any) -> list[Config]:
        changes = SHORT | {"results_dir": str(results)} | {k.replace("__", "."): v for k, v in overrides.items()}
        names = ("nope", "t5", "rope")
        return [make_config("copy", names[n % 3], changes | {"seed": n // 3}) for n in range(count)]

    return make


def tables(configs: Sequence[Config]) -> dict[str, list[bytes | list[str]]]:
    """What must not depend on what happened on the way."""
    found: dict[str, list[bytes | list[str]]] = {}
    for config in configs:
        found[config.run_id] = [(config.run_dir / f"{table}.csv").read_bytes() for table in TABLES]
        train = (config.run_dir / "train.csv").read_text().splitlines()
        found[config.run_id].append([line.rpartition(",")[0] for line in train])
    return found


def check_clean(results: Path) -> None:
    assert [path.name for path in (results / "locks").iterdir() if not path.name.startswith(".")] == []
    assert not [path for path in (results / "runs").rglob("*.tmp")]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Kills


def test_whoever_is_killed_the_same_command_ends_with_the_same_bytes(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    """A worker, the parent and both, twice each, at random moments, before the command is let go to its end."""
    seed = random.randrange(10**6)
    print("seed", seed)
    moments = random.Random(seed)
    reference = configs(tmp_path / "reference")
    began = time.monotonic()
    assert start(reference).end() == 0
    took = time.monotonic() - began
    runs = configs(tmp_path / "results")
    for whom in ["worker", "parent", "both"] * 2:
        disturbed = start(runs)
        time.sleep(moments.uniform(0, took / 5))
        disturbed.kill(whom)
        if whom == "worker":
            disturbed.kill("both")
    last = start(runs)
    assert last.end() == 0, last.said
    assert tables(runs) == tables(reference)
    check_clean(tmp_path / "results")


@pytest.mark.long
@pytest.mark.parametrize("whom", ["worker", "parent", "both"])
def test_fifty_kills_each_followed_by_the_same_command(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path, whom: str
) -> None:
    moments = random.Random(whom)
    reference = configs(tmp_path / "reference")
    began = time.monotonic()
    assert start(reference).end() == 0
    took = time.monotonic() - began
    for _ in range(50):
        runs = configs(tmp_path / "results")
        disturbed = start(runs)
        time.sleep(moments.uniform(0, took))
        disturbed.kill(whom)
        disturbed.end(60 + 10 * took)
        again = start(runs)
        assert again.end(60 + 10 * took) == 0, disturbed.said + again.said
        assert tables(runs) == tables(reference)
        check_clean(tmp_path / "results")
        shutil.rmtree(tmp_path / "results")


def test_a_killed_worker_is_recorded_with_its_signal_and_goes_on_from_its_checkpoint(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    runs = configs(tmp_path / "results", 2)
    victim, other = runs

    def work(config: Config) -> None:
        if config.run_id == victim.run_id:
            from rpe_bench import record

            write = record.Record.checkpoint

            def then_die(self: Any, state: Any) -> None:
                write(self, state)
                os.kill(os.getpid(), signal.SIGKILL)

            record.Record.checkpoint = then_die  # type: ignore[method-assign]
        perform(config)

    first = start(runs, work)
    assert first.end() == 1
    record = json.loads((victim.run_dir / "run.json").read_text())
    assert (record["status"], record["exception"]["type"]) == ("failed", "SIGKILL")
    assert is_whole(other.run_dir)
    second = start(runs)
    assert second.end() == 0, second.said
    assert second.said.startswith("2 jobs: 1 finished, 1 failed before, 0 to run; failed ones too\n")
    assert json.loads((victim.run_dir / "run.json").read_text())["resumed_from_step"] == 3
    history = [(entry["event"], entry.get("reason", "")) for entry in ledger.read(tmp_path / "results")]
    assert sorted(event for event, _ in history) == [
        *["failed", "finished", "finished", "started", "started", "started"],
        *["sweep", "sweep", "sweep ended", "sweep ended"],
    ]
    assert any(reason.startswith("SIGKILL: killed") for _, reason in history)


def hang(config: Config) -> None:
    (config.results_dir / f"hanging-{config.run_id}").touch()
    time.sleep(600)


def test_ctrl_c_once_writes_checkpoints_and_twice_ends_at_once(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    long = configs(tmp_path / "results", 3, recipe__steps=10**6, checkpoint__steps=None, checkpoint__minutes=None)
    once = start(long)
    wait_until(lambda: len(list((tmp_path / "results").glob("runs/*/train.csv"))) == 2)
    assert once.process.pid is not None
    os.killpg(once.process.pid, signal.SIGINT)
    began = time.monotonic()
    assert once.end() == 130
    assert time.monotonic() - began < 10
    assert once.said.splitlines()[-1] == "interrupted: 0 of 3 finished; the same command runs the others"
    assert len(list((tmp_path / "results").glob("runs/*/checkpoint.pt"))) == 2
    records = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("runs/*/run.json")]
    assert {record["status"] for record in records} == {"interrupted"}
    assert all(record["exception"]["message"].startswith("interrupted at step ") for record in records)
    check_clean(tmp_path / "results")

    def stubborn(config: Config) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hang(config)

    twice = start(configs(tmp_path / "other", 2), stubborn)
    wait_until(lambda: len(list((tmp_path / "other").glob("hanging-*"))) == 2)
    assert twice.process.pid is not None
    os.kill(twice.process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert twice.process.is_alive()
    os.kill(twice.process.pid, signal.SIGINT)
    began = time.monotonic()
    assert twice.end() == 130
    assert time.monotonic() - began < GRACE / 2


def test_a_run_that_hangs_is_killed_and_recorded(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    runs = configs(tmp_path / "results", 2, sweep__timeout_minutes=0.02, sweep__workers=1)

    def work(config: Config) -> None:
        if config.run_id == runs[0].run_id:
            hang(config)
        perform(config.model_copy(update={"recipe": config.recipe.model_copy(update={"steps": 1})}))

    one = start(runs, work)
    assert one.end() == 1
    record = json.loads((runs[0].run_dir / "run.json").read_text())
    assert record["exception"]["type"] == "Timeout"
    assert "Timeout: took longer than sweep.timeout_minutes=0.02" in one.said


# Two at once


def test_two_sweeps_share_the_work(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    runs = configs(tmp_path / "results", 8)
    both = [start(runs), start(runs)]
    assert [one.end() for one in both] == [0, 0], both[0].said + both[1].said
    assert all(is_whole(config.run_dir) for config in runs)
    started = [entry for entry in ledger.read(tmp_path / "results") if entry["event"] == "started"]
    assert sorted(entry["run_id"] for entry in started) == sorted(config.run_id for config in runs)
    check_clean(tmp_path / "results")


def test_what_another_sweep_leaves_is_taken_up(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    runs = configs(tmp_path / "results", 2)
    first = start(runs, hang)
    wait_until(lambda: len(list((tmp_path / "results").glob("hanging-*"))) == 2)
    second = start(runs)
    wait_until(lambda: "2 jobs" in second.said)
    time.sleep(0.5)
    assert not list((tmp_path / "results").glob("runs/*/train.csv"))
    first.kill("both")
    assert second.end() == 0, second.said


# No room


def mount(place: Path, options: str) -> bool:
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, small and in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mount(place, "size=16m"):
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_where_nothing_can_be_written_any_more_the_sweep_stops_and_goes_on_later(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path, disk: Path, trouble: str
) -> None:
    reference, runs = configs(tmp_path / "reference", 6), configs(disk / "results", 6, sweep__workers=1)
    assert start(reference).end() == 0
    first = start(runs)
    wait_until(lambda: sum(is_whole(config.run_dir) for config in runs) >= 2)
    if trouble == "full":
        with (disk / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(2**12))
            except OSError as error:
                assert error.errno == errno.ENOSPC
        reason = "No space left on device"
    else:
        remount = ["mount", "-o", "remount,ro", str(disk)]
        wait_until(lambda: subprocess.run(remount, capture_output=True).returncode == 0)
        reason = "Read-only file system"
    assert first.end() == 1, first.said
    assert f"results_dir={disk / 'results'}: cannot write there: {reason}; " in first.said
    assert "Traceback" not in first.said
    finished = [config for config in runs if is_whole(config.run_dir)]
    assert 2 <= len(finished) < 6
    assert tables(finished) == {key: value for key, value in tables(reference).items() if key in tables(finished)}

    if trouble == "full":
        (disk / "filler").unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    second = start(runs)
    assert second.end() == 0, second.said
    assert tables(runs) == tables(reference)
    if trouble == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        third = start(runs)
        assert third.end() == 0, third.said
        assert third.said == "6 jobs: 6 finished, 0 to run\n"


# Damage


@pytest.mark.parametrize("name", ["eval.csv", "run.json", "checkpoint.pt"])
def test_what_was_damaged_is_run_again(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path, name: str
) -> None:
    runs = configs(tmp_path / "results", 1)
    assert start(runs).end() == 0
    before = tables(runs)
    file = runs[0].run_dir / name
    for size in (0, file.stat().st_size // 2):
        os.truncate(file, size)
        again = start(runs)
        assert again.end() == 0
        assert again.said.startswith("1 job: 0 finished, 1 to run\n")
        assert name in again.said or name == "run.json"
        assert tables(runs) == before


# What the options do


def test_force_replaces_what_was_finished_once_the_new_run_is(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    runs = configs(tmp_path / "results", 2)
    assert start(runs).end() == 0
    before = [(config.run_dir / "run.json").read_text() for config in runs]
    forced = configs(tmp_path / "results", 2, sweep__force=True)

    def fail_one(config: Config) -> None:
        if config.run_id == runs[1].run_id:
            raise ArithmeticError("lost count")
        perform(config)

    first = start(forced, fail_one)
    assert first.end() == 1
    assert "ArithmeticError: lost count" in first.said
    assert all(is_whole(config.run_dir) for config in runs)
    after = [(config.run_dir / "run.json").read_text() for config in runs]
    assert after[0] != before[0] and after[1] == before[1]
    second = start(forced)  # goes on with the one that is left
    assert second.end() == 0
    final = [(config.run_dir / "run.json").read_text() for config in runs]
    assert final[0] == after[0] and final[1] != before[1]
    assert list((tmp_path / "results" / "again").iterdir()) == []
    assert json.loads(final[0])["status"] == "finished"


def test_a_replacement_that_was_cut_short_is_completed(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    [run] = configs(tmp_path / "results", 1)
    assert start([run]).end() == 0
    again = tmp_path / "results" / "again"
    again.mkdir()
    shutil.copytree(run.run_dir, again / run.run_id)
    run.run_dir.rename(again / f"{run.run_id}.old")
    assert start([run], hang).end() == 0
    assert is_whole(run.run_dir) and list(again.iterdir()) == []


def test_failed_runs_may_be_left_as_they_are(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    runs = configs(tmp_path / "results", 3)

    def fail_one(config: Config) -> None:
        if config.run_id == runs[1].run_id:
            raise ArithmeticError("lost count")
        perform(config)

    assert start(runs[:2], fail_one).end() == 1
    left = start(configs(tmp_path / "results", 3, sweep__retry_failed=False))
    assert left.end() == 1
    assert left.said.startswith("3 jobs: 1 finished, 1 failed before, 1 to run; failed ones are left\n")
    assert "ArithmeticError: lost count" in left.said
    assert is_whole(runs[2].run_dir)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    configs: Callable[..., list[Config]], start: Callable[..., Sweep], tmp_path: Path
) -> None:
    dry = configs(tmp_path / "results", 3, sweep__dry_run=True)
    nothing = start(dry)
    assert nothing.end() == 0
    assert nothing.said.splitlines() == [
        "3 jobs: 0 finished, 3 to run",
        *(f"would run    {config.run_id}" for config in dry),
        "time: unknown until a run has finished",
    ]
    assert not (tmp_path / "results").exists()
    assert start(configs(tmp_path / "results", 1)).end() == 0
    some = start(dry)
    assert some.end() == 0
    lines = some.said.splitlines()
    assert lines[:2] == ["3 jobs: 1 finished, 2 to run", f"finished     {dry[0].run_id}"]
    assert lines[-1].startswith("time: ") and lines[-1].endswith(" s, 2 at once")
    again = start(configs(tmp_path / "results", 3, sweep__dry_run=True, sweep__force=True))
    assert again.end() == 0
    lines = again.said.splitlines()
    assert lines[:2] == ["3 jobs: 0 finished, 3 to run", f"would run    {dry[0].run_id}"]
    new = start(configs(tmp_path / "results", 1, sweep__dry_run=True, recipe__steps=24))  # by another run in that place
    assert new.end() == 0
    assert new.said.splitlines()[-1].endswith(" s, 2 at once")
