"""The runs of one request: which are finished already, and how the others run so that none can harm another.

What became of a run is read from its run.json alone, whoever ran it.
"""

import contextlib
import ctypes
import importlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO

import torch
from omegaconf import DictConfig

from rpe_bench.compose import as_data
from rpe_bench.config import Config, resolve
from rpe_bench.errors import ConfigError, one_line
from rpe_bench.record import now, read_record, write_text
from rpe_bench.schema import FORMAT

GRACE = 10.0
"""Seconds that interrupted runs have to end by themselves."""
TERMINATED = 128 + signal.SIGTERM
"""Exit status of a process that was asked to end, as shells have it."""
LISTED = 20
"""Jobs of a sweep that are listed one by one if they are wrong; more of them are said to be so many."""


@dataclass(frozen=True)
class Job:
    overrides: list[str]
    config: Config


# Records


def record_of(config: Config) -> dict[str, Any]:
    """A run's run.json; empty where there is none, or, while runs go on, none that can be read."""
    with contextlib.suppress(OSError):
        return read_record(config.run_dir)
    return {}


def is_finished(config: Config) -> bool:
    return record_of(config).get("status") == "finished"


def record_failure(config: Config, kind: str, message: str, trace: str) -> str | None:
    """Say in run.json that a run failed, for one that could not say so itself.

    Returns a line to be shown where that cannot be written, on a disk that is full for instance: the other runs go on.
    """
    failure = {
        "format": FORMAT,
        "run_id": config.run_id,
        "status": "failed",
        "exception": {"type": kind, "message": message, "traceback": trace},
        "finished": now(),
    }
    try:
        config.run_dir.mkdir(parents=True, exist_ok=True)
        write_text(config.run_dir / "run.json", json.dumps(record_of(config) | failure, indent=2) + "\n")
    except OSError as error:
        reason = " ".join(f"{kind}: {message}".split())
        return f"rpe-bench: {config.run_id}: {reason} (run.json cannot be written: {error.strerror})"
    return None


def has_ended(config: Config, before: dict[str, Any]) -> bool:
    """Whether the run's record says how it ended, given what an earlier attempt had left there."""
    record = record_of(config)
    return record != before and record.get("status") in ("finished", "failed", "interrupted")


def describe_failure(config: Config) -> str:
    """Why a run is not finished, on one line."""
    record = record_of(config)
    if not record:
        return f"{config.run_id}: did not run"
    exception = record.get("exception") or {"type": "Exit", "message": "the process ended before the run did"}
    reason = " ".join(f"{exception['type']}: {exception['message']}".split())
    if record.get("status") == "interrupted":
        reason = exception["message"] or "interrupted"
    return f"{config.run_id}: {reason} (see {config.run_dir / 'run.json'})"


def check_writable(results_dir: Path) -> None:
    """Raise ConfigError where runs could not be written: found before training rather than after."""
    runs = results_dir / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs) as probe:
            probe.write(bytes(2**16))  # a full disk still has room for an empty file
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise ConfigError(f"results_dir={results_dir}: cannot write there: {error.strerror}") from error


def check_places(configs: Sequence[Config]) -> None:
    """Raise ConfigError where runs could not be written or what is there could not be read: before any starts."""
    for results_dir in dict.fromkeys(config.results_dir for config in configs):
        check_writable(results_dir)
    errors = []
    for config in configs:
        try:
            (config.run_dir / "run.json").read_bytes()
        except FileNotFoundError:
            pass
        except OSError as error:  # a file where the directory should be, or the reverse; a name too long
            errors.append(f"{config.run_dir}: cannot hold the run: {error.strerror}")
    if errors:
        raise ConfigError(*errors)


def complaints(jobs: Sequence[Sequence[str]], errors: Mapping[int, Sequence[str]]) -> list[str]:
    """What is wrong with a sweep, as lines that say which jobs they are about, by the overrides in which jobs differ.

    Args:
        jobs: the overrides of all jobs.
        errors: number of a job that is wrong -> what is wrong with it.

    What is wrong with every job is said once, and so is what is wrong with many.
    """
    shared = set.intersection(*map(set, jobs))

    def label(overrides: Iterable[str]) -> str:
        return " ".join(override for override in overrides if override not in shared)

    affected: dict[str, list[int]] = {}
    for number, lines in errors.items():
        for line in dict.fromkeys(lines):
            affected.setdefault(line, []).append(number)
    everywhere = [line for line, numbers in affected.items() if len(numbers) == len(jobs)]
    said = [f"all {len(jobs)} jobs: {line}" if len(jobs) > 1 else line for line in everywhere]
    if len(errors) <= LISTED:
        for number, lines in errors.items():
            said += [f"{label(jobs[number])}: {line}" for line in dict.fromkeys(lines) if line not in everywhere]
        return said
    for line, numbers in affected.items():
        if line in everywhere:
            continue
        # Those are told apart by what they have in common, if no other job has it.
        common = set.intersection(*(set(jobs[number]) for number in numbers))
        same = label(override for override in jobs[numbers[0]] if override in common)
        if len(numbers) == 1:
            said.append(f"{label(jobs[numbers[0]])}: {line}")
        elif same and sum(common <= set(job) for job in jobs) == len(numbers):
            said.append(f"{len(numbers)} of {len(jobs)} jobs ({same}): {line}")
        else:
            said.append(f"{len(numbers)} of {len(jobs)} jobs (first: {label(jobs[numbers[0]])}): {line}")
    return said


# Running


def perform(config: Config, tell: Callable[[str], None] = lambda line: None) -> None:
    """One run, in this process; `tell` as in `rpe_bench.run.execute`."""
    torch.set_num_threads(config.threads)
    from rpe_bench.run import execute

    execute(config, tell)


def attempt(config: Config, work: Callable[[Config], None] = perform) -> bool:
    """One run, in this process: whether it finished. What it raises goes into its record, and no further."""
    before = record_of(config)
    try:
        work(config)
    except (Exception, SystemExit) as error:  # whatever goes wrong in a run is a result: the other runs go on
        if isinstance(error, SystemExit) or not has_ended(config, before):
            trouble = record_failure(config, type(error).__name__, str(error), traceback.format_exc())
            if trouble:
                print(trouble, file=sys.stderr, flush=True)
    return is_finished(config)


def job(composed: DictConfig) -> None:
    """A job of a sweep as launchers other than the pool call it, in a process of theirs."""
    attempt(resolve(as_data(composed)))


def run_one(config: Config) -> int:
    """Run what was asked for, unless it is finished; returns the exit status."""
    check_places([config])
    if is_finished(config):
        print(f"{config.run_id}: finished already, in {config.run_dir}")
        return 0
    print(f"{config.run_id}: started, in {config.run_dir}", flush=True)
    try:
        if not attempt(config, partial(perform, tell=tell_on_terminal)):
            print(describe_failure(config), file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        print(f"{config.run_id}: interrupted; the same command runs it again", file=sys.stderr)
        return 130
    finally:
        tell_on_terminal("")
    print(f"{config.run_id}: finished, in {config.run_dir}")
    return 0


def tell_on_terminal(line: str) -> None:
    """News of a single run, on stderr: each in the place of the last, and none where nobody watches."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        print(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)


def run_jobs(jobs: Sequence[Job], launch: Callable[[list[Job]], Any]) -> int:
    """Launch the jobs that are not finished, each run once; say what failed; returns the exit status."""
    by_place: dict[Path, Job] = {}  # rather than by id: a sweep may ask for the same runs in several places
    for job in jobs:
        by_place.setdefault(job.config.run_dir, job)
    unique = list(by_place.values())
    check_places([job.config for job in unique])
    todo = [job for job in unique if not is_finished(job.config)]
    print(f"{len(unique)} jobs: {len(unique) - len(todo)} finished, {len(todo)} to run", flush=True)
    if not todo:
        return 0
    try:
        launch(todo)
    except KeyboardInterrupt:
        finished = sum(is_finished(job.config) for job in unique)
        print(f"interrupted: {finished} of {len(unique)} finished; the same command runs the others", file=sys.stderr)
        return 130
    except BrokenExecutor as error:  # a worker that joblib's jobs share was killed, and took the others with it
        print(f"the launcher broke down: {one_line(error)}", file=sys.stderr)
    failed = [job.config for job in todo if not is_finished(job.config)]
    if failed:
        print(f"{len(failed)} of {len(unique)} runs failed:", *map(describe_failure, failed), sep="\n", file=sys.stderr)
    return 1 if failed else 0


# The pool


@dataclass
class Worker:
    """A process with one run."""

    config: Config
    process: BaseProcess
    output: BinaryIO
    """What it prints, kept out of the sweep's own lines."""
    before: dict[str, Any]
    """The run's record before it started: that of an earlier attempt, or none."""
    effort: float
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def run_pool(configs: Sequence[Config], work: Callable[[Config], None] = perform) -> None:
    """Run each config in a process of its own, as many at once as `sweep.workers` says, and show how far it is.

    A run that raises, exits or is killed leaves the others alone; afterwards its record says what happened.

    Raises:
        KeyboardInterrupt: once the processes have ended.
    """
    _import_all(configs)
    sweep = configs[0].sweep
    limit = sweep.workers or max(1, available_cores() // configs[0].threads)
    waiting = deque((config, effort(config)) for config in configs)
    progress = Progress(len(waiting), sum(effort for _, effort in waiting), limit)
    running: list[Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                running.append(_start(*waiting.popleft(), work))
                progress.began(running[-1])
            progress.show(running)
            ended = wait([worker.process.sentinel for worker in running], timeout=1 if progress.live else None)
            for worker in running:
                if worker.process.sentinel in ended:
                    worker.process.join()  # it may take its time to tear itself down, and have no exit code before
            for worker in [worker for worker in running if worker.process.exitcode is not None]:
                running.remove(worker)
                progress.say(_settle(worker))
                progress.ended(worker, running)
        progress.show(running)
    finally:
        progress.close()
        _stop(running)


def available_cores() -> int:
    """Cores that this process may use: its affinity, and its container's share of time where that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(FileNotFoundError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _import_all(configs: Sequence[Config]) -> None:
    """Import what runs import, so that forked processes need not: 4 s a run otherwise, most of it torch.

    Importing is all that may happen here: threads and CUDA do not survive a fork.
    """
    importlib.import_module("rpe_bench.run")
    importlib.import_module("torch._dynamo")  # by the first step of an optimiser
    if any(config.logger.mode != "disabled" for config in configs):
        from rpe_bench.wandb_mirror import preload

        preload()


def _start(config: Config, effort: float, work: Callable[[Config], None]) -> Worker:
    output = tempfile.TemporaryFile()
    process = multiprocessing.get_context("fork").Process(target=_run_in_child, args=(config, work, output.fileno()))
    before = record_of(config)
    # The child must not see a Ctrl-C before it has learnt to ignore it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return Worker(config, process, output, before, effort)


def _run_in_child(config: Config, work: Callable[[Config], None], output: int) -> None:
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    # Ctrl-C reaches the whole group of processes; what happens then is the parent's to say, by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        finished = attempt(config, work)
    except KeyboardInterrupt:
        sys.exit(TERMINATED)
    if not finished:
        sys.exit(1)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt("terminated")


def _settle(worker: Worker) -> list[str]:
    """See to it that the record of a run whose process has ended says how; returns lines to be shown."""
    code = worker.process.exitcode
    assert code is not None
    worker.output.seek(0)
    printed = worker.output.read().decode(errors="replace")
    worker.output.close()
    # What the W&B mirror had to say; all else that a run prints is noise beside many.
    lines = [line for line in printed.splitlines() if line.startswith("rpe-bench: ")]
    if not has_ended(worker.config, worker.before):
        kind, message = "Exit", f"the process ended with status {code} before the run did"
        if code == TERMINATED:
            kind, message = "SIGTERM", "terminated"
        if code < 0:
            kind = signal.Signals(-code).name
            message = "killed, as the kernel does where memory runs out" if code == -signal.SIGKILL else "killed"
        trouble = record_failure(worker.config, kind, message, printed[-10_000:])
        if trouble and not any(line.startswith(f"rpe-bench: {worker.config.run_id}: ") for line in lines):
            lines.append(trouble)  # unless the run could say so itself, which knew more
    return lines


def _stop(workers: Sequence[Worker]) -> None:
    """End processes: by themselves within GRACE seconds, or not; a second Ctrl-C does not wait."""
    for worker in workers:
        worker.process.terminate()
    deadline = time.monotonic() + GRACE
    try:
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.output.close()


# Progress


def effort(config: Config) -> float:
    """How long a run takes, up to a factor that runs on one machine share."""
    task, recipe, evaluation = config.build_task(), config.recipe, config.evaluation
    assert evaluation.lengths is not None
    trained = recipe.steps * recipe.batch_size * config.train_tokens * (0.5 if recipe.lengths == "uniform" else 1)
    evaluated = evaluation.examples * sum(task.length(size) for size in evaluation.lengths)
    # A backward pass costs about two forward ones.
    return (3 * trained + evaluated) * config.model.layers * config.model.dim


class Progress:
    """``3/45 done, 0 failed, ETA 2 min 10 s`` on stderr: one changing line on a terminal, else one as each run ends.

    The estimate weighs runs by their effort, so that it is of use early on, when the short ones have finished first.
    """

    def __init__(self, total: int, effort: float, workers: int) -> None:
        self.total, self.workers = total, workers
        self.waiting = effort
        """Effort of the runs that have not begun."""
        self.done = self.failed = 0
        self.spent = self.seconds = 0.0
        """Effort of the runs that have finished, and the seconds they took."""
        self.began_at = time.monotonic()
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if not self.live:
            print(self.line([]), file=sys.stderr, flush=True)

    def began(self, worker: Worker) -> None:
        """Count a run that has begun."""
        self.waiting -= worker.effort

    def ended(self, worker: Worker, running: Sequence[Worker]) -> None:
        """Count a run whose process has ended."""
        finished = is_finished(worker.config)
        if finished:
            self.done += 1
            self.spent += worker.effort
            self.seconds += worker.seconds
        else:
            self.failed += 1
        if not self.live:
            outcome = "finished" if finished else "failed"
            print(f"{self.line(running)}; {worker.config.run_id} {outcome}", file=sys.stderr, flush=True)

    def show(self, running: Sequence[Worker]) -> None:
        """Renew the line of a terminal."""
        if self.live:
            # Narrower than the terminal: a line that wraps could not be written over.
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            print(f"\r{self.line(running)[: width - 1]}\x1b[K", end="", file=sys.stderr, flush=True)

    def say(self, lines: Sequence[str]) -> None:
        """Print lines of their own, above that of a terminal."""
        for line in lines:
            print(f"\r{line}\x1b[K" if self.live else line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the line of a terminal as it is."""
        if self.live:
            print(file=sys.stderr)

    def line(self, running: Sequence[Worker]) -> str:
        """How far the sweep is."""
        counts = f"{self.done}/{self.total} done, {self.failed} failed"
        if self.done + self.failed == self.total:
            return f"{counts}, took {duration(time.monotonic() - self.began_at)}"
        left = self.seconds_left([(worker.effort, worker.seconds) for worker in running])
        return f"{counts}, ETA {'unknown until a run has finished' if left is None else duration(left)}"

    def seconds_left(self, running: Sequence[tuple[float, float]]) -> float | None:
        """Seconds until all is done, given the effort of each run that is on its way, and the seconds since its start.

        None as long as no run has finished: how fast this machine is cannot be known before.
        """
        if not self.spent:
            return None
        pace = self.seconds / self.spent
        remaining = [max(0.0, effort * pace - elapsed) for effort, elapsed in running]
        return max([(self.waiting * pace + sum(remaining)) / self.workers, *remaining])


def duration(seconds: float) -> str:
    """``40 s``, ``2 min 10 s``, ``1 h 5 min``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
