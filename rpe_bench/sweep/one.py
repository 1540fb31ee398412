"""A single run, as a command of its own."""

import csv
import os
import shutil
import signal
import sys
from functools import partial

from rpe_bench.config import Config
from rpe_bench.errors import ConfigError
from rpe_bench.locks import Held
from rpe_bench.sweep.attempt import attempt, interrupt, perform
from rpe_bench.sweep.places import check_places, mark, tidy, unmark
from rpe_bench.sweep.plan import Job, dry_run
from rpe_bench.sweep.pool import run_pool
from rpe_bench.sweep.records import describe_failure, has_ended, is_finished, reason_of, record_of
from rpe_bench.sweep.waiting import wait_for_others


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
    before, terminate = record_of(config), signal.signal(signal.SIGTERM, interrupt)
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


def tell_on_terminal(line: str) -> None:
    """News of a single run, on stderr: each in the place of the last, and none where nobody watches."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        print(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
