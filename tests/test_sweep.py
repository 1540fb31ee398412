"""Sweeps: what is run and what is not, and that no run can harm another.

The runs here are real but for their encoding, `Misbehaving`, which does in its first forward pass what the test says.
"""

import contextlib
import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import finish

from rpe_bench import ledger, locks
from rpe_bench.cli import main
from rpe_bench.config import Config
from rpe_bench.errors import ConfigError
from rpe_bench.record import Record, put_in_place
from rpe_bench.schema import FORMAT
from rpe_bench.sweep.attempt import attempt
from rpe_bench.sweep.complaints import complaints
from rpe_bench.sweep.jobs import run_jobs
from rpe_bench.sweep.one import accuracies, run_one
from rpe_bench.sweep.places import mark
from rpe_bench.sweep.plan import Job
from rpe_bench.sweep.pool import gpus_of, run_pool, workers_of
from rpe_bench.sweep.progress import Progress, effort
from rpe_bench.sweep.records import describe_failure, is_finished, lock_of, record_failure

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
        if self.how == "vanish as if held":
            os._exit(75)
        if self.how == "signal":
            os.kill(os.getpid(), signal.SIGRTMIN + 5)
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
    assert progress[0] == "0/6 done, 2 running, 0 failed, ETA unknown until a run has finished"
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
    assert second.stdout == "3 jobs: 2 finished, 1 failed before, 0 to run; failed ones too\n"
    assert records(tmp_path / "results")["raise"]["status"] == "finished"
    assert records(tmp_path / "results")["fine"] == found["fine"]


def test_any_status_and_any_signal_ends_a_run_and_nothing_else(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    ways = command("encoding.how=vanish as if held,signal,fine")
    done = subprocess.run(ways, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    found = records(tmp_path / "results")
    assert found["fine"]["status"] == "finished"
    assert found["held"]["exception"]["message"] == "the process ended with status 75 before the run did"
    assert found["signal"]["exception"]["type"] == f"signal {signal.SIGRTMIN + 5}"


def test_an_early_death_is_not_taken_for_the_failure_of_an_earlier_attempt(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config()
    record_failure(config, "Old", "news", "")

    def work(config: Config) -> None:
        raise RuntimeError("new")

    assert not attempt(config, work)
    assert "RuntimeError: new" in describe_failure(config)


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
from rpe_bench.sweep import pool

def count(configs, work=None):
    pool.import_all(configs)
    print("threads", len(os.listdir("/proc/self/task")))
    raise SystemExit(0)

pool.run_pool = count
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


def test_failed_runs_are_counted_apart(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    configs = [make_config(overrides={"seed": seed}) for seed in range(3)]
    record_failure(configs[0], "ValueError", "no good", "")
    finish(configs[1])
    launched: list[Job] = []
    run_jobs([Job([], config) for config in configs], launched.extend)
    assert [job.config for job in launched] == [configs[0], configs[2]]
    assert capsys.readouterr().out == "3 jobs: 1 finished, 1 failed before, 1 to run; failed ones too\n"


def test_a_launcher_that_leaves_a_run_to_another_sweep_comes_back_to_it(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rpe_bench.sweep.waiting.POLL", 0.01)
    configs = [make_config(overrides={"seed": seed}) for seed in range(3)]
    attempts: list[int] = []

    def launch(todo: list[Job]) -> None:
        attempts.append(len(todo))
        for job in todo:
            if len(attempts) == 1 and job.config.seed < 2:
                continue  # someone else is at them
            finish(job.config)

    looks = {configs[0].run_id: 2, configs[1].run_id: 2}

    def is_held(watch: object, path: Path) -> bool:
        looks[path.name] -= 1
        if not looks[path.name] and path.name == configs[0].run_id:
            finish(configs[0])
        return looks[path.name] > 0

    monkeypatch.setattr("rpe_bench.sweep.jobs.look", lambda path: Seen() if path.name in looks else None)
    monkeypatch.setattr(locks.Watch, "is_held", is_held)
    assert run_jobs([Job([], config) for config in configs], launch) == 0
    assert attempts == [3, 1]


def test_a_lock_that_cannot_be_removed_is_not_come_back_to_for_ever(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched: list[int] = []

    def refuse(*_: object) -> None:
        raise ConfigError("cannot write there")

    def launch(todo: list[Job]) -> None:
        assert not launched
        launched.append(len(todo))
        lock_of(todo[0].config).parent.mkdir()
        lock_of(todo[0].config).write_text(json.dumps({"machine": locks.machine(), "pid": 2**22 + 1, "started": 1}))
        monkeypatch.setattr(
            "rpe_bench.sweep.places.check_writable", refuse
        )  # a file system that is read-only from now on
        monkeypatch.setattr(locks, "remove", refuse_to_remove)

    def refuse_to_remove(*_: object) -> bool:
        raise OSError(errno.EROFS, "Read-only file system")

    assert run_jobs([Job([], make_config())], launch) == 1
    assert "1 of 1 runs failed" in capsys.readouterr().err


class Seen:
    owner = {"host": "far", "pid": 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_run_that_is_interrupted_says_from_where_it_goes_on(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    config = make_config()
    from rpe_bench.train import loss_of

    def interrupt(model: Any, batch: Any) -> Any:
        signal.raise_signal(number)
        return loss_of(model, batch)

    with monkeypatch.context() as patched:
        patched.setattr("rpe_bench.train.loss_of", interrupt)
        assert run_one(config) == 130
    said = f"{config.run_id}: interrupted at step 1 of 4; the same command goes on from there\n"
    assert capsys.readouterr().err == said
    assert run_one(config) == 0
    assert json.loads((config.run_dir / "run.json").read_text())["resumed_from_step"] == 1
    dry = make_config(overrides={"sweep.dry_run": True})
    assert run_one(dry) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["1 job: 1 finished, 0 to run", f"finished     {dry.run_id}"]


def test_one_run_is_forced_or_left_where_it_failed(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config()
    record_failure(config, "ValueError", "no good", "")
    assert run_one(make_config(overrides={"sweep.retry_failed": False})) == 1
    assert capsys.readouterr().err.endswith("; sweep.retry_failed=true tries it again\n")
    assert run_one(config) == 0
    before = (config.run_dir / "run.json").read_text()
    assert run_one(make_config(overrides={"sweep.force": True})) == 0
    after = (config.run_dir / "run.json").read_text()
    assert json.loads(after)["status"] == "finished" and after != before


def test_two_may_force_a_run_at_the_same_moment(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(overrides={"sweep.force": True})
    monkeypatch.setattr("rpe_bench.sweep.places.is_whole", lambda directory: True)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", lambda path: False)  # when they look
        mark([config])
        mark([config])
    assert config.work_dir.is_dir()


def test_one_run_waits_for_another_process_that_is_at_it(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rpe_bench.sweep.waiting.POLL", 0.01)
    config = make_config()
    lock = lock_of(config)
    lock.parent.mkdir(parents=True)
    lock.write_text(json.dumps({"host": "far", "pid": 7, "machine": "far", "started": 1}))
    monkeypatch.setattr("rpe_bench.locks.STALE", 0.05)
    monkeypatch.setattr("rpe_bench.run.execute", lambda config, tell: finish(config))
    assert run_one(config) == 0
    out, err = capsys.readouterr()
    assert err == f"{config.run_id}: waiting for process 7 on far\n"
    assert out.splitlines()[-2:] == [
        f"{config.run_id}: finished, in {config.run_dir}",
        "token accuracy 0.250 at the training length 16 (chance 0.250), 0.250 at the longest length 32 (chance 0.250)",
    ]


def test_a_run_at_its_training_length_alone_has_one_accuracy(make_config: MakeConfig) -> None:
    for lengths, said in (([16], "the training length 16"), ([24], "the longest length 24")):
        config = make_config(overrides={"evaluation.lengths": lengths})
        finish(config)
        assert accuracies(config) == f"token accuracy 0.250 at {said} (chance 0.250)"


def test_one_run_that_hangs_is_ended(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(overrides={"sweep.timeout_minutes": 0.005})
    monkeypatch.setattr("rpe_bench.run.execute", lambda config, tell: time.sleep(600))
    assert run_one(config) == 1
    assert "Timeout: took longer than sweep.timeout_minutes=0.005" in capsys.readouterr().err.splitlines()[-1]
    monkeypatch.setattr("rpe_bench.run.execute", lambda config, tell: finish(config))
    assert run_one(make_config(overrides={"sweep.timeout_minutes": 5.0})) == 0


def test_a_launcher_that_cannot_end_a_run_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    assert main(["run", "-m", "hydra/launcher=joblib", "sweep.timeout_minutes=1"]) == 2
    said = "error: sweep.timeout_minutes: is kept by hydra/launcher=pool and slurm, and not by JoblibLauncher\n"
    assert capsys.readouterr().err == said


def test_an_interrupt_at_the_very_last_moment_leaves_a_finished_run(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(config: Config, tell: object) -> None:
        finish(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("rpe_bench.run.execute", execute)
    assert run_one(make_config()) == 0
    assert capsys.readouterr().err == ""
    assert [entry["event"] for entry in ledger.read(tmp_path / "results")] == ["started", "finished"]


def test_the_same_run_in_two_places_is_two_jobs(make_config: MakeConfig, tmp_path: Path) -> None:
    jobs = [Job([], make_config(overrides={"results_dir": str(tmp_path / place)})) for place in "ab"]
    launched: list[Job] = []
    run_jobs(jobs, launched.extend)
    assert launched == jobs


def test_a_full_disk_is_found_before_training(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        assert os.fstat(descriptor).st_size >= 2**16
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot write there: No space left on device"):
        run_one(make_config())


@pytest.mark.parametrize(("blocked", "reason"), [(".", "Not a directory"), ("run.json", "Is a directory")])
def test_what_is_in_the_way_of_a_run_is_found_before_any_starts(
    make_config: MakeConfig, blocked: str, reason: str
) -> None:
    config = make_config()
    if blocked == ".":
        config.run_dir.parent.mkdir(parents=True)
        config.run_dir.touch()
    else:
        (config.run_dir / blocked).mkdir(parents=True)
    for start in (run_one, lambda config: run_jobs([Job([], config)], lambda todo: pytest.fail("started"))):
        with pytest.raises(ConfigError, match=f"{config.run_id}: cannot hold the run: {reason}"):
            start(config)


def test_a_failure_that_cannot_be_recorded_is_said_and_the_others_go_on(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = (make_config(overrides={"seed": seed, "sweep.workers": 1}) for seed in (0, 1))

    def work(config: Config) -> None:
        if config is good:
            return finish(config)
        (config.run_dir / "run.json").mkdir(parents=True)
        raise ArithmeticError("lost count")

    run_pool([bad, good], work)
    lines = capsys.readouterr().err.splitlines()
    [said] = [line for line in lines if line.startswith("rpe-bench")]
    assert said.startswith(f"rpe-bench: {bad.run_id}: ") and said.endswith(
        "(run.json cannot be written: Is a directory)"
    )
    assert lines[-1].startswith("1/2 done, 1 failed")


def test_a_run_that_is_terminated_says_so(make_config: MakeConfig) -> None:
    config = make_config()
    run_pool([config], lambda config: os.kill(os.getpid(), signal.SIGTERM))
    assert describe_failure(config).startswith(f"{config.run_id}: SIGTERM: terminated (see")

    def work(config: Config) -> None:
        with Record(config):
            os.kill(os.getpid(), signal.SIGTERM)

    run_pool([config], work)
    assert describe_failure(config).startswith(f"{config.run_id}: terminated (see")


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
    monkeypatch.setattr("rpe_bench.run.execute", lambda *_: pytest.fail("run again"))
    assert run_one(config) == 0
    assert capsys.readouterr().out == f"{config.run_id}: finished already, in {config.run_dir}\n"


def test_where_all_is_finished_nothing_is_written(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config()
    finish(config)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("rpe_bench.sweep.places.check_writable", lambda place: pytest.fail("tried to write"))
    assert run_jobs([Job([], config)], lambda todo: pytest.fail("started")) == 0
    assert run_one(config) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_what_force_replaces_is_what_this_request_was_for(
    make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was cut short goes on with what it has left; another one starts with all that it asks for."""
    configs = [make_config(overrides={"seed": seed, "sweep.force": True}) for seed in range(3)]
    for config in configs:
        finish(config.model_copy(update={"sweep": config.sweep.model_copy(update={"force": False})}))

    def forced(which: list[int], fails: tuple[int, ...] = ()) -> list[int]:
        done = []

        def launch(todo: list[Job]) -> None:
            for job in todo:
                done.append(job.config.seed)
                if job.config.seed not in fails:
                    shutil.copytree(job.config.run_dir, job.config.work_dir, dirs_exist_ok=True)
                    put_in_place(job.config)

        assert run_jobs([Job([], configs[number]) for number in which], launch) == (1 if fails else 0)
        return done

    again = tmp_path / "results" / "again"
    assert forced([0, 1], fails=(1,)) == [0, 1]
    assert forced([0, 1, 2], fails=(2,)) == [0, 1, 2]
    for which, said in (([0, 1, 2], "3 jobs: 2 finished, 1 to run"), ([2, 1], "2 jobs: 0 finished, 2 to run")):
        dry = {"sweep.force": True, "sweep.dry_run": True}
        capsys.readouterr()
        run_jobs([Job([], make_config(overrides=dry | {"seed": seed})) for seed in which], pytest.fail)
        assert capsys.readouterr().out.splitlines()[0] == said
    assert forced([0, 1]) == [0, 1]  # what the other has left is not what this one had left
    assert [path.name for path in again.iterdir() if path.is_dir()] == [configs[2].run_id]
    assert forced([2, 1, 0]) == [2]
    assert list(again.iterdir()) == []
    assert forced([0, 1, 2]) == [0, 1, 2]
    assert list(again.iterdir()) == []


def test_what_a_killed_replacement_left_is_removed_or_put_back(make_config: MakeConfig, tmp_path: Path) -> None:
    replaced, lost = (make_config(overrides={"seed": seed}) for seed in range(2))
    again = tmp_path / "results" / "again"
    again.mkdir(parents=True)
    (again / "1234.json").write_text("[]")  # of a request that was killed after its last replacement
    for config in (replaced, lost):
        finish(config)
        shutil.copytree(config.run_dir, again / f"{config.run_id}.old")
    shutil.rmtree(lost.run_dir)
    assert run_jobs([Job([], replaced)], lambda todo: pytest.fail("started")) == 0
    assert [path.name for path in again.iterdir()] == [f"{lost.run_id}.old"]
    assert run_jobs([Job([], lost)], lambda todo: [attempt(job.config) for job in todo]) == 0
    assert list(again.iterdir()) == [] and is_finished(lost)


def test_the_jobs_of_a_sweep_that_are_wrong_are_told_apart_by_what_differs() -> None:
    jobs = [[f"encoding={e}", f"seed={s}", "tsk=1"] for e in "abc" for s in range(20)]
    assert complaints(jobs[:1], {0: ["x", "x"]}) == ["x"]
    assert complaints(jobs, dict.fromkeys(range(60), ["x"])) == ["all 60 jobs: x"]
    assert complaints(jobs, {0: ["x", "y"], 21: ["x"]}) == [
        "encoding=a seed=0: x",
        "encoding=a seed=0: y",
        "encoding=b seed=1: x",
    ]
    assert complaints([["encoding=a"], ["encoding=b"]], {1: ["encoding=b: no"]}) == ["encoding=b: no"]
    errors = {number: ["x"] for number in range(20)} | {20: ["y"], 40: ["z"], 41: ["z"]}
    assert complaints(jobs, errors) == [
        "20 of 60 jobs (encoding=a): x",
        "encoding=b seed=0: y",
        "2 of 60 jobs (first: encoding=c seed=0): z",
    ]


def test_ten_thousand_finished_runs_are_found_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In seconds of this process, for which others on the machine do not count."""
    monkeypatch.chdir(tmp_path)
    encodings = "encoding=nope,sinusoidal,learned,rope,alibi,t5,kerple,fire"
    command = ["run", "-m", encodings, "seed=range(1250)", "recipe=quick", "logger=csv"]
    began = time.process_time()
    assert main([*command, "sweep.dry_run=true"]) == 0
    assert time.process_time() - began < 15
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "10000 jobs: 0 finished, 10000 to run"
    run_ids = [line.split()[-1] for line in lines if line.startswith("would run ")]
    assert len(set(run_ids)) == 10_000
    (tmp_path / "eval.csv").write_text("\n")
    record = json.dumps({"format": FORMAT, "status": "finished", "bytes": {"eval.csv": 1}})
    for run_id in run_ids:
        directory = f"{tmp_path}/results/runs/{run_id}"
        os.makedirs(directory)
        os.link("eval.csv", f"{directory}/eval.csv")
        with open(f"{directory}/run.json", "w") as file:
            file.write(record)
    began = time.process_time()
    assert main(command) == 0
    assert time.process_time() - began < 15
    assert capsys.readouterr().out == "10000 jobs: 10000 finished, 0 to run\n"


# Progress


def test_a_process_that_takes_its_time_to_end_is_not_polled(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    shown: list[int] = []
    monkeypatch.setattr(Progress, "show", lambda progress, running: shown.append(len(running)))

    def work(config: Config) -> None:
        finish(config)
        os.closerange(3, 200)  # as the kernel does first when a process ends
        time.sleep(0.3)

    run_pool([config], work)
    assert len(shown) < 5


@pytest.mark.parametrize(("term", "width"), [("xterm", 20), ("dumb", 20)])
def test_a_terminal_gets_what_it_can_show(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], term: str, width: int
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((width, 24)))
    progress = Progress(3, 1.0, workers=1)
    progress.show([])
    progress.say(["news"])
    shown = capsys.readouterr().err
    if term == "dumb":
        assert shown == "0/3 done, 0 running, 0 failed, ETA unknown until a run has finished\nnews\n"
    else:
        assert shown == "\r0/3 done, 0 running\x1b[K\rnews\x1b[K\n"


def test_what_is_said_to_run_does(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line counts those that have started by then, and not only those that were left when another ended."""
    configs = [make_config(overrides={"seed": seed, "sweep.workers": 2}) for seed in range(4)]
    run_pool(configs, finish)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    for line in lines[:-1]:
        found = re.match(r"(\d)/4 done, (?:(\d) running, )?0 failed", line)
        assert found is not None and int(found[2] or 0) == min(2, 4 - int(found[1])), line


@pytest.mark.parametrize(("workers", "shares"), [(None, [1, 1]), (4, [2, 2])])
def test_jobs_are_spread_over_the_gpus(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int | None, shares: list[int]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5,-1,4")  # the last is not visible
    overrides = {"device": "cuda", "sweep.workers": workers}
    configs = [make_config(overrides=overrides | {"seed": seed}) for seed in range(sum(shares))]

    def work(config: Config) -> None:
        (tmp_path / f"{os.environ['CUDA_VISIBLE_DEVICES']}-{config.seed}").touch()
        while len(list(tmp_path.glob("[35]-*"))) < len(configs):  # all of them at once
            time.sleep(0.01)
        finish(config)

    run_pool(configs, work)
    assert [len(list(tmp_path.glob(f"{gpu}-*"))) for gpu in (3, 5)] == shares
    assert workers_of(configs) == sum(shares)
    assert gpus_of([make_config()]) == []


def test_more_threads_than_cores_are_remarked_on(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rpe_bench.sweep.pool.available_cores", lambda: 4)
    for threads in (2, 3):
        run_pool([make_config(overrides={"sweep.workers": 2, "threads": threads})], finish)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rpe-bench")]
    assert said == ["rpe-bench: 2 runs at once have 6 threads on 4 cores"]


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
