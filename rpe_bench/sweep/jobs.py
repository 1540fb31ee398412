"""The jobs of a sweep: launched until none is left that is not finished."""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from typing import Any

from rpe_bench import ledger
from rpe_bench.config import Config
from rpe_bench.errors import one_line
from rpe_bench.locks import look, machine, start_of
from rpe_bench.sweep.places import check_places, mark, out_of_room, tidy, unmark
from rpe_bench.sweep.plan import Job, Plan, dry_run
from rpe_bench.sweep.pool import workers_of
from rpe_bench.sweep.records import describe_failure, is_finished, lock_of, record_of
from rpe_bench.sweep.waiting import wait_for_others


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
            if remaining and out_of_room(remaining[0].config):
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
