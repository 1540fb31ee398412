"""Runs on a cluster: shares of them as the tasks of a SLURM array, submitted by submitit.

On its node a task runs its share by the pool, just as a sweep on one machine runs all: locks, checkpoints, records and
ledger are the same, and lie in the results directory that the nodes share with whoever submits. All configs come
resolved with the task, so that nothing is composed there.

The process that submits watches its tasks by squeue alone, which a cluster without accounting has too. It may be
killed: the tasks go on, and RESULTS_DIR/slurm/*/JOB.json says which runs they are at, so that the same command waits
for those rather than have them in the queue twice. What a task that was killed could not record is recorded in its
stead.
"""

import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from rpe_bench import ledger
from rpe_bench.commands import look_here
from rpe_bench.components import rule, show
from rpe_bench.config import Config, Natural, Positive, Section
from rpe_bench.errors import ConfigError
from rpe_bench.files import write_text
from rpe_bench.interrupts import held_back
from rpe_bench.locks import Held, hold, is_alive, job_of_slurm, look, machine, remove, start_of
from rpe_bench.sweep.pool import GRACE, TERMINATED, run_pool
from rpe_bench.sweep.progress import Progress, effort
from rpe_bench.sweep.records import as_marked, has_ended, is_finished, lock_of, record_failure, record_of
from rpe_bench.sweep.waiting import POLL

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
"""What is called here or by submitit."""
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
ENDED |= {"REVOKED", "TIMEOUT"}
"""States that a task does not leave. One that is preempted to be requeued is PENDING."""
PATIENCE = 30.0
"""Most seconds between two calls of squeue, which administrators like to be rare."""


# On the node


@dataclass
class Share:
    """What one task of an array does: its runs, by the pool, in a process of its own.

    submitit's signals come to this process. Near the time limit it has `checkpoint` called, which ends the pool, whose
    runs then write their checkpoints, and has the task requeued. Preempted or cancelled, all processes of a task get
    SIGTERM, and the pool ends likewise; whether there is a next time is then SLURM's to say.
    """

    configs: list[Config]
    folder: Path
    """Where the command was given: relative paths start there, and classes of the user's may lie there."""
    pool: BaseProcess | None = field(default=None, init=False, repr=False)

    def __call__(self) -> None:
        os.chdir(self.folder)
        look_here()
        context = multiprocessing.get_context("fork")
        self.pool = context.Process(target=_run_share, args=(self.configs,))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the pool knows what to do about it
        self.pool.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        self.pool.join()
        if self.pool.exitcode:
            raise RuntimeError(f"the pool ended with status {self.pool.exitcode}")

    def checkpoint(self) -> Any:
        """What is to be done once the task is requeued: the same, as what is finished is left out."""
        from submitit.helpers import DelayedSubmission

        if self.pool is not None:  # else it is told before it has begun
            self.pool.terminate()
            self.pool.join()
        return DelayedSubmission(replace(self))


def bury(job: str | None, configs: Iterable[Config]) -> None:
    """Remove the locks that a job which has ended has left: nobody has to wait until they are stale, as they would for
    those of another host."""
    for config in configs:
        seen = look(lock_of(config))
        if job is not None and seen is not None and seen.owner.get("job") == job:
            with contextlib.suppress(OSError):  # where nothing can be written, the runs say so
                remove(lock_of(config), seen)


def _run_share(configs: Sequence[Config]) -> None:
    bury(job_of_slurm(), configs)  # what this task held before it was requeued
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    # These are for the process above, though SLURM sends them to all.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        run_pool(configs)
    except KeyboardInterrupt:
        sys.exit(TERMINATED)


# Where the command was given


class Options(Section):
    """Of conf/hydra/launcher/slurm.yaml, which says what they mean; submitit and Hydra's launcher name them so."""

    runs_per_task: Positive | None
    array_parallelism: Positive
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    exclude: str | None
    timeout_min: Positive
    cpus_per_task: Positive
    mem_gb: Annotated[float, Field(gt=0)] | None
    gpus_per_node: Positive | None
    setup: list[str] | None
    additional_parameters: dict[str, str | int | float | bool]
    requeue: bool
    max_num_timeout: Natural
    signal_delay_s: Annotated[int, Field(ge=math.ceil(GRACE) + 2)]
    """Runs have GRACE seconds for their checkpoints."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Options":
        """Raises ConfigError: all that is wrong with them, a line each."""
        try:
            options = cls.model_validate_json(json.dumps(given), strict=True)
        except ValidationError as error:
            lines = []
            for details in error.errors(include_url=False):
                key = ".".join(map(str, ("hydra", "launcher", *details["loc"])))
                value = "" if details["type"] == "missing" else f"={show(details['input'])}"
                lines.append(f"{key}{value}: {rule(details)}")
            raise ConfigError(*lines) from None
        # Told at its start, a task would end before it has done anything, as often as it is requeued.
        if options.signal_delay_s > (most := 30 * options.timeout_min):
            why = f"half of hydra.launcher.timeout_min={options.timeout_min}"
            raise ConfigError(f"hydra.launcher.signal_delay_s={options.signal_delay_s}: must be at most {most}, {why}")
        return options

    @property
    def parameters(self) -> dict[str, Any]:
        """For submitit, which takes what only SLURM has by a prefix."""
        own = self.model_dump(exclude={"runs_per_task", "requeue", "max_num_timeout"}, exclude_none=True)
        own["additional_parameters"] = {"requeue" if self.requeue else "no-requeue": True} | own[
            "additional_parameters"
        ]
        shared = {"timeout_min", "cpus_per_task", "mem_gb", "gpus_per_node"}
        own = {key if key in shared else f"slurm_{key}": value for key, value in own.items()}
        return own | {"name": "rpe-bench", "stderr_to_stdout": True}

    def at_once(self, config: Config) -> int:
        """How many runs go on at once in a task."""
        gpus = self.gpus_per_node if config.device == "cuda" else None
        return config.sweep.workers or gpus or max(1, self.cpus_per_task // config.threads)


def submit(shares: Sequence[Share], options: Options, folder: Path) -> list[str]:
    """Hand shares to SLURM as the tasks of one array; returns the ids of those, as squeue has them.

    Raises:
        ConfigError: SLURM refuses them.
    """
    import submitit

    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=options.max_num_timeout)
    executor.update_parameters(**options.parameters)
    try:
        return [job.job_id for job in executor.submit_array(shares)]
    except submitit.core.utils.FailedJobError as error:
        raise ConfigError(f"hydra/launcher=slurm: {_complaint(str(error))}") from error


def check_commands() -> None:
    """Raise ConfigError where there is no SLURM to submit to."""
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        raise ConfigError(f"hydra/launcher=slurm: finds no {missing[0]} on the PATH (sweeps start on a login node)")


def states() -> dict[str, str] | None:
    """The state of each of this user's tasks that SLURM remembers, by id; None where it does not answer.

    It remembers those that have ended for a few minutes.
    """
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i %T"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        return None
    return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines() if line.strip())


def job_of(task: str) -> str:
    """The job of a task by its id, as squeue has it."""
    return task.partition("_")[0]


def is_over(state: str | None) -> bool:
    """Whether a task has ended, by its state; None for one that SLURM has forgotten."""
    return state is None or state in ENDED


@dataclass(frozen=True)
class Cluster:
    name: str
    largest_array: int
    """Tasks that an array may have at most."""

    @classmethod
    def here(cls) -> "Cluster":
        """Raises ConfigError where its controller does not answer."""
        answer = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True)
        found = dict(re.findall(r"^(ClusterName|MaxArraySize)\s*=\s*(\S+)", answer.stdout, re.MULTILINE))
        if len(found) < 2:
            raise ConfigError(f"hydra/launcher=slurm: {_complaint(answer.stderr) or 'scontrol shows no configuration'}")
        return cls(found["ClusterName"], int(found["MaxArraySize"]))


def _complaint(printed: str) -> str:
    """What one of SLURM's commands says is wrong, on a line."""
    lines = [line for line in printed.splitlines() if line.strip()]
    said = [line for line in lines if "error:" in line] or lines
    return re.sub(r"^(\w+: )?error: ", "", said[-1]) if said else ""


def divide(runs: Sequence[str], per_task: int | None, at_once: int, limit: int) -> list[list[str]]:
    """The runs of each task: alternating, since neighbours in a sweep resemble each other, and tasks are to last alike.

    Args:
        per_task: the most runs of a task; None for as many as go on at once in it, or as many as make the array fit.
        at_once: runs that go on at once in a task.
        limit: tasks that an array may have.

    Raises:
        ConfigError: `per_task` asks for more tasks than that.
    """
    fewest = math.ceil(len(runs) / limit)
    tasks = math.ceil(len(runs) / (per_task or max(at_once, fewest)))
    if tasks > limit:
        raise ConfigError(
            f"hydra.launcher.runs_per_task={per_task}: makes {tasks} tasks of {len(runs)} runs, but an array of this"
            f" cluster has {limit} at most; at least {fewest} runs a task"
        )
    return [list(runs[first::tasks]) for first in range(tasks)]


def run_tasks(configs: Sequence[Config], options: Options) -> None:
    """Have each config run by SLURM, and show how far they are; returns when no task is left.

    Runs that a task of an earlier command is at, or is to be at, are waited for. Those that a killed task had not come
    to are submitted again. For each other run, its record says how it ended.

    Raises:
        ConfigError: SLURM refuses the tasks.
        KeyboardInterrupt: once the tasks have been cancelled.
    """
    for place in dict.fromkeys(config.results_dir for config in configs):
        if "%" in str(place.absolute()):
            what = "SLURM takes a % in the path of a log for the beginning of a pattern"
            raise ConfigError(f"hydra/launcher=slurm: results_dir={place}: {what}; choose a place without")
    cluster, known = Cluster.here(), states()
    if known is None:
        raise ConfigError("hydra/launcher=slurm: squeue gets no answer of the cluster's controller")
    queue = Queue([as_marked(config) for config in configs], cluster.name)
    queue.adopt(known)
    claimed = queue.claimed()
    rest = [place for place in queue.configs if place not in claimed]
    began, asked = time.monotonic(), -math.inf
    at_once = options.at_once(configs[0])
    view = View(queue.configs, at_once * options.array_parallelism)
    try:
        if queue.tasks:
            view.progress.say([f"{len(queue.claimed())} runs are in the queue already"])
        while rest or queue.tasks:
            if rest:
                parts = divide(rest, options.runs_per_task, at_once, cluster.largest_array)
                job = queue.submit(parts, options)
                view.progress.say([f"job {job}: {len(rest)} runs in {len(parts)} tasks; logs in {queue.folders[job]}"])
                rest = []
            time.sleep(POLL)
            view.update()
            pause = POLL if queue.claimed() <= view.ended else 2 * POLL + (time.monotonic() - began) / 30
            if time.monotonic() - asked < min(PATIENCE, pause):
                continue
            asked, known = time.monotonic(), states()
            if known is not None:  # else the controller is away for a while; the tasks go on
                view.update()
                for task in [task for task in queue.tasks if is_over(known.get(task))]:
                    rest += queue.settle(task, known.get(task), view.finished)
        view.update()
        if queue.idle:
            what = f"{len(queue.idle)} tasks ended before a run began, the first as {queue.idle[0]}"
            view.progress.say([f"{what}; their logs, which say why, are in {queue.folder}/*"])
    except KeyboardInterrupt:
        queue.cancel()
        raise
    finally:
        view.progress.close()


class Queue:
    """The tasks that are at the runs of a sweep; a run is known by the path of its directory."""

    def __init__(self, configs: Sequence[Config], cluster: str) -> None:
        self.configs = {str(config.run_dir.absolute()): config for config in configs}
        self.cluster = cluster
        self.folder = configs[0].results_dir / "slurm"
        """Has a folder for each array, so that what one has left is not taken for what another is about to need."""
        self.folders: dict[str, Path] = {}
        """Job -> the folder of its array."""
        self.tasks: dict[str, list[str]] = {}
        """Those that have not ended, each with its runs of this sweep."""
        self.others: set[str] = set()
        """Those of them that another process, which may live, has submitted."""
        self.before: dict[str, dict[str, Any]] = {}
        """The record that each run had when it was submitted, or its task was found."""
        self.idle: list[str] = []
        """Tasks that ended before any of their runs began, with their states."""

    def claimed(self) -> set[str]:
        """The runs that some task is at, or is to be at."""
        return {place for part in self.tasks.values() for place in part}

    def adopt(self, known: dict[str, str]) -> None:
        """Take over the tasks that earlier commands have left in the queue, and clear up after those that ended."""
        for path in sorted(self.folder.glob("*/*.json")):
            with contextlib.suppress(OSError, ValueError):  # removed since by another process; not of ours
                written = json.loads(path.read_text())
                owner, tasks = written["owner"], written["tasks"]
                if (owner["cluster"], owner["user"]) != (self.cluster, os.getuid()):
                    continue  # of which nothing is known here
                self.folders[path.stem] = path.parent
                for task, places in tasks.items():
                    wanted = [place for place in places if place in self.configs]
                    if is_over(known.get(task)):
                        self._bury(task, wanted)
                    elif wanted:
                        self.tasks[task] = wanted
                        # What says that it runs may be of this task: then it has begun.
                        seen = {place: record_of(self.configs[place]) for place in wanted}
                        running = [place for place, record in seen.items() if record.get("status") == "running"]
                        self.before |= seen | dict.fromkeys(running, {})
                        # Of a process of another host's it is not known whether it has ended.
                        if owner["machine"] != machine() or is_alive(owner["pid"], owner["started"]):
                            self.others.add(task)
                if all(is_over(known.get(task)) for task in tasks):
                    self._sweep_up(path, tasks)

    def submit(self, parts: Sequence[list[str]], options: Options) -> str:
        """Hand in an array with a task for each part, and write down what each is at; returns the id of the job.

        Raises:
            ConfigError: SLURM refuses them.
            KeyboardInterrupt: once what was submitted is written down.
        """
        folder = self.folder / uuid.uuid4().hex[:8]
        folder.mkdir(parents=True)
        shares = [Share([self.configs[place] for place in part], Path.cwd()) for part in parts]
        owner = {"cluster": self.cluster, "user": os.getuid()}
        owner |= {"machine": machine(), "pid": os.getpid(), "started": start_of(os.getpid())}
        # Beforehand: the first may start at once.
        self.before |= {place: record_of(self.configs[place]) for part in parts for place in part}
        with held_back() as stop:  # or tasks would be in the queue that nobody knows of
            try:
                ids = submit(shares, options, folder)
            except ConfigError as error:
                shutil.rmtree(folder)
                if stop.made:  # in a terminal, Ctrl-C reaches sbatch too
                    raise KeyboardInterrupt("interrupted") from error
                raise
            tasks = dict(zip(ids, parts, strict=True))
            self.tasks |= tasks
            job = job_of(ids[0])
            self.folders[job] = folder
            write_text(folder / f"{job}.json", json.dumps({"owner": owner, "tasks": tasks}) + "\n")
        return job

    def settle(self, task: str, state: str | None, finished: set[str]) -> list[str]:
        """See to it that the runs of a task that has ended have records that say so; returns those to be submitted
        again, which it had not come to when it was killed.

        Args:
            finished: runs of which the ledger says so; on a shared file system their records may be seen later.
        """
        places = self.tasks.pop(task)
        folder = self.folders[job_of(task)]
        self._bury(task, places)
        begun, untouched = False, []
        for place in places:
            config, before = self.configs[place], self.before[place]
            if place in finished or is_finished(config) or has_ended(config, before):
                begun = True
            elif record_of(config) == before:
                untouched.append(place)
            else:
                begun = True
                with contextlib.suppress(Held), hold(lock_of(config)):  # unless another sweep has taken it up
                    reason = f"task {task} ended as {state or 'one that SLURM has forgotten'}"
                    if trouble := record_failure(config, "SLURM", f"{reason}; its log is in {folder}", ""):
                        print(trouble, file=sys.stderr, flush=True)
        path = folder / f"{job_of(task)}.json"
        with contextlib.suppress(OSError, ValueError):
            tasks = json.loads(path.read_text())["tasks"]
            if not self.tasks.keys() & tasks.keys():
                self._sweep_up(path, tasks)
        if state == "CANCELLED":
            return []
        if not begun:  # nor would it the next time
            self.idle.append(f"{task} ({state})")
            return []
        return untouched

    def _bury(self, task: str, places: Iterable[str]) -> None:
        """Remove the locks that a task has left: what SLURM says has ended need not be waited for."""
        bury(f"{self.cluster} {task}", [self.configs[place] for place in places])

    def _sweep_up(self, path: Path, tasks: dict[str, list[str]]) -> None:
        """Remove an array's folder, but for the logs of tasks whose runs are not all finished."""
        kept = {
            f"{task}_0_log.out"
            for task, places in tasks.items()
            if not all(place in self.configs and is_finished(self.configs[place]) for place in places)
        }
        for left in path.parent.iterdir():
            if left.name not in kept and left != path:
                left.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # has logs
            path.parent.rmdir()

    def cancel(self) -> None:
        """Cancel the tasks, but for those of others, and give them time to write their checkpoints."""
        tasks = [task for task in self.tasks if task not in self.others]
        for first in range(0, len(tasks), 500):  # a command line has an end
            subprocess.run(["scancel", "--quiet", *tasks[first : first + 500]], capture_output=True)
        deadline = time.monotonic() + GRACE
        while tasks and time.monotonic() < deadline:
            known = states()
            tasks = [task for task in tasks if known is None or not is_over(known.get(task))]
            time.sleep(POLL / 2)


# Progress


@dataclass
class Remote:
    """A run that some task is at."""

    config: Config
    effort: float
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class View:
    """How far the runs are, by the ledger, which the tasks write."""

    def __init__(self, configs: Mapping[str, Config], at_once: int) -> None:
        """`configs` by the paths of their run directories, as those that are `finished`, or have `ended` in any way."""
        self.runs = {place: Remote(config, effort(config)) for place, config in configs.items()}
        self.running: dict[str, Remote] = {}
        self.finished: set[str] = set()
        self.ended: set[str] = set()
        roots = dict.fromkeys(config.results_dir for config in configs.values())
        self.ledgers = {str(root.absolute() / "runs"): ledger.Tail(root) for root in roots}
        self.progress = Progress(len(self.runs), sum(run.effort for run in self.runs.values()), at_once)

    def update(self) -> None:
        """Count what has happened since the last time."""
        for folder, tail in self.ledgers.items():
            for entry in tail.read():
                place = f"{folder}/{entry.get('run_id')}"
                if place in self.runs and place not in self.ended:
                    self._count(str(entry.get("event")), place)
        self.progress.workers = len(self.running) or self.progress.workers
        self.progress.show(list(self.running.values()))

    def _count(self, event: str, place: str) -> None:
        run = self.running.get(place)
        if event == "started" and run is None:
            self.running[place] = replace(self.runs[place], started=time.monotonic())
            self.progress.began(self.running[place])
        elif event == "interrupted" and run is not None:
            self.progress.put_back(self.running.pop(place))
        elif event in ("finished", "failed"):
            if run is None:
                self.progress.began(self.runs[place])
            self.ended.add(place)
            if event == "finished":
                self.finished.add(place)
            run = self.running.pop(place, self.runs[place])
            self.progress.ended(run, event == "finished")
