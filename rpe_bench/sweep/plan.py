"""Which jobs of a sweep are to run, and about how long they will take."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from rpe_bench.config import Config
from rpe_bench.files import is_whole, read_record
from rpe_bench.status import duration
from rpe_bench.sweep.places import not_begun
from rpe_bench.sweep.pool import workers_of
from rpe_bench.sweep.progress import effort
from rpe_bench.sweep.records import is_finished, record_of

SAMPLE = 50
"""Runs by which the time of others is estimated."""


@dataclass(frozen=True)
class Job:
    overrides: list[str]
    config: Config


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
        return f"{len(self.all)} {'job' if len(self.all) == 1 else 'jobs'}: {', '.join(counts)}{end}"


def dry_run(jobs: Sequence[Job], at_once: int | None = None) -> int:
    """Say what a sweep would run, what it would leave, and about how long it would take; nothing is written."""
    plan = Plan.of(jobs)
    anew = {config.run_dir for forced in not_begun([job.config for job in jobs]) for config in forced}
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
