"""One run, in this process, such that it can harm no other."""

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig

from rpe_bench import ledger
from rpe_bench.compose import as_data
from rpe_bench.config import Config, resolve
from rpe_bench.errors import one_line
from rpe_bench.locks import Held, hold
from rpe_bench.record import put_in_place
from rpe_bench.sweep.records import as_marked, has_ended, is_finished, lock_of, record_failure, record_of


def perform(config: Config, tell: Callable[[str], None] = lambda line: None) -> None:
    """One run, in this process; `tell` as in `rpe_bench.run.execute`."""
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


def interrupt(number: int, frame: Any) -> None:
    # Once: a cluster sends the signal to every process of a job, and the pool passes its own on to those of its runs.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt("terminated")
