"""Runs in processes of their own, several at once."""

import ctypes
import importlib
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO

from rpe_bench.config import Config
from rpe_bench.cores import available_cores
from rpe_bench.gpus import visible_gpus
from rpe_bench.locks import Held, Watch, hold, look, machine
from rpe_bench.sweep.attempt import attempt, interrupt, perform
from rpe_bench.sweep.places import out_of_room
from rpe_bench.sweep.progress import Progress, effort
from rpe_bench.sweep.records import as_marked, has_ended, is_finished, lock_of, record_failure, record_of
from rpe_bench.sweep.waiting import POLL

GRACE = 8.0
"""Seconds that interrupted runs have to end by themselves."""
STOPS = {signal.SIGINT, signal.SIGTERM}
"""Signals by which a sweep is asked to end."""
HELD = 75
"""Exit status of a process that found another at its run: "temporary failure" in sysexits.h."""
TERMINATED = 128 + signal.SIGTERM
"""Exit status of a process that was asked to end, as shells have it."""


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


def workers_of(configs: Sequence[Config]) -> int:
    """How many runs go on at once in the pool: by default one for each GPU, or as many as the cores allow."""
    if configs[0].sweep.workers is not None:
        return configs[0].sweep.workers
    return len(gpus_of(configs)) or max(1, available_cores() // configs[0].threads)


def gpus_of(configs: Sequence[Config]) -> list[str]:
    """The GPUs that runs are spread over; none for runs on the CPU."""
    return visible_gpus() if configs[0].device == "cuda" else []


def run_pool(configs: Sequence[Config], work: Callable[[Config], None] = perform) -> None:
    """Run each config in a process of its own, as many at once as `sweep.workers` says, and show how far it is.

    A run that raises, exits, is killed or takes too long leaves the others alone; afterwards its record says what
    happened. One that another process is at is passed over, and come back to. Where nothing can be written any more, no
    further run is started.

    Raises:
        KeyboardInterrupt: once the processes have ended.
    """
    import_all(configs)
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
    terminate = signal.signal(signal.SIGTERM, interrupt)
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
                if waiting and (reason := out_of_room(worker.config)):
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


def import_all(configs: Sequence[Config]) -> None:
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
    signal.signal(signal.SIGTERM, interrupt)
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
