"""The learning rate of each encoding on each task, chosen before the runs that are reported, and by others than these.

An encoding that was compared at a rate that suits another would lose for no reason of its own. `sweep.lr_search` names
the rates to try and the seeds to try them with. Each pair is a *trial*: a run like those of the sweep, but for its
rate, its seed, and what it is evaluated on, which is the training length alone, on examples of a seed of their own.
Neither a longer length nor anything that is reported can so have a part in the choice:

    lr = argmin_v  mean_s  loss(v, s)        held-out loss at the training length, of rate v and seed s

A trial whose loss did not stay finite counts as infinitely bad, and of equal rates the smaller is taken. One that
failed in any other way, such as for want of memory, says nothing of its rate: the same command tries it again, and it
counts as infinitely bad only under `sweep.retry_failed=false`.

Trials lie in RESULTS_DIR/lr_search, a results directory of its own, so that no report averages them with the rest:

    runs/            the trials, resumed and locked like all runs
    choices/ID.json  what was chosen, and the table that it was chosen by; once it is there, nothing is tried again
    trials.csv       the tables of all choices: one row a trial
    choices.csv      one row a choice
"""

import csv
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rpe_bench import ledger
from rpe_bench.compose import plain, quoted
from rpe_bench.config import Config, LrSearch, resolve
from rpe_bench.errors import ConfigError, one_line
from rpe_bench.files import write_text
from rpe_bench.record import to_csv
from rpe_bench.schema import FORMAT, SEARCH
from rpe_bench.sweep.jobs import run_jobs
from rpe_bench.sweep.plan import Job, dry_run
from rpe_bench.sweep.records import is_finished, reason_of, record_of

ABOUT = ("search", "task", "encoding", "recipe", "settings")
"""Columns that both tables begin with: the choice, and what it is for."""
TRIALS = (*ABOUT, "lr", "seed", "run_id", "status", "loss", "accuracy", "reason")
CHOICES = (*ABOUT, "lr", "loss", "edge", "values", "seeds", "evaluation_seed", "train_length")


@dataclass(frozen=True)
class Outcome:
    """What became of a trial; loss in nats and accuracy at the training length, None unless it finished."""

    lr: float
    seed: int
    run_id: str
    status: str
    loss: float | None = None
    accuracy: float | None = None
    reason: str = ""

    @property
    def counts(self) -> bool:
        """Whether it shows what its learning rate is worth."""
        diverged = self.status == "failed" and self.reason.startswith("FloatingPointError: ")
        return self.status == "finished" or diverged


@dataclass
class Search:
    """One choice to be made: for all jobs of a sweep that differ in their seeds alone, or in what they evaluate on."""

    jobs: list[Job]
    trials: list[Job]
    shared: frozenset[str] = frozenset()
    """Overrides that all jobs of the sweep have."""

    @property
    def config(self) -> Config:
        return self.jobs[0].config

    @property
    def asked(self) -> LrSearch:
        assert self.config.sweep.lr_search is not None
        return self.config.sweep.lr_search

    @property
    def label(self) -> str:
        config = self.config
        own = [given for given in self.settings.split() if given not in self.shared]
        return " ".join([f"task={config.task.name} encoding={config.encoding.name}", *own])

    @property
    def settings(self) -> str:
        """The other overrides by which it may differ from another choice for this task and encoding."""
        left_out = ("task=", "encoding=", "seed=", "results_dir=", "evaluation.", "sweep.", "logger", "checkpoint.")
        return " ".join(given for given in map(plain, self.jobs[0].overrides) if not given.startswith(left_out))

    @property
    def id(self) -> str:
        config = self.config
        ids = json.dumps([trial.config.run_id for trial in self.trials])
        name = f"{config.task.name}-{config.encoding.name}-{config.recipe.name}"
        return f"{name}-{hashlib.sha256(ids.encode()).hexdigest()[:8]}"

    @property
    def path(self) -> Path:
        return self.config.results_dir / SEARCH / "choices" / f"{self.id}.json"

    def recorded(self) -> float | None:
        """The rate that was chosen by these trials before; None where none was."""
        lr = _read(self.path).get("lr")
        return lr if lr in self.asked.values else None

    def outcomes(self) -> list[Outcome]:
        return [_outcome(trial.config) for trial in self.trials]

    def decide(self) -> float | None:
        """Choose by what the trials came to; None where that cannot be done. The table is recorded in any case."""
        outcomes = self.outcomes()
        means = {lr: mean(o.loss for o in outcomes if o.lr == lr) for lr in sorted(set(self.asked.values))}
        best = min(means, key=lambda lr: (means[lr], lr))
        waits = any(not o.counts and (self.config.sweep.retry_failed or o.status != "failed") for o in outcomes)
        chosen = None if waits or math.isinf(means[best]) else best
        self._record(chosen, means, outcomes)
        return chosen

    def _record(self, lr: float | None, means: Mapping[float, float], outcomes: Sequence[Outcome]) -> None:
        edge = None if lr is None else "lowest" if lr == min(means) else "highest" if lr == max(means) else None
        found = {
            "format": FORMAT,
            **dict(zip(ABOUT, self.about, strict=True)),
            "lr": lr,
            "loss": None if lr is None else means[lr],
            "edge": edge,
            "values": list(means),
            "seeds": self.asked.seeds,
            "evaluation_seed": self.asked.evaluation_seed,
            "train_length": self.config.recipe.train_length,
            "time": ledger.now(),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found | {"trials": [asdict(outcome) for outcome in outcomes]}, indent=2)
        write_text(self.path, text + "\n")
        if lr is None:
            return
        facts = {key: found[key] for key in ("search", "task", "encoding", "settings", "lr", "loss", "values", "seeds")}
        ledger.append(self.config.results_dir, "lr chosen", **facts)
        tried = ", ".join(f"{value:g}: {loss:.4g}" for value, loss in means.items())
        print(f"{self.label}: lr={lr:g} (loss {tried}; seeds {', '.join(map(str, self.asked.seeds))})", flush=True)
        if edge:
            beyond = "smaller" if edge == "lowest" else "larger"
            warning = f"lr={lr:g} is the {edge} tried, and a {beyond} one may do better"
            print(f"rpe-bench: {self.label}: {warning}", file=sys.stderr, flush=True)

    @property
    def about(self) -> tuple[str, ...]:
        config = self.config
        return self.id, config.task.name, config.encoding.name, config.recipe.name, self.settings


def mean(losses: Iterable[float | None]) -> float:
    """Of losses, where None, or one that is no number, is an infinite one."""
    found = [math.inf if loss is None or math.isnan(loss) else loss for loss in losses]
    return sum(found) / len(found)


def searches(jobs: Sequence[Job]) -> list[Search]:
    """The choices that a sweep needs.

    Raises:
        ConfigError: a choice would be made by what is reported, or there is none to be made.
    """
    asked = jobs[0].config.sweep.lr_search
    if asked is None or any(job.config.sweep.lr_search != asked for job in jobs):
        raise ConfigError("sweep.lr_search: must be the same for all jobs of a sweep")
    errors = []
    for key, chosen, reported in (
        ("seeds", asked.seeds, {job.config.seed for job in jobs}),
        ("evaluation_seed", [asked.evaluation_seed], {job.config.evaluation.seed for job in jobs}),
    ):
        if both := sorted(reported.intersection(chosen)):
            given = f"[{','.join(map(str, chosen))}]" if key == "seeds" else str(*chosen)
            errors.append(
                f"sweep.lr_search.{key}={given}: {', '.join(map(str, both))} is one that is reported on;"
                " choose others, that no job has"
            )
    for given in dict.fromkeys(given for job in jobs for given in map(plain, job.overrides)):
        if given.startswith("recipe.lr="):
            errors.append(f"{given}: is what sweep.lr_search is to choose; leave one of them out")
    if errors:
        raise ConfigError(*errors)
    by_trial: dict[Path, list[Job]] = {}
    for job in jobs:
        by_trial.setdefault(_first_trial(job.config).run_dir, []).append(job)
    shared = frozenset(map(plain, set.intersection(*(set(job.overrides) for job in jobs))))
    return [Search(alike, _trials(alike[0], asked), shared) for alike in by_trial.values()]


def _first_trial(config: Config) -> Config:
    """A trial of the first rate and seed, as it is unless something is wrong with it."""
    asked, length = config.sweep.lr_search, config.recipe.train_length
    assert asked is not None and length is not None  # resolved
    changes = {
        "seed": asked.seeds[0],
        "results_dir": config.results_dir / SEARCH,
        "recipe": config.recipe.model_copy(update={"lr": asked.values[0]}),
        "evaluation": config.evaluation.model_copy(update={"lengths": [length], "seed": asked.evaluation_seed}),
        # Trials are on record once a choice is made: `force` is for the runs that are reported.
        "sweep": config.sweep.model_copy(update={"lr_search": None, "force": False}),
        "logger": config.logger.model_copy(update={"group": SEARCH}),
    }
    return config.model_copy(update=changes)


def _trials(job: Job, asked: LrSearch) -> list[Job]:
    """All trials for a job, by rate and seed.

    Raises:
        ConfigError: its training length cannot be evaluated alone.
    """
    config = _first_trial(job.config)
    # A job that is for a GPU has been found to have one, which may be another machine's.
    first = resolve(config.as_dict(), gpu=True if config.device == "cuda" else None)
    shared = {
        "results_dir": quoted(str(first.results_dir)),
        "evaluation.lengths": f"[{first.recipe.train_length}]",
        "evaluation.seed": first.evaluation.seed,
        "sweep.lr_search": "null",
        "sweep.force": "false",
        "logger.group": SEARCH,
    }
    trials = []
    for lr in sorted(set(asked.values)):
        for seed in dict.fromkeys(asked.seeds):
            given = {**shared, "seed": seed, "recipe.lr": repr(lr)}
            recipe = first.recipe.model_copy(update={"lr": lr})
            config = first.model_copy(update={"seed": seed, "recipe": recipe})
            trials.append(Job([*job.overrides, *(f"++{key}={value}" for key, value in given.items())], config))
    return trials


def run_searching(jobs: Sequence[Job], launch: Callable[[list[Job]], Any], at_once: int | None = None) -> int:
    """As `rpe_bench.sweep.jobs.run_jobs`, with the learning rate of each job chosen first; returns the exit status."""
    needed = searches(jobs)
    if jobs[0].config.sweep.dry_run:
        return dry_run_searching(needed, at_once)
    chosen = {search.id: search.recorded() for search in needed}
    unknown = [search for search in needed if chosen[search.id] is None]
    if unknown:
        print(f"lr_search: {len(unknown)} of {len(needed)} learning rates to choose", flush=True)
        status = run_jobs([trial for search in unknown for trial in search.trials], launch, at_once)
        if status not in (0, 1):
            return status
        try:
            chosen |= {search.id: search.decide() for search in unknown}
            for place in dict.fromkeys(search.config.results_dir for search in unknown):
                write_tables(place / SEARCH)
        except OSError as error:
            print(f"the learning rates cannot be recorded: {one_line(error)}", file=sys.stderr)
            return 1
    ready = [with_lr(job, lr) for search in needed if (lr := chosen[search.id]) is not None for job in search.jobs]
    status = run_jobs(ready, launch, at_once) if ready else 0
    lacking = [search for search in needed if chosen[search.id] is None]
    for search in lacking:
        print(f"{search.label}: {len(search.jobs)} jobs not run: {why_not(search.outcomes())}", file=sys.stderr)
    return 1 if lacking and status == 0 else status


def why_not(outcomes: Sequence[Outcome]) -> str:
    """Why no choice could be made."""
    for outcome in outcomes:
        if not outcome.counts:
            reason = f"{outcome.status}: {outcome.reason}".removesuffix(": ")
            return f"no learning rate is chosen before all trials have shown what theirs is worth ({reason})"
    return "no learning rate could be trained with"


def with_lr(job: Job, lr: float) -> Job:
    """The job with its learning rate, as if that had been given by hand."""
    recipe = job.config.recipe.model_copy(update={"lr": lr})
    return Job([*job.overrides, f"++recipe.lr={lr!r}"], job.config.model_copy(update={"recipe": recipe}))


def dry_run_searching(needed: Sequence[Search], at_once: int | None = None) -> int:
    """Say what would be tried, and then run; of a run whose learning rate is not chosen yet there is no id to tell."""
    chosen = {search.id: search.recorded() for search in needed}
    unknown = [search for search in needed if chosen[search.id] is None]
    ready = [with_lr(job, lr) for search in needed if (lr := chosen[search.id]) is not None for job in search.jobs]
    if unknown:
        print(f"lr_search: {len(unknown)} of {len(needed)} learning rates to choose")
        dry_run([trial for search in unknown for trial in search.trials], at_once)
        for search in unknown:
            print(f"then {len(search.jobs)} jobs with the lr that is chosen: {search.label}")
    return dry_run(ready, at_once) if ready else 0


def _outcome(config: Config) -> Outcome:
    about = config.recipe.lr, config.seed, config.run_id
    if not is_finished(config):
        record = record_of(config)
        status = str(record.get("status", "not run"))
        return Outcome(
            *about, "damaged" if status == "finished" else status, reason=reason_of(record) if record else ""
        )
    with (config.run_dir / "eval.csv").open(newline="") as file:
        # The one row that there is; no other could count if there were one.
        [row] = [row for row in csv.DictReader(file) if int(row["length"]) == config.recipe.train_length]
    return Outcome(*about, "finished", float(row["loss"]), float(row["token_accuracy"]))


def _read(path: Path) -> dict[str, Any]:
    """A choice on record; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}


def write_tables(place: Path) -> None:
    """trials.csv and choices.csv, of all that is on record.

    Two sweeps may do so at once. Who writes looks once more afterwards: whoever is last has then seen all.
    """
    paths: list[Path] = []
    while (now := sorted((place / "choices").glob("*.json"))) != paths:
        paths = now
        found = [choice for path in paths if (choice := _read(path))]
        trials = [
            {column: choice[column] for column in ABOUT} | trial for choice in found for trial in choice["trials"]
        ]
        choices = [
            {column: _cell(choice[column]) for column in CHOICES} for choice in found if choice["lr"] is not None
        ]
        write_text(place / "trials.csv", to_csv(TRIALS, trials))
        write_text(place / "choices.csv", to_csv(CHOICES, choices))


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
