"""Sweeps: what is run and what is not, and that no run can harm another.

The runs here are real but for their encoding, `Misbehaving`, which does in its first forward pass what the test says.
"""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpe_bench import sweep
from rpe_bench.config import Config
from rpe_bench.errors import ConfigError
from rpe_bench.sweep import Job, Progress, duration, effort, run_jobs, run_one

MakeConfig = Callable[..., Config]

MISBEHAVING = """
import os, signal, sys, time
from pathlib import Path
from rpe_bench.encodings.base import Encoding

class Misbehaving(Encoding):
    def __init__(self, geometry, how: str = "fine"):
        super().__init__(geometry)
        self.how = how

    def embed(self, x_BTD, positions=None, tokens_BT=None):
        print("noise from", self.how)
        if self.how == "raise":
            raise ArithmeticError("lost count")
        if self.how == "exit":
            sys.exit(0)
        if self.how == "vanish":
            os._exit(3)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "hang":
            Path(f"hanging-{os.getpid()}").touch()
            time.sleep(600)
        return x_BTD
"""

TINY = ["logger=csv", "model.dim=8", "model.heads=1", "recipe.batch_size=2", "recipe.steps=2", "sweep.workers=2"]
TINY += ["evaluation.examples=2", "evaluation.lengths=[4]", "encoding=nope", "encoding.target=misbehaving.Misbehaving"]


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    """The command of a sweep of tiny runs, for a process whose current directory is tmp_path."""
    (tmp_path / "misbehaving.py").write_text(MISBEHAVING)

    def make(*overrides: str) -> list[str]:
        return [sys.executable, "-m", "rpe_bench", "run", "-m", *TINY, *overrides]

    return make


def records(results: Path) -> dict[str, dict[str, Any]]:
    """How a run's encoding behaves -> its run.json."""
    found = {}
    for directory in (results / "runs").iterdir():
        how = next(line for line in (directory / "config.yaml").read_text().splitlines() if "how:" in line).split()[-1]
        found[how] = json.loads((directory / "run.json").read_text())
    return found


# In processes


def test_runs_do_not_harm_each_other_and_only_what_is_left_is_run_again(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    def go(ways: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(f"encoding.how={ways}"), cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    first = go("kill,raise,fine,exit,vanish,well")
    assert first.returncode == 1
    assert first.stdout == "6 jobs: 0 finished, 6 to run\n"
    progress, failures = first.stderr.splitlines()[:7], first.stderr.splitlines()[7:]
    assert progress[0] == "0/6 done, 0 failed, ETA unknown until a run has finished"
    assert progress[-1].startswith("2/6 done, 4 failed, took ")
    assert failures[0] == "4 of 6 runs failed:"
    reasons = [
        line.split(": ", 1)[1].partition(" (see results/runs/copy-nope-standard-s0-")[0] for line in failures[1:]
    ]
    assert reasons == [
        "SIGKILL: killed, as the kernel does where memory runs out",
        "ArithmeticError: lost count",
        "SystemExit: 0",
        "Exit: the process ended with status 3 before the run did",
    ]
    found = records(tmp_path / "results")
    assert {how: record["status"] for how, record in found.items()} == {
        "kill": "failed",
        "raise": "failed",
        "fine": "finished",
        "exit": "failed",
        "vanish": "failed",
        "well": "finished",
    }
    assert "Misbehaving" not in first.stdout and "noise" not in first.stdout + first.stderr
    assert "misbehaving.py" in found["raise"]["exception"]["traceback"]
    assert {path.name for path in tmp_path.iterdir()} <= {"misbehaving.py", "results", "__pycache__"}

    (tmp_path / "misbehaving.py").write_text(MISBEHAVING.replace('"raise"', '"never"'))
    second = go("raise,fine,well")
    assert second.returncode == 0
    assert second.stdout == "3 jobs: 2 finished, 1 to run\n"
    assert records(tmp_path / "results")["raise"]["status"] == "finished"
    assert records(tmp_path / "results")["fine"] == found["fine"]


def test_an_early_death_is_not_taken_for_the_failure_of_an_earlier_attempt(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config()
    sweep.record_failure(config, "Old", "news", "")

    def work(config: Config) -> None:
        raise RuntimeError("new")

    assert not sweep.attempt(config, work)
    assert "RuntimeError: new" in sweep.describe_failure(config)


def test_ctrl_c_ends_all_processes_and_says_how_to_go_on(command: Callable[..., list[str]], tmp_path: Path) -> None:
    sweeping = subprocess.Popen(
        command("encoding.how=hang", "seed=0,1,2"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("hanging-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(sweeping.pid, signal.SIGINT)  # as a terminal does
    interrupted = time.monotonic()
    _, err = sweeping.communicate(timeout=60)
    assert time.monotonic() - interrupted < 20  # at once, on a machine that has time
    assert sweeping.returncode == 130
    assert err.splitlines()[1:] == ["interrupted: 0 of 3 finished; the same command runs the others"]
    workers = [int(path.name.removeprefix("hanging-")) for path in tmp_path.glob("hanging-*")]
    assert len(workers) == 2
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_no_run_outlives_its_sweep(command: Callable[..., list[str]], tmp_path: Path) -> None:
    sweeping = subprocess.Popen(command("encoding.how=hang"), cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (started := list(tmp_path.glob("hanging-*"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    sweeping.kill()
    sweeping.wait()
    worker = Path("/proc") / started[0].name.removeprefix("hanging-")
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not worker.exists()


def test_a_terminal_sees_one_line_that_changes(command: Callable[..., list[str]], tmp_path: Path) -> None:
    our_end, terminal = pty.openpty()
    sweeping = subprocess.Popen(
        command("encoding.how=fine,well"), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # which is how Linux says that a terminal has no other end left
        while part := os.read(our_end, 4096):
            shown += part
    os.close(our_end)
    assert sweeping.wait() == 0
    assert shown.count(b"\n") == 1
    last = shown.decode().rstrip().split("\r")[-1]
    assert last.startswith("2/2 done, 0 failed, took ") and b"noise" not in shown


def test_the_parent_starts_no_threads_before_it_forks(tmp_path: Path) -> None:
    script = """
import os
from rpe_bench.cli import main
import rpe_bench.sweep as sweep

def count(configs, work=None):
    sweep._import_all(configs)
    print("threads", len(os.listdir("/proc/self/task")))
    raise SystemExit(0)

sweep.run_pool = count
main(["run", "-m", "seed=0,1", "logger.mode=offline"])
"""
    answer = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout.endswith("threads 1\n")


def test_joblibs_launcher(command: Callable[..., list[str]], tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    answer = subprocess.run(
        command("encoding.how=raise,fine", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 1
    assert "ArithmeticError: lost count" in answer.stderr and "Traceback" not in answer.stderr
    assert {how: record["status"] for how, record in records(tmp_path / "results").items()} == {
        "raise": "failed",
        "fine": "finished",
    }
    assert {path.name for path in tmp_path.iterdir()} <= {"misbehaving.py", "results", "__pycache__"}


# What is run


def finish(config: Config) -> None:
    config.run_dir.mkdir(parents=True, exist_ok=True)
    (config.run_dir / "run.json").write_text('{"status": "finished"}')


@pytest.mark.parametrize(
    "record", [None, "", '{"status": "fini', "[]", '{"status": "running"}', '{"status": "failed"}']
)
def test_only_a_finished_run_is_left_out(make_config: MakeConfig, record: str | None) -> None:
    config = make_config()
    if record is not None:
        config.run_dir.mkdir(parents=True)
        (config.run_dir / "run.json").write_text(record)
    launched: list[Job] = []
    run_jobs([Job([], config)], lambda todo: [finish(job.config) for job in todo] and launched.extend(todo))
    assert len(launched) == 1
    run_jobs([Job([], config)], launched.extend)
    assert len(launched) == 1


def test_equal_jobs_are_run_once(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job([], make_config(overrides=overrides)) for overrides in ({}, {"seed": 1}, {"sweep.workers": 1})]
    launched: list[Job] = []
    assert run_jobs(jobs, launched.extend) == 1  # nothing has been done
    assert launched == jobs[:2]
    out, err = capsys.readouterr()
    assert out == "2 jobs: 0 finished, 2 to run\n"
    assert err.splitlines() == ["2 of 2 runs failed:", *(f"{job.config.run_id}: did not run" for job in jobs[:2])]


def test_where_nothing_can_be_written_nothing_is_started(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = make_config(overrides={"results_dir": str(tmp_path / "file")})
    with pytest.raises(ConfigError, match=r"results_dir=.*/file: cannot write there: Not a directory"):
        run_one(config)
    with pytest.raises(ConfigError, match="results_dir="):
        run_jobs([Job([], config)], lambda todo: pytest.fail("started"))


def test_a_finished_run_is_not_run_again(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config()
    finish(config)
    monkeypatch.setattr("rpe_bench.run.execute", lambda config: pytest.fail("run again"))
    assert run_one(config) == 0
    assert capsys.readouterr().out == f"{config.run_id}: finished already, in {config.run_dir}\n"


# Progress


def test_cores_are_those_of_the_container_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def cores(limit: str) -> int:
        monkeypatch.setattr(Path, "read_text", lambda path: limit)
        return sweep.available_cores()

    assert [cores(limit) for limit in ("max 100000", "250000 100000", "50000 100000")] == [8, 2, 1]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (39.2, "40 s"), (130, "2 min 10 s"), (3900, "1 h 5 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_estimate_weighs_runs_by_their_length(make_config: MakeConfig) -> None:
    short, long = (effort(make_config(overrides={"recipe.steps": steps})) for steps in (10, 1000))
    assert long > 50 * short
    progress = Progress(4, short + 3 * long, workers=2)
    assert progress.seconds_left([]) is None
    progress.spent, progress.seconds = short, 1.0
    ratio = long / short  # seconds of a long run
    progress.waiting = 2 * long
    assert progress.seconds_left([]) == pytest.approx(ratio)  # two workers
    progress.waiting = long
    assert progress.seconds_left([(long, ratio / 2)]) == pytest.approx(0.75 * ratio)
    progress.waiting = 0
    assert progress.seconds_left([(long, 0.0)]) == pytest.approx(ratio)  # the other worker cannot help
    assert progress.seconds_left([(short, 5.0)]) == 0  # longer than thought
