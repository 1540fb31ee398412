"""The runs of one request: which are finished already, and how the others run so that none can harm another.

What became of a run is read from its run.json alone, whoever ran it.
"""

import contextlib
import csv
import ctypes
import hashlib
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
from itertools import takewhile
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
import yaml
from omegaconf import DictConfig

from rpe_bench import ledger
from rpe_bench.compose import as_data
from rpe_bench.config import Config, resolve
from rpe_bench.cores import available_cores
from rpe_bench.curriculum import Curriculum
from rpe_bench.errors import ConfigError, one_line
from rpe_bench.files import damage, is_whole, read_record, write_text
from rpe_bench.ledger import now
from rpe_bench.locks import Held, Watch, clear, hold, lock_path, look, machine, start_of
from rpe_bench.record import put_in_place
from rpe_bench.schema import FORMAT
from rpe_bench.status import duration, rate

GRACE = 8.0
"""Seconds that interrupted runs have to end by themselves."""
POLL = 1.0
"""Seconds between two looks at the locks of others."""
SAMPLE = 50
"""Runs by which the time of others is estimated."""
STOPS = {signal.SIGINT, signal.SIGTERM}
"""Signals by which a sweep is asked to end."""
HELD = 75
"""Exit status of a process that found another at its run: "temporary failure" in sysexits.h."""
TERMINATED = 128 + signal.SIGTERM
"""Exit status of a process that was asked to end, as shells have it."""
LISTED = 20
"""Jobs of a sweep that are listed one by one if they are wrong; more of them are said to be so many."""


@dataclass(frozen=True)
class Job:
    overrides: list[str]
    config: Config


# Records


def as_marked(config: Config) -> Config:
    """`sweep.force` is for what was finished when the sweep began, and has had a place beside it since: see `mark`."""
    if config.sweep.force and not config.work_dir.exists():
        return config.model_copy(update={"sweep": config.sweep.model_copy(update={"force": False})})
    return config


def record_of(config: Config) -> dict[str, Any]:
    """A run's run.json; empty where there is none, or, while runs go on, none that can be read."""
    with contextlib.suppress(OSError):
        return read_record(as_marked(config).work_dir)
    return {}


def is_finished(config: Config) -> bool:
    """Whether the run is finished and all its files are as they were written."""
    with contextlib.suppress(OSError):
        return is_whole(as_marked(config).work_dir)
    return False


def lock_of(config: Config) -> Path:
    return lock_path(config.results_dir, config.run_id)


def record_failure(config: Config, kind: str, message: str, trace: str) -> str | None:
    """Say in run.json and in the ledger that a run failed, for one that could not say so itself.

    Returns a line to be shown where that cannot be written, on a disk that is full for instance: the other runs go on.
    """
    config = as_marked(config)
    failure = {
        "format": FORMAT,
        "run_id": config.run_id,
        "status": "failed",
        "exception": {"type": kind, "message": message, "traceback": trace},
        "finished": now(),
    }
    reason = " ".join(f"{kind}: {message}".split())
    ledger.append(config.results_dir, "failed", run_id=config.run_id, reason=reason)
    try:
        config.work_dir.mkdir(parents=True, exist_ok=True)
        write_text(config.work_dir / "run.json", json.dumps(record_of(config) | failure, indent=2) + "\n")
    except OSError as error:
        return f"rpe-bench: {config.run_id}: {reason} (run.json cannot be written: {error.strerror})"
    return None


def has_ended(config: Config, before: dict[str, Any]) -> bool:
    """Whether the run's record says how it ended, given what an earlier attempt had left there."""
    record = record_of(config)
    return record != before and record.get("status") in ("finished", "failed", "interrupted")


def reason_of(record: Mapping[str, Any]) -> str:
    """Why a run is not finished, by its record."""
    exception = record.get("exception") or {"type": "Exit", "message": "the process ended before the run did"}
    if record.get("status") == "interrupted":
        return exception["message"] or "interrupted"
    return " ".join(f"{exception['type']}: {exception['message']}".split())


def describe_failure(config: Config) -> str:
    """Why a run is not finished, on one line."""
    record = record_of(config)
    if not record:
        return f"{config.run_id}: did not run"
    if record.get("status") == "finished":  # but for its files
        return f"{config.run_id}: {damage(as_marked(config).work_dir, record)}"
    return f"{config.run_id}: {reason_of(record)} (see {as_marked(config).work_dir / 'run.json'})"


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

    def of(job: str, line: str) -> str:
        return line if line.startswith(f"{job}: ") else f"{job}: {line}"

    affected: dict[str, list[int]] = {}
    for number, lines in errors.items():
        for line in dict.fromkeys(lines):
            affected.setdefault(line, []).append(number)
    everywhere = [line for line, numbers in affected.items() if len(numbers) == len(jobs)]
    said = [f"all {len(jobs)} jobs: {line}" if len(jobs) > 1 else line for line in everywhere]
    if len(errors) <= LISTED:
        for number, lines in errors.items():
            said += [of(label(jobs[number]), line) for line in dict.fromkeys(lines) if line not in everywhere]
        return said
    for line, numbers in affected.items():
        if line in everywhere:
            continue
        # Those are told apart by what they have in common, if no other job has it.
        common = set.intersection(*(set(jobs[number]) for number in numbers))
        same = label(override for override in jobs[numbers[0]] if override in common)
        if len(numbers) == 1:
            said.append(of(label(jobs[numbers[0]]), line))
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
    """One run, in this process: whether it finished. What it raises goes into its record, and no further.

    Raises:
        Held: another process is at it.
    """
    try:
        return _attempt(config, work)
    except OSError as error:  # no lock can be written, on a disk that is full for instance
        print(f"rpe-bench: {config.run_id}: {one_line(error)}", file=sys.stderr, flush=True)
        return False


def _attempt(config: Config, work: Callable[[Config], None]) -> bool:
    with hold(lock_of(config)):
        put_in_place(config)
        config = as_marked(config)
        if not config.sweep.force and is_finished(config):  # by another process, since it was looked at
            return True
        before = record_of(config)
        ledger.append(config.results_dir, "started", run_id=config.run_id)
        began = time.monotonic()
        try:
            work(config)
        except KeyboardInterrupt as error:
            put_in_place(config)
            if is_finished(config):  # it came at the very last moment
                _tell_finished(config, began)
            else:
                ledger.append(config.results_dir, "interrupted", run_id=config.run_id, reason=str(error))
            raise
        except (Exception, SystemExit) as error:  # whatever goes wrong in a run is a result: the other runs go on
            if isinstance(error, SystemExit) or not has_ended(config, before):
                trouble = record_failure(config, type(error).__name__, str(error), traceback.format_exc())
                if trouble:
                    print(trouble, file=sys.stderr, flush=True)
            else:
                ledger.append(config.results_dir, "failed", run_id=config.run_id, reason=one_line(error))
            return False
        if finished := is_finished(config):
            _tell_finished(config, began)
        return finished


def _tell_finished(config: Config, began: float) -> None:
    seconds = round(time.monotonic() - began, 3)
    ledger.append(config.results_dir, "finished", run_id=config.run_id, seconds=seconds)


def job(composed: DictConfig) -> None:
    """A job of a sweep as launchers other than the pool call it, in a process of theirs."""
    with contextlib.suppress(Held):  # the sweep comes back to it
        attempt(resolve(as_data(composed)))


def run_one(config: Config) -> int:
    """Run what was asked for, unless it is finished; returns the exit status.

    Raises:
        ConfigError: it cannot be run, or only within a sweep.
    """
    if config.sweep.lr_search is not None:
        raise ConfigError("sweep.lr_search: goes with a sweep, of one job or more: rpe-bench run -m ...")
    if config.sweep.dry_run:
        return dry_run([Job([], config)])
    if is_finished(config) and not config.sweep.force:
        print(f"{config.run_id}: finished already, in {config.run_dir}")
        return 0
    check_places([config])
    tidy([config])
    if not config.sweep.retry_failed and record_of(config).get("status") == "failed":
        print(f"{describe_failure(config)}; sweep.retry_failed=true tries it again", file=sys.stderr)
        return 1
    mark([config])
    before, terminate = record_of(config), signal.signal(signal.SIGTERM, _interrupt)
    try:
        wait_for_others([config])
        if has_ended(config, before) and is_finished(config):
            print(f"{config.run_id}: finished by another process, in {config.run_dir}")
            return 0
        print(f"{config.run_id}: started, in {config.run_dir}", flush=True)
        if config.sweep.timeout_minutes is None:
            attempt(config, partial(perform, tell=tell_on_terminal))
        else:
            run_pool([config])  # what hangs cannot end itself
    except Held as error:  # by one who came in between
        print(f"{config.run_id}: is being run by {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        if not is_finished(config):
            reason = str(error) if config.sweep.timeout_minutes is None else reason_of(record_of(config))
            if reason.startswith("interrupted at step"):
                print(f"{config.run_id}: {reason}; the same command goes on from there", file=sys.stderr)
            else:
                print(f"{config.run_id}: interrupted; the same command takes it up again", file=sys.stderr)
            return 130
    finally:
        signal.signal(signal.SIGTERM, terminate)
        tell_on_terminal("")
    if not is_finished(config):
        print(describe_failure(config), file=sys.stderr)
        return 1
    unmark([config])
    print(f"{config.run_id}: finished, in {config.run_dir}")
    print(accuracies(config))
    return 0


def accuracies(config: Config) -> str:
    """What a finished run came to, on one line: token accuracy at the training length and at the longest."""

    def column(table: str, name: str) -> dict[int, float]:
        with (config.run_dir / f"{table}.csv").open(newline="") as file:
            return {int(row["length"]): float(row[name]) for row in csv.DictReader(file)}

    found, chance = column("eval", "token_accuracy"), column("baselines", "chance")
    trained, longest = config.recipe.train_length, max(found)
    parts = [
        f"{found[length]:.3f} at {what} {length} (chance {chance[length]:.3f})"
        for length, what in {longest: "the longest length", trained: "the training length"}.items()
        if length in found
    ]
    return f"token accuracy {', '.join(reversed(parts))}"


def wait_for_others(configs: Sequence[Config]) -> None:
    """Wait until no other process is at any of these runs."""
    watch, said = Watch(), False
    while held := [config for config in configs if watch.is_held(lock_of(config))]:
        if not said:
            said = True
            seen = look(lock_of(held[0]))
            which = held[0].run_id if len(held) == 1 else f"{len(held)} runs"
            print(f"{which}: waiting for {Held(seen.owner if seen else {})}", file=sys.stderr, flush=True)
        time.sleep(POLL)


def tell_on_terminal(line: str) -> None:
    """News of a single run, on stderr: each in the place of the last, and none where nobody watches."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        print(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)


def mark(configs: Sequence[Config]) -> None:
    """Give each finished run that `sweep.force` wants once more a place beside it, from where it will replace it.

    A request that was cut short goes on with the places that it has left. Which were its own is known by a file that is
    there for as long as any of them is: places of another request do not stand for this one's.
    """
    for forced in _forced(configs):
        request = _request(forced)
        if _is_begun(forced):
            continue
        for config in forced:
            if is_whole(config.run_dir):
                config.work_dir.mkdir(parents=True, exist_ok=True)  # another sweep may want it too
        if request.parent.exists():
            write_text(request, json.dumps([config.run_id for config in forced]) + "\n")


def unmark(configs: Sequence[Config]) -> None:
    """Remove what says that a request under `sweep.force` was begun, once all its places have been taken."""
    for forced in _forced(configs):
        if not any(config.work_dir.exists() for config in forced):
            _request(forced).unlink(missing_ok=True)


def _forced(configs: Sequence[Config]) -> list[list[Config]]:
    """Those under `sweep.force`, by their results directory."""
    by_place: dict[Path, list[Config]] = {}
    for config in configs:
        if config.sweep.force:
            by_place.setdefault(config.results_dir, []).append(config)
    return list(by_place.values())


def _is_begun(forced: Sequence[Config]) -> bool:
    """Whether this request was cut short, and has places left."""
    return _request(forced).exists() and any(config.work_dir.exists() for config in forced)


def _request(forced: Sequence[Config]) -> Path:
    digest = hashlib.sha256("\n".join(sorted({config.run_id for config in forced})).encode()).hexdigest()[:16]
    return forced[0].results_dir / "again" / f"{digest}.json"


def tidy(configs: Sequence[Config]) -> None:
    """Remove what killed processes have left behind: their locks, and runs that others have already replaced."""
    by_id = {config.run_id: config for config in configs}
    for place in dict.fromkeys(config.results_dir for config in configs):
        clear(place)
        for old in (place / "again").glob("*.old"):
            config = by_id.get(old.stem)
            if config is not None and config.results_dir == place:
                with contextlib.suppress(Held, OSError), hold(lock_of(config)):
                    put_in_place(config)
        for request in (place / "again").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                if not any((place / "again" / run_id).exists() for run_id in json.loads(request.read_text())):
                    request.unlink()


@dataclass
class Plan:
    """The jobs of a sweep, each run once, by what is to become of them."""

    all: list[Job]
    finished: list[Job]
    failed: list[Job]
    """Before; run again under `sweep.retry_failed`."""
    others: list[Job]

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> "Plan":
        by_place: dict[Path, Job] = {}  # rather than by id: a sweep may ask for the same runs in several places
        for job in jobs:
            by_place.setdefault(job.config.run_dir, job)
        plan = cls(list(by_place.values()), [], [], [])
        for job in plan.all:
            if is_finished(job.config):
                plan.finished.append(job)
            elif record_of(job.config).get("status") == "failed":
                plan.failed.append(job)
            else:
                plan.others.append(job)
        return plan

    @property
    def retries(self) -> bool:
        return self.all[0].config.sweep.retry_failed

    @property
    def todo(self) -> list[Job]:
        chosen = [*self.others, *(self.failed if self.retries else [])]
        places = {job.config.run_dir for job in chosen}
        return [job for job in self.all if job.config.run_dir in places]

    def __str__(self) -> str:
        counts = [f"{len(self.finished)} finished"]
        if self.failed:
            counts.append(f"{len(self.failed)} failed before")
        counts.append(f"{len(self.others)} to run")
        end = "" if not self.failed else "; failed ones too" if self.retries else "; failed ones are left"
        return f"{len(self.all)} jobs: {', '.join(counts)}{end}"


def run_jobs(jobs: Sequence[Job], launch: Callable[[list[Job]], Any], at_once: int | None = None) -> int:
    """Launch the jobs that are not finished, each run once; say what failed; returns the exit status.

    Args:
        at_once: how many the launcher runs at once; as many as the pool would where it does not say.
    """
    if jobs[0].config.sweep.dry_run:
        return dry_run(jobs, at_once)
    configs = [job.config for job in jobs]
    plan = Plan.of(jobs)
    if plan.todo or any(config.sweep.force for config in configs):
        # Where nothing is to be run, nothing needs to be written: a place that can only be read is as good as another.
        check_places(configs)
        mark(configs)
        plan = Plan.of(jobs)
    tidy(configs)
    print(plan, flush=True)
    unique, todo = plan.all, plan.todo
    if todo:
        tell_ledger("sweep", todo, at_once)
    try:
        before = [record_of(job.config) for job in todo]
        remaining = todo
        while remaining:
            launch(remaining)
            # Those that another sweep was at: it may have finished them, or left them to us.
            remaining = [job for job in remaining if look(lock_of(job.config)) and not is_finished(job.config)]
            wait_for_others([job.config for job in remaining])
            if remaining and _out_of_room(remaining[0].config):
                break
            remaining = [
                job
                for job in remaining
                if not is_finished(job.config)
                and not (record_of(job.config).get("status") == "failed" and record_of(job.config) not in before)
            ]
    except KeyboardInterrupt:
        tell_ledger("sweep interrupted", todo)
        finished = len(unique) - len(unfinished(plan))
        print(f"interrupted: {finished} of {len(unique)} finished; the same command runs the others", file=sys.stderr)
        return 130
    except BrokenExecutor as error:  # a worker that joblib's jobs share was killed, and took the others with it
        print(f"the launcher broke down: {one_line(error)}", file=sys.stderr)
    if todo:
        tell_ledger("sweep ended", todo)
        unmark(configs)
    failed = unfinished(plan)
    if failed:
        print(f"{len(failed)} of {len(unique)} runs failed:", *map(describe_failure, failed), sep="\n", file=sys.stderr)
    return 1 if failed else 0


def unfinished(plan: Plan) -> list[Config]:
    """The runs that are not finished by now; those that were when it began are not looked at again."""
    finished = {job.config.run_dir for job in plan.finished}
    return [j.config for j in plan.all if j.config.run_dir not in finished and not is_finished(j.config)]


def tell_ledger(event: str, jobs: Sequence[Job], at_once: int | None = None) -> None:
    """What a sweep is about to do, or has done, in each of its results directories."""
    me = {"machine": machine(), "started": start_of(os.getpid())}
    for place in dict.fromkeys(job.config.results_dir for job in jobs):
        here = [job.config for job in jobs if job.config.results_dir == place]
        if event == "sweep":
            workers = at_once or workers_of(here)
            ledger.append(place, event, **me, workers=workers, runs=[config.run_id for config in here])
        else:
            ledger.append(place, event, **me, finished=sum(map(is_finished, here)), of=len(here))


def dry_run(jobs: Sequence[Job], at_once: int | None = None) -> int:
    """Say what a sweep would run, what it would leave, and about how long it would take; nothing is written."""
    plan = Plan.of(jobs)
    by_request = _forced([job.config for job in jobs])
    anew = {config.run_dir for forced in by_request if not _is_begun(forced) for config in forced}
    plan.others += [job for job in plan.finished if job.config.run_dir in anew]
    plan.finished = [job for job in plan.finished if job.config.run_dir not in anew]
    todo = plan.todo
    print(plan)
    to_run, finished = ({job.config.run_dir for job in jobs} for jobs in (todo, plan.finished))
    for job in plan.all:
        record = record_of(job.config)
        about = "" if record.get("status") in (None, "finished") else f" ({record['status']} before)"
        place = job.config.run_dir
        verb = "would run" if place in to_run else "finished" if place in finished else "would leave"
        print(f"{verb:11}  {job.config.run_id}{about}")
    if todo:
        workers = at_once or workers_of([job.config for job in todo])
        seconds = estimate([job.config for job in plan.all], [job.config for job in todo], workers)
        how = f"{workers} at once" if workers > 1 else "one after the other"
        print("time: unknown until a run has finished" if seconds is None else f"time: {duration(seconds)}, {how}")
    return 0


def estimate(known: Sequence[Config], todo: Sequence[Config], workers: int) -> float | None:
    """Seconds that runs will take, by those of `known` that are finished, or else by others in the same place."""
    spent: dict[str, list[float]] = {}
    candidates = [*known]
    if not any(is_whole(config.run_dir) for config in known):
        directories = sorted((known[0].results_dir / "runs").glob("*/config.yaml"))[:SAMPLE]
        candidates = [config for path in directories if (config := _read_config(path)) is not None]
    for config in candidates:
        with contextlib.suppress(OSError):
            record = read_record(config.run_dir)
            seconds = [record.get(name) for name in ("train_seconds", "evaluation_seconds")]
            if record.get("status") == "finished" and all(isinstance(part, float) for part in seconds):
                for group in (config.encoding.name, "any"):
                    total = spent.setdefault(group, [0.0, 0.0])
                    total[0] += sum(part for part in seconds if part)
                    total[1] += effort(config)
    if not spent:
        return None
    costs = []
    for config in todo:
        seconds_of_some, effort_of_them = spent.get(config.encoding.name, spent["any"])
        costs.append(effort(config) * seconds_of_some / effort_of_them)
    return max(sum(costs) / workers, *costs)


def _read_config(path: Path) -> Config | None:
    """The config of a run that is already there, whose classes may not be."""
    try:
        config = Config.load(path)
        return config if config.run_dir == path.parent else config.model_copy(update={"results_dir": path.parents[2]})
    except (OSError, ValueError, yaml.YAMLError):
        return None


def workers_of(configs: Sequence[Config]) -> int:
    """How many runs go on at once in the pool: by default one for each GPU, or as many as the cores allow."""
    if configs[0].sweep.workers is not None:
        return configs[0].sweep.workers
    return len(gpus_of(configs)) or max(1, available_cores() // configs[0].threads)


def gpus_of(configs: Sequence[Config]) -> list[str]:
    """The GPUs that runs are spread over, as CUDA_VISIBLE_DEVICES names them; none for runs on the CPU."""
    if configs[0].device != "cuda":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # of which CUDA takes no more than come before a -1, or before nothing at all
        return list(takewhile(lambda name: name[:1] not in ("", "-"), map(str.strip, visible.split(","))))
    return [str(number) for number in range(torch.cuda.device_count())]


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
    ended_at: float | None = None
    """When it was told to end, having run for too long."""
    gpu: str | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """Before the pool has to look after it."""
        if self.ended_at is not None:
            return max(0.0, self.ended_at + GRACE - time.monotonic())
        minutes = self.config.sweep.timeout_minutes
        return None if minutes is None else max(0.0, 60 * minutes - self.seconds)

    def end_if_late(self) -> None:
        """Ask a run to end that has taken too long; make it end where it does not."""
        if self.seconds_left == 0.0:
            if self.ended_at is None:
                self.ended_at = time.monotonic()
                self.process.terminate()
            else:
                self.process.kill()


def run_pool(configs: Sequence[Config], work: Callable[[Config], None] = perform) -> None:
    """Run each config in a process of its own, as many at once as `sweep.workers` says, and show how far it is.

    A run that raises, exits, is killed or takes too long leaves the others alone; afterwards its record says what
    happened. One that another process is at is passed over, and come back to. Where nothing can be written any more, no
    further run is started.

    Raises:
        KeyboardInterrupt: once the processes have ended.
    """
    _import_all(configs)
    configs = [as_marked(config) for config in configs]
    limit, gpus = workers_of(configs), gpus_of(configs)
    if (threads := limit * configs[0].threads) > (cores := available_cores()):
        print(f"rpe-bench: {limit} runs at once have {threads} threads on {cores} cores", file=sys.stderr, flush=True)
    waiting = deque((config, effort(config)) for config in configs)
    progress = Progress(len(waiting), sum(effort for _, effort in waiting), limit)
    running: list[Worker] = []
    elsewhere: dict[Path, tuple[Config, float, dict[str, Any]]] = {}
    """Runs that other processes are at, with their records when that was noticed."""
    watch = Watch()
    looked = -math.inf
    terminate = signal.signal(signal.SIGTERM, _interrupt)
    # But for the time that it waits, the pool must not be cut in two: a process between its start and its place in the
    # list of those that run would be lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        while waiting or running or elsewhere:
            while waiting and len(running) < limit:
                config, weight = waiting.popleft()
                before = record_of(config)
                if watch.is_held(lock_of(config)):
                    elsewhere[config.run_dir] = config, weight, before
                elif not config.sweep.force and is_finished(config):
                    progress.found(config, weight, finished=True)
                else:
                    busy = [worker.gpu for worker in running]
                    gpu = min(gpus, key=busy.count) if gpus else None
                    running.append(_start(config, weight, before, work, gpu))
                    progress.began(running[-1])
            if elsewhere and time.monotonic() - looked > POLL:
                looked = time.monotonic()
                for place, (config, weight, before) in list(elsewhere.items()):
                    if watch.is_held(lock_of(config)):
                        continue
                    del elsewhere[place]
                    if has_ended(config, before) and record_of(config)["status"] != "interrupted":
                        progress.found(config, weight, finished=is_finished(config))
                    else:
                        waiting.append((config, weight))
            if not running and (waiting or not elsewhere):
                continue
            progress.show(running)
            pauses = [worker.seconds_left for worker in running]
            pauses += [1.0 if progress.live else None, POLL if elsewhere else None]
            pause = min((pause for pause in pauses if pause is not None), default=None)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            try:
                ended = wait([worker.process.sentinel for worker in running], timeout=pause)
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            for worker in running:
                worker.end_if_late()
                if worker.process.sentinel in ended:
                    worker.process.join()  # it may take its time to tear itself down, and have no exit code before
            for worker in [worker for worker in running if worker.process.exitcode is not None]:
                running.remove(worker)
                if worker.process.exitcode == HELD and not _holds(worker):
                    worker.output.close()
                    progress.put_back(worker)
                    elsewhere[worker.config.run_dir] = worker.config, worker.effort, worker.before
                    continue
                progress.say(_settle(worker))
                progress.ended(worker)
                if waiting and (reason := _out_of_room(worker.config)):
                    progress.say(
                        [f"{reason}; {len(waiting)} are not started, and the same command goes on once it can"]
                    )
                    waiting.clear()
                    elsewhere.clear()
        progress.show(running)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            progress.close()
            _stop(running)
        finally:
            signal.signal(signal.SIGTERM, terminate)


def _out_of_room(config: Config) -> str | None:
    """Why no run could be written where this one should have been, if so."""
    try:
        if not is_finished(config):
            check_writable(config.results_dir)
    except ConfigError as error:
        return str(error)
    return None


def _import_all(configs: Sequence[Config]) -> None:
    """Import what runs import, so that forked processes need not: 4 s a run otherwise, most of it torch.

    Importing is all that may happen here: threads and CUDA do not survive a fork.
    """
    importlib.import_module("rpe_bench.run")
    importlib.import_module("torch._dynamo")  # by the first step of an optimiser
    if any(config.logger.mode != "disabled" for config in configs):
        from rpe_bench.wandb_mirror import preload

        preload()


def _start(
    config: Config, effort: float, before: dict[str, Any], work: Callable[[Config], None], gpu: str | None
) -> Worker:
    output = tempfile.TemporaryFile()
    arguments = (config, work, output.fileno(), gpu)
    process = multiprocessing.get_context("fork").Process(target=_run_in_child, args=arguments)
    process.start()  # while STOPS are blocked: it must not see a Ctrl-C before it has learnt to ignore it
    return Worker(config, process, output, before, effort, gpu=gpu)


def _run_in_child(config: Config, work: Callable[[Config], None], output: int, gpu: str | None) -> None:
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # CUDA reads it when it starts, which is here
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    # Ctrl-C reaches the whole group of processes; what happens then is the parent's to say, by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        finished = attempt(config, work)
    except KeyboardInterrupt:
        sys.exit(TERMINATED)
    except Held:
        sys.exit(HELD)
    if not finished:
        sys.exit(1)


def _interrupt(number: int, frame: Any) -> None:
    # Once: a cluster sends the signal to every process of a job, and the pool passes its own on to those of its runs.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt("terminated")


def _holds(worker: Worker) -> bool:
    """Whether the lock of the run is that of this process, which may have ended without giving it back."""
    seen = look(lock_of(worker.config))
    return seen is not None and seen.owner.get("machine") == machine() and seen.owner["pid"] == worker.process.pid


def _settle(worker: Worker) -> list[str]:
    """See to it that the record of a run whose process has ended says how; returns lines to be shown."""
    code = worker.process.exitcode
    assert code is not None
    worker.output.seek(0)
    printed = worker.output.read().decode(errors="replace")
    worker.output.close()
    # What the W&B mirror had to say; all else that a run prints is noise beside many.
    lines = [line for line in printed.splitlines() if line.startswith("rpe-bench: ")]
    late = worker.ended_at is not None and not is_finished(worker.config)
    if late or not has_ended(worker.config, worker.before):
        kind, message = "Exit", f"the process ended with status {code} before the run did"
        if code == TERMINATED:
            kind, message = "SIGTERM", "terminated"
        if code < 0:
            # Those from SIGRTMIN on have no name of their own.
            kind = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            message = "killed, as the kernel does where memory runs out" if code == -signal.SIGKILL else "killed"
        if late:
            kind, message = "Timeout", f"took longer than sweep.timeout_minutes={worker.config.sweep.timeout_minutes:g}"
        try:
            with hold(lock_of(worker.config)):
                trouble = (
                    None
                    if is_finished(worker.config)
                    else record_failure(worker.config, kind, message, printed[-10_000:])
                )
        except Held:  # another sweep has taken it up
            trouble = None
        except OSError as error:
            trouble = f"rpe-bench: {worker.config.run_id}: {kind}: {message} (no lock can be written: {error.strerror})"
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
    share = 1.0 if recipe.lengths == "fixed" else 0.5  # of the longest, on average
    if (curriculum := Curriculum.of(recipe)) is not None:
        share *= curriculum.mean_bound(recipe.steps) / curriculum.longest
    trained = recipe.steps * recipe.batch_size * config.train_tokens * share
    evaluated = evaluation.examples * sum(task.length(size) for size in evaluation.lengths)
    # A backward pass costs about two forward ones.
    return (3 * trained + evaluated) * config.model.layers * config.model.dim


class Running(Protocol):
    """A run that is on its way, in a process of the pool or elsewhere."""

    config: Config
    effort: float

    @property
    def seconds(self) -> float: ...


class Progress:
    """``3/45 done, 2 running, 0 failed, 90 an hour, ETA 2 min 10 s`` on stderr: one changing line on a terminal, else
    one as each run ends.

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
        self.news: list[str] = [] if self.live else [""]
        """Runs that have ended and are yet to be told of, where no line is renewed; at the start, none."""

    def began(self, worker: Running) -> None:
        """Count a run that has begun."""
        self.waiting -= worker.effort

    def put_back(self, worker: Running) -> None:
        """Count a run that had not begun after all."""
        self.waiting += worker.effort

    def found(self, config: Config, effort: float, finished: bool) -> None:
        """Count a run that another process has ended."""
        self.waiting -= effort
        if finished:
            self.done += 1
        else:
            self.failed += 1
        if not self.live:
            self.news.append(f"; {config.run_id} {'finished' if finished else 'failed'} elsewhere")

    def ended(self, worker: Running, finished: bool | None = None) -> None:
        """Count a run that has ended; whether well, its record says where that is not known."""
        finished = is_finished(worker.config) if finished is None else finished
        if finished:
            self.done += 1
            self.spent += worker.effort
            self.seconds += worker.seconds
        else:
            self.failed += 1
        if not self.live:
            self.news.append(f"; {worker.config.run_id} {'finished' if finished else 'failed'}")

    def show(self, running: Sequence[Running]) -> None:
        """Renew the line of a terminal; elsewhere tell of the runs that have ended since, with what runs by now."""
        for news in self.news:
            print(f"{self.line(running)}{news}", file=sys.stderr, flush=True)
        self.news.clear()
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

    def line(self, running: Sequence[Running]) -> str:
        """How far the sweep is."""
        elapsed = time.monotonic() - self.began_at
        if self.done + self.failed == self.total:
            return f"{self.done}/{self.total} done, {self.failed} failed, took {duration(elapsed)}"
        counts = f"{self.done}/{self.total} done, {len(running)} running, {self.failed} failed"
        if self.done:
            counts += f", {rate(3600 * self.done / elapsed)}"
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
