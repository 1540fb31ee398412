"""What is made of finished runs: further runs that begin with their weights, each a run directory like any other."""

import errno
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from rpe_bench import catalogue
from rpe_bench.components import complete, show
from rpe_bench.compose import COMPOSITION_ERRORS, explain, judged_by_us, plain
from rpe_bench.config import PARTS, Config, resolve
from rpe_bench.errors import ConfigError
from rpe_bench.start import shapes_of
from rpe_bench.sweep.complaints import complaints
from rpe_bench.sweep.jobs import run_jobs
from rpe_bench.sweep.plan import Job
from rpe_bench.sweep.pool import run_pool
from rpe_bench.sweep.records import is_finished
from rpe_bench.trained import Trained

SETTABLE = ("recipe", "evaluation", "checkpoint", "logger", "sweep", "results_dir", "device", "threads", "compile")
"""Sections and keys that may differ from those of the run that is begun with."""


def split(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Run directories, and overrides: what has a dotted key before its first `=`."""
    overrides = [argument for argument in arguments if re.match(r"[\w.]+=", argument)]
    paths = [Path(argument) for argument in arguments if argument not in overrides]
    if not paths:
        raise ConfigError("RUN_DIR: is missing: the directory of a finished run, such as results/runs/RUN_ID")
    return paths, overrides


def sources_of(paths: Sequence[Path]) -> list[Trained]:
    """Finished runs that differ in their seed alone.

    Raises:
        ConfigError: some are not finished or not whole, differ in more, or have the same seed.
    """
    sources, errors = [], []
    for path in paths:
        try:
            sources.append(Trained.at(path))
        except ConfigError as error:
            errors += error.errors
    if errors:
        raise ConfigError(*errors)
    first, *others = sources
    for other in others:
        if other.config.line != first.config.line:
            differing = ", ".join(_differing(first.config, other.config))
            errors.append(f"{other.directory}: is not of the same kind as {first.directory}: {differing} differ")
    by_id: dict[str, Trained] = {}
    by_seed: dict[int, Trained] = {}
    for source in sources:
        same, alike = (
            by_id.setdefault(source.config.run_id, source),
            by_seed.setdefault(source.config.seed, source),
        )
        if same is not source:
            errors.append(f"{source.directory}: is the run {source.config.run_id}, as {same.directory} is")
        elif alike is not source:  # they began with different runs, and would be taken for one
            errors.append(
                f"{source.directory}: has seed {source.config.seed}, as {alike.directory} has; one run a seed"
            )
    if errors:
        raise ConfigError(*errors)
    return sources


def check_out(out: Path | None) -> None:
    """Raise ConfigError where a table could not be written, or would take the place of a run's file.

    It is written last, after all that has to be trained.
    """
    if out is None:
        return
    above = next(directory for directory in out.absolute().parents if directory.exists())
    problem = None
    if out.is_dir():
        problem = os.strerror(errno.EISDIR)
    elif (out.parent / "run.json").exists():
        problem = "is in the directory of a run, whose files stay as they are"
    elif not above.is_dir():
        problem = os.strerror(errno.ENOTDIR)
    elif not os.access(above, os.W_OK | os.X_OK):
        problem = os.strerror(errno.EACCES)
    if problem is not None:
        raise ConfigError(f"--out={out}: {problem}")


def _differing(first: Config, second: Config) -> list[str]:
    """The keys in which two configs differ, but for the seed."""

    def leaves(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in options.items():
            found |= leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        return found

    mine, theirs = leaves(first.identity()), leaves(second.identity())
    keys = sorted(mine.keys() | theirs.keys(), key=lambda key: (not key.endswith(".name"), key))
    return [key for key in keys if mine.get(key) != theirs.get(key) and key != "seed"]


# Overrides


@dataclass(frozen=True)
class Overrides:
    """Keys that are given on the command line: those of `recipe` are for runs that train."""

    keys: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value."""
    choices: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Section -> all its keys."""

    @classmethod
    def of(cls, given: Sequence[str], taken: Mapping[str, str], allowed: Sequence[str] = SETTABLE) -> "Overrides":
        """Read `key=value`, in the grammar of `rpe-bench run`.

        Args:
            taken: keys that a flag sets -> that flag.
            allowed: sections, and keys of none.

        Raises:
            ConfigError: one cannot be read, has several values, or is not for the command to set.
        """
        try:
            parsed = OverridesParser.create().parse_overrides(judged_by_us(given))
        except COMPOSITION_ERRORS as error:
            raise ConfigError(explain(error)) from error
        keys: dict[str, Any] = {}
        choices: dict[str, dict[str, Any]] = {}
        errors = []
        for override in parsed:
            key, shown = override.key_or_group, plain(str(override.input_line))
            if override.is_sweep_override():
                errors.append(f"{shown}: one value at a time (a list reads key=[1,2])")
            elif key.startswith("sweep.lr_search"):
                errors.append(f"{shown}: is for sweeps of rpe-bench run; here a rate is given, or taken from the run")
            elif key in taken:
                errors.append(f"{shown}: is set by {taken[key]}")
            elif key == "logger":
                choices[key] = catalogue.read(key, str(override.value()))
            elif key.split(".")[0] not in allowed or key in catalogue.GROUPS:
                errors.append(f"{shown}: is that of the run that is begun with (free are: {', '.join(allowed)})")
            else:
                keys[key] = override.value()
        if errors:
            raise ConfigError(*errors)
        return cls(keys, choices)

    def apply(self, raw: dict[str, Any], trains: bool) -> None:
        """Change the config of a run accordingly, but for its encoding."""
        raw |= self.choices
        if trains:
            for key, (choice, users) in PARTS.items():
                if self.keys.get(f"recipe.{choice}", users[0]) not in users:  # no part in what takes the source's place
                    raw["recipe"][key] = None
        for key, value in self.keys.items():
            section = key.split(".")[0]
            if section != "encoding" and (section != "recipe" or trains):
                _put(raw, key, value)

    def check(self, stages: Sequence["Stage"]) -> None:
        """Raise ConfigError for what would change nothing."""
        if not any(stage.steps for stage in stages):
            given = [f"{key}={show(value)}" for key, value in self.keys.items() if key.startswith("recipe.")]
            if given:
                raise ConfigError(*(f"{override}: is for stages that train, and none does" for override in given))

    def encoding(self) -> dict[str, Any]:
        """The keys of the encoding."""
        found: dict[str, Any] = {"encoding": {}}
        for key, value in self.keys.items():
            if key.startswith("encoding."):
                _put(found, key, value)
        return dict(found["encoding"])


def _put(options: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key. ConfigError where it goes on behind a plain value."""
    *sections, leaf = key.split(".")
    for section in sections:
        options = options.setdefault(section, {})
        if not isinstance(options, dict):
            raise ConfigError(f"{key}={value}: {section} is no section")
    options[leaf] = value


# Runs


@dataclass(frozen=True)
class Stage:
    """What one further run does.

    name          takes the place of the recipe's in the run's id
    encoding      as its YAML gives it
    steps         of training; none, to evaluate alone
    lr            None for a tenth of what the source trained with
    train_length  that it trains at or, without steps, that its weights were trained at; None for the source's
    """

    name: str
    encoding: dict[str, Any]
    steps: int = 0
    lr: float | None = None
    train_length: int | None = None


@dataclass(frozen=True)
class Plan:
    """What the further runs of a request have in common."""

    lengths: Sequence[int]
    """Evaluated, unless an override says otherwise."""
    overrides: Overrides

    def raw(self, source: Trained, stage: Stage, begins_with: Path | None = None) -> dict[str, Any]:
        """The config of a run, to be resolved; it begins with the source itself unless another directory is given."""
        raw = source.config.as_dict()
        recipe = raw["recipe"] | {"name": stage.name, "steps": stage.steps}
        recipe["warmup_steps"] = None if stage.steps else 0
        if stage.steps:
            recipe["lr"] = recipe["lr"] / 10 if stage.lr is None else stage.lr
        if stage.train_length is not None:
            recipe["train_length"] = stage.train_length
        raw["recipe"] = recipe
        raw["encoding"] = stage.encoding
        raw["start"] = {"run": str(begins_with or source.directory)}
        raw["evaluation"]["lengths"] = list(self.lengths)
        raw["results_dir"] = str(results_of(source))
        raw["sweep"] = {"workers": None}  # how the source was run is no matter
        self.overrides.apply(raw, trains=stage.steps > 0)
        return raw


def results_of(source: Trained) -> Path:
    """The results directory that a run lies in, or else that it was made in."""
    for directory in (source.directory, source.directory.resolve()):
        if directory.parent.name == "runs":
            return directory.parent.parent
    return source.config.results_dir


def jobs_of(labelled: Sequence[tuple[list[str], dict[str, Any]]]) -> list[Job]:
    """Jobs from what tells them apart and their configs, to be resolved.

    Raises:
        ConfigError: all that is wrong with any of them.
    """
    jobs, errors = [], {}
    for number, (label, raw) in enumerate(labelled):
        try:
            jobs.append(Job(label, resolve(raw)))
        except ConfigError as error:
            errors[number] = error.errors
    if errors:
        raise ConfigError(*complaints([label for label, _ in labelled], errors))
    return jobs


def run(jobs: Sequence[Job]) -> int:
    """Run what is not finished, in the pool; returns the exit status."""
    return run_jobs(jobs, lambda todo: run_pool([job.config for job in todo]))


def label(source: Trained, stage: Stage) -> list[str]:
    return [f"start.run={source.directory}", f"encoding={stage.encoding['name']}", stage.name]


# One stage after another

BEFORE = "before"
"""The stage of the runs that others begin with."""


@dataclass(frozen=True)
class Step:
    """A finished run of a chain: of which source, at which stage."""

    source: Trained
    stage: str
    config: Config
    directory: Path


def chain(sources: Sequence[Trained], stages: Sequence[Stage], plan: Plan) -> tuple[int, list[Step]]:
    """Run stages one after the other, each from where the last ended; returns the exit status and what is finished.

    The sources come first, as they were evaluated; where that was at other lengths than the stages are, or on other
    examples, they are evaluated once more. All is checked before anything begins, with the weights of the source in the
    place of those that are not there yet. A source one of whose runs fails is left there, and the others go on.

    Raises:
        ConfigError: what is wrong with any of the stages.
    """
    plan.overrides.check(stages)
    rehearsed = jobs_of([(label(source, stage), plan.raw(source, stage)) for stage in stages for source in sources])
    of_first = [job.config for job in rehearsed[:: len(sources)]]
    for stage, before, config in zip(stages[1:], of_first, of_first[1:], strict=False):
        if before.encoding.target == config.encoding.target and shapes_of(before) != shapes_of(config):
            raise ConfigError(
                f"encoding={config.encoding.name}: what it learns has other shapes at stage {stage.name} than before"
                " it (lengths up to the same one, or a size of its own, make them the same)"
            )
    had, wanted = sources[0].config, of_first[0]
    done = [Step(source, BEFORE, source.config, source.directory) for source in sources]
    lengths = set(wanted.evaluation.lengths or ()) <= set(had.evaluation.lengths or ())
    if not (lengths and have_same_examples(had, wanted)):
        stages = [Stage(BEFORE, had.encoding.model_dump()), *stages]
        jobs_of([(label(source, stages[0]), plan.raw(source, stages[0])) for source in sources])
        done = []
    status = 0
    at = {source.directory: source.directory for source in sources}
    for number, stage in enumerate(stages):
        left = [source for source in sources if source.directory in at]
        print(f"{stage.name}:", flush=True)
        jobs = jobs_of([(label(source, stage), plan.raw(source, stage, at[source.directory])) for source in left])
        ended = run(jobs)
        if jobs[0].config.sweep.dry_run:
            if later := ", ".join(later.name for later in stages[number + 1 :]):
                print(f"and from there on: {later}")
            return ended, []
        if ended == 130:
            return ended, []
        status = max(status, ended)
        for source, job in zip(left, jobs, strict=True):
            if is_finished(job.config):
                at[source.directory] = job.config.run_dir
                done.append(Step(source, stage.name, job.config, job.config.run_dir))
            else:
                del at[source.directory]
        if not at:
            break
    return status, done


def have_same_examples(first: Config, second: Config) -> bool:
    """Whether two runs of a task are evaluated on the same examples, at the lengths that both have."""
    one, other = first.evaluation, second.evaluation
    if (one.examples, one.seed) != (other.examples, other.seed):
        return False
    # Where the last tokens alone are scored, they are those of the longest examples, at all lengths.
    return first.build_task().last is None or max(one.lengths or ()) == max(other.lengths or ())


def chosen_encoding(sources: Sequence[Trained], name: str, overrides: Overrides) -> dict[str, Any]:
    """Another encoding for runs, with every parameter spelt out.

    A scaled rotation has the length that the runs were trained at for the one that it was trained at, at all stages:
    left to the stages, it would be another rotation at each that trains at another length.

    Raises:
        ConfigError: there is none of that name, a parameter is wrong, or it is the one that the runs have.
    """
    trained = trained_positions(sources[0])
    options = _pinned(complete("encoding", catalogue.read("encoding", name) | overrides.encoding()), trained)
    had = _pinned(sources[0].config.encoding.model_dump(), trained)
    if had | {"name": None} == options | {"name": None}:
        raise ConfigError(f"encoding={options['name']}: is what {sources[0].directory} has already; choose another")
    return options


def _pinned(encoding: dict[str, Any], trained: int) -> dict[str, Any]:
    """An encoding the original length of whose scaling is given, so that no run's own length takes its place."""
    scaling = encoding.get("scaling")
    if isinstance(scaling, Mapping) and scaling.get("original_length", trained) is None:
        return encoding | {"scaling": {**scaling, "original_length": trained}}
    return encoding


def trained_positions(source: Trained) -> int:
    """L0: positions that a run met in training."""
    return source.config.build_positions().train_extents[0]
