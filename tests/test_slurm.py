"""Sweeps on a cluster: that what becomes of tasks and of the command that submitted them costs no run and repeats none.

Those marked `slurm` need one, and are skipped where none answers:

    eval "$(scripts/slurm_here.sh start /tmp/slurm)"    # as root, on Debian; `stop /tmp/slurm` ends it
    pytest -m slurm tests/test_slurm.py
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import finish

from rpe_bench import catalogue, ledger
from rpe_bench.cli import main
from rpe_bench.config import Config
from rpe_bench.cores import available_cores
from rpe_bench.errors import ConfigError
from rpe_bench.locks import look, machine, start_of
from rpe_bench.slurm import COMMANDS, Options, Queue, Share, View, divide, is_over, run_tasks, states
from rpe_bench.sweep.pool import import_all
from rpe_bench.sweep.records import is_finished, lock_of, record_failure, record_of

MakeConfig = Callable[..., Config]
Capture = pytest.CaptureFixture[str]

# Without a cluster


def refused(capsys: Capture, *overrides: str) -> str:
    """The line by which a sweep of two seeds is refused."""
    assert main(["run", "-m", "logger=csv", "seed=0,1", "hydra/launcher=slurm", *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == "" and not Path("results").exists()
    [line] = err.splitlines()
    return line


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A function that puts a stand-in for one of SLURM's commands, a line of shell, on a PATH that has it in the place
    of the real one; all are there from the start, and fail."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, line: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)

    for name in COMMANDS:
        put(name, "echo 'error: no cluster' >&2; exit 1")
    return put


Commands = Callable[[str, str], None]


def test_without_the_extra_one_line_names_it(
    capsys: Capture, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hydra_plugins.hydra_submitit_launcher", None)
    monkeypatch.delitem(sys.modules, "hydra_plugins.rpe_bench._slurm", raising=False)
    assert refused(capsys).startswith(
        "error: hydra/launcher=slurm: needs the extra slurm, as by pip install -e '.[slurm]'"
    )


def test_where_there_is_no_slurm_one_line_says_so(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(capsys) == "error: hydra/launcher=slurm: finds no sbatch on the PATH (sweeps start on a login node)"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hydra.launcher.timeout_min=-5", "hydra.launcher.timeout_min=-5: must be at least 1"),
        ("hydra.launcher.runs_per_task=0", "hydra.launcher.runs_per_task=0: must be at least 1"),
        ("hydra.launcher.signal_delay_s=3", "hydra.launcher.signal_delay_s=3: must be at least 10"),
        (
            "hydra.launcher.timeout_min=3",
            "hydra.launcher.signal_delay_s=120: must be at most 90, half of hydra.launcher.timeout_min=3",
        ),
        ("hydra.launcher.requeue=maybe", "hydra.launcher.requeue=maybe: must be true or false"),
        ("hydra.launcher.partion=main", "hydra.launcher.partion"),
        ("device=cuda", "all 2 jobs: device=cuda: the launcher asks for no GPU (choose cpu or auto)"),
    ],
)
def test_a_wrong_option_is_one_line(capsys: Capture, commands: Commands, override: str, said: str) -> None:
    assert refused(capsys, override).startswith(f"error: {said}")


def test_one_run_is_not_run_here_instead(capsys: Capture, commands: Commands) -> None:
    assert main(["run", "logger=csv", "hydra/launcher=slurm"]) == 2
    assert capsys.readouterr().err == "error: hydra/launcher=slurm: goes with -m, for one run too\n"


def test_a_dry_run_asks_no_cluster_and_knows_of_the_gpus_of_nodes(capsys: Capture, commands: Commands) -> None:
    ids = []
    for overrides in ([], ["hydra.launcher.gpus_per_node=1", "+hydra.launcher.additional_parameters.nice=5"]):
        given = ["run", "-m", "logger=csv", "seed=0,1", "hydra/launcher=slurm", "sweep.dry_run=true", *overrides]
        assert main(given) == 0
        ids.append(re.findall(r"would run +(\S+)", capsys.readouterr().out))
    assert len(ids[0]) == len(ids[1]) == 2 and not set(ids[0]) & set(ids[1])  # device=auto is cuda there


def test_learning_rates_are_searched_with_the_gpus_of_nodes(capsys: Capture, commands: Commands) -> None:
    """Though there may be none where the command is given; and a run may take no longer than it is to."""
    given = ["run", "-m", "logger=csv", "hydra/launcher=slurm", "hydra.launcher.gpus_per_node=1", "sweep.dry_run=true"]
    given += ["sweep.lr_search={values:[1e-3,1e-2],seeds:[7]}", "sweep.timeout_minutes=5", "sweep.workers=3"]
    assert main(given) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "lr_search: 1 of 1 learning rates to choose",
        "2 jobs: 0 finished, 2 to run",
    ]


def options(**changes: Any) -> Options:
    given = yaml.safe_load((catalogue.CONF / "hydra/launcher/slurm.yaml").read_text())
    del given["_target_"]
    return Options.of(given | changes)


def test_options_become_those_of_sbatch() -> None:
    given = options(partition="gpu", mem_gb=4, gpus_per_node=2, additional_parameters={"nice": 5}).parameters
    assert given["slurm_partition"] == "gpu" and given["mem_gb"] == 4 and given["gpus_per_node"] == 2
    assert given["slurm_additional_parameters"] == {"requeue": True, "nice": 5}
    assert options(requeue=False).parameters["slurm_additional_parameters"] == {"no-requeue": True}
    assert "slurm_account" not in given


def test_a_task_has_room_for_as_many_runs_as_the_pool_starts_in_it(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(overrides={"threads": 2})
    assert options(cpus_per_task=8).at_once(config) == 4
    assert options(cpus_per_task=8, gpus_per_node=2).at_once(config) == 4  # has no use for them
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    config = make_config(overrides={"device": "cuda"})
    assert options(cpus_per_task=8, gpus_per_node=2).at_once(config) == 2
    config = make_config(overrides={"device": "cuda", "sweep.workers": 3})
    assert options(cpus_per_task=8, gpus_per_node=2).at_once(config) == 3


def test_runs_are_divided_evenly_into_as_many_tasks_as_an_array_may_have() -> None:
    def parts(*arguments: Any) -> list[str]:
        return ["".join(part) for part in divide("abcdefg", *arguments)]

    assert parts(None, 1, 100) == list("abcdefg")
    assert parts(None, 4, 100) == ["aceg", "bdf"]
    assert parts(None, 1, 3) == ["adg", "be", "cf"]
    assert parts(3, 1, 100) == ["adg", "be", "cf"]
    with pytest.raises(ConfigError, match="runs_per_task=2: makes 4 tasks of 7 runs, .* 3 at most; at least 3 runs"):
        parts(2, 1, 3)


def test_states_are_read_of_squeue_and_its_silence_is_no_end_of_tasks(commands: Commands) -> None:
    assert states() is None
    commands("squeue", "printf '7_0 RUNNING\\n7_1 COMPLETED\\n8 PENDING\\n'")
    assert states() == {"7_0": "RUNNING", "7_1": "COMPLETED", "8": "PENDING"}
    assert is_over("COMPLETED") and is_over(None) and not is_over("PENDING") and not is_over("COMPLETING")


def test_what_slurm_refuses_is_one_line_and_nothing_started(make_config: MakeConfig, commands: Commands) -> None:
    configs = [make_config(), make_config(overrides={"seed": 1})]
    with pytest.raises(ConfigError, match="^hydra/launcher=slurm: no cluster$"):
        run_tasks(configs, options())
    commands("scontrol", "printf 'ClusterName = here\\nMaxArraySize = 1001\\n'")
    with pytest.raises(ConfigError, match="squeue gets no answer of the cluster's controller"):
        run_tasks(configs, options())
    commands("squeue", "")
    commands("sbatch", "echo 'sbatch: error: invalid partition specified: none' >&2; exit 1")
    with pytest.raises(ConfigError, match="^hydra/launcher=slurm: invalid partition specified: none$"):
        run_tasks(configs, options(partition="none"))
    assert list((configs[0].results_dir / "slurm").iterdir()) == []


def test_a_place_that_slurm_would_write_otherwise_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="results_dir=.*/100%j: SLURM takes a %"):
        run_tasks([make_config(overrides={"results_dir": str(tmp_path / "100%j")})], options())


def begin(config: Config, job: str) -> None:
    """Leave what a run that was killed within a task leaves: a record that it runs, and a lock of another host's."""
    config.run_dir.mkdir(parents=True)
    (config.run_dir / "run.json").write_text('{"status": "running"}')
    lock_of(config).parent.mkdir(exist_ok=True)
    lock_of(config).write_text(
        json.dumps({"host": "far", "pid": 1, "machine": "far", "started": 1, "job": f"here {job}"})
    )


def queue_of(*configs: Config, task: str | None = None) -> Queue:
    """What is known of some runs, which a task is at."""
    queue = Queue(configs, "here")
    if task is not None:
        queue.tasks[task] = [place(config) for config in configs]
        queue.folders[task.partition("_")[0]] = queue.folder / "seven"
        queue.before = {place(config): record_of(config) for config in configs}
    return queue


def place(config: Config) -> str:
    return str(config.run_dir)


def exception(config: Config) -> str:
    return json.loads((config.run_dir / "run.json").read_text())["exception"]["message"]


def test_what_a_killed_task_could_not_record_is_recorded(make_config: MakeConfig) -> None:
    killed, done, failed, untouched, told = (make_config(overrides={"seed": seed}) for seed in range(5))
    queue = queue_of(killed, done, failed, untouched, told, task="7_0")
    begin(killed, "7_0")
    finish(done)
    record_failure(failed, "ValueError", "no good", "")
    begin(told, "7_0")  # its record may be seen later than the ledger
    assert queue.settle("7_0", "NODE_FAIL", {place(told)}) == [place(untouched)]
    assert exception(killed) == "task 7_0 ended as NODE_FAIL; its log is in " + str(queue.folder / "seven")
    assert exception(failed) == "no good" and is_finished(done) and not untouched.run_dir.exists()
    assert record_of(told) == {"status": "running"}
    assert not lock_of(killed).exists() and not queue.tasks  # nobody has to wait until it is stale


@pytest.mark.parametrize("state", ["CANCELLED", "FAILED"])
def test_a_task_that_came_to_nothing_is_not_submitted_again(make_config: MakeConfig, state: str) -> None:
    config, other = make_config(), make_config(overrides={"seed": 1})
    queue = queue_of(config, other, task="7")
    if state == "CANCELLED":
        begin(other, "7")
    assert queue.settle("7", state, set()) == []
    assert queue.idle == (["7 (FAILED)"] if state == "FAILED" else [])


def test_locks_of_others_are_left(make_config: MakeConfig) -> None:
    config = make_config()
    queue = queue_of(config, task="7_0")
    begin(config, "8_0")
    queue.settle("7_0", None, set())
    assert lock_of(config).exists() and record_of(config) == {"status": "running"}


def test_tasks_of_earlier_commands_are_taken_over(make_config: MakeConfig) -> None:
    waiting, lost, new = (make_config(overrides={"seed": seed}) for seed in range(3))
    folder = waiting.results_dir / "slurm"
    me = {"cluster": "here", "user": os.getuid(), "machine": machine()}
    me |= {"pid": os.getpid(), "started": start_of(os.getpid())}

    def write(job: int, owner: dict[str, Any], *configs: Config) -> None:
        tasks = {f"{job}_{n}": [str(config.run_dir.absolute())] for n, config in enumerate(configs)}
        (folder / f"of {job}").mkdir(parents=True)
        (folder / f"of {job}" / f"{job}.json").write_text(json.dumps({"owner": owner, "tasks": tasks}))

    write(7, me | {"started": 1}, waiting, lost)
    write(6, me | {"started": 1}, lost)
    write(8, me, make_config(overrides={"seed": 9}), new)
    write(5, me | {"cluster": "there"}, lost)
    write(4, me | {"user": os.getuid() + 1}, lost)
    begin(lost, "7_1")
    begin(new, "8_1")
    for left in ("6_0_submitted.pkl", "6_0_0_result.pkl", "6_submission.sh", "6_0_0_log.out"):
        (folder / "of 6" / left).touch()
    queue = queue_of(waiting, lost, new)
    queue.adopt({"7_0": "PENDING", "7_1": "FAILED", "8_0": "RUNNING", "8_1": "RUNNING"})
    assert queue.tasks == {"7_0": [place(waiting)], "8_1": [place(new)]}
    assert queue.others == {"8_1"}  # this process lives, and is not to have its tasks cancelled
    assert not lock_of(lost).exists()
    assert queue.settle("8_1", "NODE_FAIL", set()) == []
    assert exception(new).startswith("task 8_1 ended as NODE_FAIL")
    assert {path.name for path in folder.glob("*/*")} == {"4.json", "5.json", "7.json", "6_0_0_log.out"}
    assert not (folder / "of 8").exists()


def test_the_view_counts_what_the_ledger_says(make_config: MakeConfig, capsys: Capture) -> None:
    first, second = make_config(), make_config(overrides={"seed": 1})
    ledger.append(first.results_dir, "finished", run_id=first.run_id)  # before
    view = View(queue_of(first, second).configs, at_once=2)
    for event in ("started", "interrupted", "started", "finished"):
        ledger.append(first.results_dir, event, run_id=first.run_id)
    ledger.append(first.results_dir, "failed", run_id=second.run_id)
    ledger.append(first.results_dir, "failed", run_id="another sweep's")
    view.update()
    view.update()
    assert view.finished == {place(first)} and view.ended == {place(first), place(second)}
    assert (view.progress.done, view.progress.failed, view.progress.waiting) == (1, 1, 0.0)
    assert capsys.readouterr().err.splitlines()[-1].startswith("1/2 done, 1 failed, took ")


def test_a_task_runs_its_share_by_the_pool_and_ends_it_when_told(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    import_all([])  # once, rather than by each pool
    short = [make_config(overrides={"seed": seed}) for seed in range(2)]
    Share(short, tmp_path)()
    assert all(map(is_finished, short))
    pytest.importorskip("submitit.helpers")  # beforehand: it takes longer than a run takes to end
    share = Share([make_config(overrides={"recipe.steps": 100_000, "checkpoint.steps": 5})], tmp_path)
    [config] = share.configs

    def tell(number: int, frame: Any) -> None:
        if (config.run_dir / "checkpoint.pt").exists():
            signal.setitimer(signal.ITIMER_REAL, 0)
            # As where a cluster signals all processes of a task, though the pool tells its own.
            seen = look(lock_of(config))
            assert seen is not None
            os.kill(seen.owner["pid"], signal.SIGTERM)
            again.append(share.checkpoint())

    again: list[Any] = []
    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(RuntimeError, match="the pool ended with status 143"):
            share()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert again[0].function == Share([config], tmp_path)
    assert record_of(config)["status"] == "interrupted"
    early = Share([config], tmp_path)
    assert early.checkpoint().function == early  # a signal may come before the pool is there


def test_a_task_uses_the_cores_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr("rpe_bench.cores.quotas", list)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert available_cores() == 3
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    assert available_cores() == 64


# On a cluster


SLOW = """
import time
from pathlib import Path
from rpe_bench.encodings.base import Encoding

class Slow(Encoding):
    def embed(self, x_BTD, positions=None, tokens_BT=None):
        if not Path("hurry").exists():
            time.sleep(1)
        return x_BTD
"""
RUNS = ["logger=csv", "task=copy", "encoding=nope", "encoding.target=slow.Slow", "model.dim=8", "model.heads=1"]
RUNS += ["recipe.batch_size=2", "recipe.steps=400", "evaluation.examples=2", "evaluation.lengths=[4]"]
RUNS += ["checkpoint.steps=2", "sweep.workers=2"]
ON_SLURM = ["hydra/launcher=slurm", "hydra.launcher.runs_per_task=1", "sweep.workers=1"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[None]:
    """A cluster that no other test is at; afterwards it is at nothing of this one."""
    for command in ("sinfo", "sbatch"):
        if shutil.which(command) is None:
            pytest.skip(f"no {command} on the PATH (scripts/slurm_here.sh start DIR)")
    answer = subprocess.run(["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, timeout=60)
    if answer.returncode or not re.search("idle|mixed|allocated", answer.stdout):
        pytest.skip(f"no node of SLURM is up: {' '.join((answer.stdout + answer.stderr).split())}")
    with (Path("/tmp") / f"rpe-bench-test-slurm-{os.getuid()}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        (tmp_path / "hurry").touch()
        jobs = [place.stem for place in tmp_path.rglob("slurm/*/*.json")]
        if jobs:
            subprocess.run(["scancel", *jobs], check=True)


class Command:
    """A sweep of some seeds in a process of its own, whose current directory has the class that it is about."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder = folder
        (folder / "slow.py").write_text(SLOW)
        self.log = (folder / f"log{len(list(folder.glob('log*')))}").open("w+")
        command = [sys.executable, "-m", "rpe_bench", "run", "-m", *RUNS, *overrides]
        self.process = subprocess.Popen(command, cwd=folder, stdout=self.log, stderr=subprocess.STDOUT)

    @property
    def said(self) -> str:
        return Path(self.log.name).read_text()

    def end(self, seconds: float = 240) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"does not end:\n{self.said}")

    def until(self, condition: Callable[[], bool], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, self.said
            time.sleep(0.1)


def runs(results: Path) -> dict[int, Path]:
    """The directory of each run by its seed."""
    return {int(re.search(r"-s(\d+)-", path.name)[1]): path for path in (results / "runs").glob("*-s*")}


def record(results: Path, seed: int) -> dict[str, Any]:
    return json.loads((runs(results)[seed] / "run.json").read_text())


def has_checkpoint(results: Path, *seeds: int) -> bool:
    found = runs(results)
    return all(seed in found and (found[seed] / "checkpoint.pt").exists() for seed in seeds)


def events(results: Path, seed: int) -> list[str]:
    return [entry["event"] for entry in ledger.read(results) if f"-s{seed}-" in entry.get("run_id", "")]


def tables(results: Path) -> dict[int, list[Any]]:
    """What must not depend on where a run ran, and on what happened on the way."""
    found: dict[int, list[Any]] = {}
    for seed, run in runs(results).items():
        found[seed] = [(run / f"{name}.csv").read_bytes() for name in ("eval", "positions", "slices", "baselines")]
        found[seed].append([line.rpartition(",")[0] for line in (run / "train.csv").read_text().splitlines()])
    return found


def task_of(results: Path, seed: int) -> str:
    """The task of the array that has the run."""
    for path in (results / "slurm").glob("*/*.json"):
        for task, places in json.loads(path.read_text())["tasks"].items():
            if any(f"-s{seed}-" in place for place in places):
                return task
    raise LookupError(seed)


@pytest.mark.slurm
def test_killed_and_preempted_tasks_end_as_the_pool_would(cluster: None, tmp_path: Path) -> None:
    results, seeds = tmp_path / "results", "seed=0,1,2"
    first = Command(tmp_path, seeds, *ON_SLURM)
    first.until(lambda: has_checkpoint(results, 0, 1))
    # The step of the task: SLURM lets a task of which all is to be killed end by itself first.
    subprocess.run(["scancel", "--signal=KILL", f"{task_of(results, 0)}.0"], check=True)
    first.until(lambda: record(results, 0)["status"] == "failed")
    urgent = ["sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"]
    subprocess.run(urgent, check=True, capture_output=True)
    first.until(lambda: "interrupted" in events(results, 1))
    (tmp_path / "hurry").touch()
    assert first.end() == 1, first.said
    assert "1 of 3 runs failed:" in first.said
    assert re.search(r"s0-\w+: SLURM: task \d+_0 ended as FAILED; its log is in results/slurm/\w+ \(see ", first.said)
    assert record(results, 1)["status"] == "finished" and record(results, 1)["resumed_from_step"] >= 2

    again = Command(tmp_path, seeds, *ON_SLURM)
    assert again.end() == 0, again.said
    assert "3 jobs: 2 finished, 1 failed before, 0 to run; failed ones too" in again.said
    assert record(results, 0)["resumed_from_step"] >= 2
    assert events(results, 0) == ["started", "failed", "started", "finished"]
    for seed in (1, 2):
        assert events(results, seed)[-2:] == ["started", "finished"] and events(results, seed).count("finished") == 1

    status = [sys.executable, "-m", "rpe_bench", "status", str(results)]
    answer = subprocess.run(status, capture_output=True, text=True, check=True)
    assert "3 of 3 finished" in answer.stdout
    pool = Command(tmp_path, seeds, "results_dir=pool")
    assert pool.end() == 0, pool.said
    assert tables(tmp_path / "pool") == tables(results)
    # All that is left are logs of the tasks that did not end well.
    assert {path.name.partition("_")[2] for path in (results / "slurm").glob("*/*")} <= {"0_0_log.out"}


@pytest.mark.slurm
def test_a_second_command_takes_over_the_tasks_of_one_that_was_killed(cluster: None, tmp_path: Path) -> None:
    results, given = tmp_path / "results", ("seed=0,1", *ON_SLURM)
    first = Command(tmp_path, *given)
    first.until(lambda: has_checkpoint(results, 0, 1))
    first.process.kill()
    first.process.wait()
    second = Command(tmp_path, *given)
    second.until(lambda: "2 runs are in the queue already" in second.said)
    # As near its time limit, of which a task is told by this signal.
    subprocess.run(["scancel", "--signal=USR2", f"{task_of(results, 0)}.0"], check=True)
    second.until(lambda: events(results, 0)[1:] == ["interrupted", "started"])
    kept, before = runs(results)[0] / "checkpoint.pt", time.time()
    second.until(lambda: kept.stat().st_mtime > before)
    began = time.monotonic()
    second.process.send_signal(signal.SIGINT)
    assert second.end() == 130
    assert time.monotonic() - began < 25  # 10 on a machine that has nothing else to do
    assert "interrupted: 0 of 2 finished; the same command runs the others" in second.said
    assert [record(results, seed)["status"] for seed in (0, 1)] == ["interrupted"] * 2
    assert events(results, 1) == ["started", "interrupted"]  # it went on, and was not run twice
    (tmp_path / "hurry").touch()
    third = Command(tmp_path, *given)
    assert third.end() == 0, third.said
    assert all(record(results, seed)["resumed_from_step"] >= 2 for seed in (0, 1))
    assert [events(results, seed).count("finished") for seed in (0, 1)] == [1, 1]
