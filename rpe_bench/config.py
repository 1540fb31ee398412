"""The whole configuration of a run: its types, its ranges, and the rules that join its parts.

`resolve` turns what the YAML files and overrides compose into a `Config` that can be run as it stands, or says all that
is wrong with it. Keys are documented in conf/.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import torch
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from rpe_bench.components import BASES, build_encodings, build_positions, build_task, complete, load_class, rule, show
from rpe_bench.encodings.base import Encoding, Geometry
from rpe_bench.errors import ConfigError, blamed_on, nearest
from rpe_bench.gpus import absent
from rpe_bench.model import Transformer
from rpe_bench.positions.base import Frame, Remap
from rpe_bench.schema import FORMAT
from rpe_bench.tasks.base import Task

__all__ = ["Config", "ConfigError", "resolve"]

LARGEST = 2**31 - 1
"""Beyond any use, and yet no sum of a few such numbers leaves 64 bits."""
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Natural = Annotated[int, Field(ge=0, le=LARGEST)]
LARGEST_SEED = 2**32 - 1
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
"""What one word of a random stream's key can hold; a larger one would be another key's words."""
Id = Annotated[str, Field(pattern=r"^\w+$", max_length=64)]
"""Part of a run's id and of its path, whose last part may have 255 bytes."""


def _enough_steps(steps: int, info: ValidationInfo) -> int:
    context: Any = info.context
    least = 0 if context["started"] else 1
    if steps < least:
        raise ValueError(f"recipe.steps={steps}: must be at least {least}")
    return steps


Steps = Annotated[int, Field(le=LARGEST), AfterValidator(_enough_steps)]
"""A run that begins with another's weights may have none: it evaluates them."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Component(Section):
    """An encoding, a task or a remap: besides these keys, the parameters of the class that `target` names."""

    model_config = ConfigDict(extra="allow")
    name: Id
    target: str


PLAIN = Component(name="plain", target="rpe_bench.positions.plain.Plain")
"""Positions as the task gives them; what a config means that says nothing of positions."""


class Model(Section):
    name: Id
    layers: Positive
    dim: Positive
    heads: Positive
    causal: bool | None
    """A decoder (true) or an encoder; null for what the task needs."""
    embedding_std: Annotated[float, Field(gt=0)]
    """Of the token embeddings as drawn; sets how loud an added position is beside the token."""

    @model_validator(mode="after")
    def heads_divide_the_width(self) -> Self:
        if self.dim % self.heads:
            raise ValueError(f"model.heads={self.heads}: must divide model.dim={self.dim}")
        return self


class EarlyStop(Section):
    """When training ends before its last step: by held-out examples of the training length, and of no other.

    The examples are those of `rpe_bench.early_stop`. A check counts as an improvement where the metric is better than
    at every one before by more than `min_improvement`.
    """

    metric: Literal["loss", "token_accuracy", "exact_match"] = "loss"
    every: Positive = 100
    """Steps from one check to the next; the last step is one too."""
    patience: Positive | None = 5
    """Checks in a row without an improvement, after which training ends; null for any number."""
    min_improvement: Annotated[float, Field(ge=0)] = 0.0
    threshold: Annotated[float, Field(ge=0)] | None = None
    """Of the metric: training ends once it is reached; null for no such end."""
    examples: Positive = 256
    keep: Literal["last", "best"] = "best"
    """The weights that are evaluated: those at the last check that was an improvement, or those of the last step."""

    @model_validator(mode="after")
    def there_is_an_end(self) -> Self:
        threshold = f"recipe.early_stop.threshold={show(self.threshold)}"
        if self.patience is None and self.threshold is None:
            raise ValueError(f"{threshold}: with recipe.early_stop.patience=null nothing would end training early")
        if self.metric != "loss" and self.threshold is not None and self.threshold > 1:
            raise ValueError(f"{threshold}: recipe.early_stop.metric={self.metric} is at most 1")
        return self


PARTS = {
    "betas": ("optimiser", ("adamw", "adam")),
    "momentum": ("optimiser", ("sgd",)),
    "min_lr_ratio": ("schedule", ("cosine", "linear", "wsd")),
    "decay_share": ("schedule", ("wsd",)),
    "curriculum_share": ("lengths", ("curriculum",)),
    "curriculum_start": ("lengths", ("curriculum",)),
}
"""Key of a recipe -> the key whose value says whether it has a part in it, and for which values it has."""

USUAL = {"momentum": 0.9, "decay_share": 0.2, "curriculum_share": 0.5}
"""What `resolve` takes for null where the key has a part."""


class Recipe(Section):
    """How a model is trained.

    Keys with a default came later than others. The default is what was done before there was a choice: at it, a key is
    left out of a run's identity, and a config.yaml without it says the same.
    """

    name: Id
    steps: Steps
    batch_size: Positive
    lr: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    warmup_steps: Natural
    """`resolve` takes null for a tenth of the steps, 100 at most."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] | None
    """As `betas`, null once resolved where it has no part."""
    grad_clip: Annotated[float, Field(gt=0)]
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] | None
    train_length: Positive | None
    """The longest problem size trained on; null for the task's default."""
    lengths: Literal["uniform", "fixed", "curriculum"]
    precision: Literal["fp32", "bf16-mixed"]
    log_every: Positive
    optimiser: Literal["adamw", "adam", "sgd"] = "adamw"
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    schedule: Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"] = "cosine"
    decay_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of the steps: those at the end in which `wsd` decays."""
    accumulate: Positive = 1
    """Micro-batches that a step's batch is cut into, which are in memory one after the other."""
    curriculum_start: Positive | None = None
    """The largest size at the first step; `resolve` takes null for the task's smallest."""
    curriculum_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of the steps: those in which the largest size grows to `train_length`."""
    early_stop: EarlyStop | None = None

    @model_validator(mode="after")
    def keys_have_their_part(self) -> Self:
        for key, (choice, users) in PARTS.items():
            value, chosen = getattr(self, key), getattr(self, choice)
            if value is not None and chosen not in users:
                part = f"has no part in recipe.{choice}={chosen}, but in {' and '.join(users)}"
                raise ValueError(f"recipe.{key}={show(value)}: {part}")
            if value is None and chosen in users and key != "curriculum_start":  # which waits for the task
                raise ValueError(f"recipe.{key}=null: recipe.{choice}={chosen} needs a value")
        return self

    @model_validator(mode="after")
    def steps_suffice(self) -> Self:
        if self.warmup_steps > self.steps:
            raise ValueError(f"recipe.warmup_steps={self.warmup_steps}: must not exceed recipe.steps={self.steps}")
        # Without steps nothing decays, though a run that begins with another's weights has its schedule.
        if self.steps and self.decay_share is not None and self.warmup_steps + self.decay_steps > self.steps:
            raise ValueError(
                f"recipe.decay_share={self.decay_share}: the decay of {self.decay_steps} steps and"
                f" recipe.warmup_steps={self.warmup_steps} exceed recipe.steps={self.steps}"
            )
        return self

    @model_validator(mode="after")
    def micro_batches_are_equal(self) -> Self:
        if self.batch_size % self.accumulate:
            given = f"recipe.accumulate={self.accumulate}"
            raise ValueError(f"{given}: must divide recipe.batch_size={self.batch_size}, the examples of a step")
        return self

    @property
    def decay_steps(self) -> int:
        """Steps at the end in which `wsd` decays."""
        assert self.decay_share is not None
        return max(1, round(self.decay_share * self.steps))

    @classmethod
    def neutral(cls) -> dict[str, Any]:
        """Keys that came later, at the value that leaves all as it was."""
        return {name: key.default for name, key in cls.model_fields.items() if not key.is_required()}


class Evaluation(Section):
    lengths: Annotated[list[Positive], Field(min_length=1)] | None
    """Problem sizes; null for those multiples of the training length that the task can pose."""
    multiples: Annotated[list[Annotated[float, Field(gt=0, le=LARGEST)]], Field(min_length=1)]
    examples: Positive
    seed: Seed


class Logger(Section):
    name: Literal["wandb", "csv"]
    mode: Literal["offline", "online", "disabled"]
    project: str
    entity: str | None
    group: str | None
    tags: list[str]

    @model_validator(mode="after")
    def csv_mirrors_nothing(self) -> Self:
        if self.name == "csv" and self.mode != "disabled":
            raise ValueError(f"logger.mode={self.mode}: contradicts logger=csv, which has no mirror; use logger=wandb")
        return self


class Checkpoint(Section):
    """When a run writes down what it needs to go on: whichever comes first. Both may be null.

    It does so anyhow at the end of training and where it is interrupted. How often changes no number.
    """

    steps: Positive | None = None
    minutes: Annotated[float, Field(gt=0)] | None = 1.0


class Start(Section):
    """The finished run whose weights a run begins with; null where they are drawn from its seed.

    `resolve` looks the others up, so that they are recorded. One that is given is held against what is found.
    """

    run: Path | None = None
    """Its directory."""
    run_id: str | None = None
    digest: str | None = None
    """Of its weights."""
    encoding: Literal["kept", "drawn"] | None = None
    """Whether what the encoding had learned is taken over too, or drawn from the seed; null for kept where it is of the
    class that it was of."""
    steps: Natural | None = None
    """That have led to the weights. The training data goes on from there, so that no batch is met twice."""
    line: str | None = None
    """Its `Config.line`."""


class LrSearch(Section):
    """By what the learning rate of each encoding on each task is chosen: see lr_search.py."""

    values: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=2)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    evaluation_seed: Seed = 1000
    """Of the held-out examples that decide, which are not those that are reported on."""


class Sweep(Section):
    workers: Positive | None
    """Jobs at once; null for as many as the cores allow."""
    retry_failed: bool = True
    force: bool = False
    dry_run: bool = False
    timeout_minutes: Annotated[float, Field(gt=0)] | None = None
    lr_search: LrSearch | None = None


def _named(path: Any) -> Any:
    """An empty path would be the current folder, where nobody looks for results."""
    if path == "":
        raise ValueError("results_dir=: must name a directory (. is the current one)")
    return path


class Config(Section):
    """One run. Once resolved, nothing in it is null that a run depends on."""

    seed: Seed
    device: Literal["auto", "cpu", "cuda"]
    threads: Positive
    compile: bool = False
    """The model, by torch.compile."""
    results_dir: Annotated[Path, BeforeValidator(_named)]
    encoding: Component
    task: Component
    positions: Component = PLAIN
    model: Model
    recipe: Recipe
    evaluation: Evaluation
    start: Start = Start()
    checkpoint: Checkpoint = Checkpoint()
    logger: Logger
    sweep: Sweep

    @classmethod
    def load(cls, path: Path) -> "Config":
        """A resolved config as a run directory keeps it.

        Raises:
            OSError: it cannot be read.
            ConfigError: it is damaged, or not what this version knows.
        """
        try:
            raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError("is damaged: it cannot be read as YAML") from error
        if not isinstance(raw, dict):
            raise ConfigError("is damaged: it holds no keys")
        return parse(raw)

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for YAML and JSON."""
        return self.model_dump(mode="json")

    def identity(self) -> dict[str, Any]:
        """All that can change the numbers of a resolved config, and nothing else."""
        config = self.as_dict()
        for key in ("checkpoint", "logger", "results_dir", "sweep"):
            del config[key]
        # The lengths say it all, however they came about.
        del config["evaluation"]["multiples"]
        # Left out where they change nothing: runs from before there was a choice keep their ids, so that the command
        # that made them finds them finished.
        if self.positions == PLAIN:
            del config["positions"]
        if not self.compile:
            del config["compile"]
        for group in ("encoding", "task"):
            neutral = load_class(group, config[group]["target"]).neutral
            config[group] = _without(config[group], neutral)
        config["recipe"] = _without(config["recipe"], Recipe.neutral())
        if self.recipe.precision == "bf16-mixed":  # under which attention used to stay in float32
            config["recipe"]["in_bf16"] = ["attention", "linear"]
        del config["start"]
        if self.start.run is not None:
            # Where it lies changes nothing; the steps follow from its id.
            config["start"] = self.start.model_dump(include={"run_id", "digest", "encoding"})
        # Where a text lies changes nothing; what it says is there by its digest.
        places = load_class("task", self.task.target).places
        config["task"] = {k: v for k, v in config["task"].items() if k not in places}
        return config | {"format": FORMAT}

    @cached_property
    def run_id(self) -> str:
        digest = _digest(self.identity())
        return f"{self.task.name}-{self.encoding.name}-{self.recipe.name}-s{self.seed}-{digest}"

    @property
    def line(self) -> str:
        """As the run's id, but shared by runs that differ in their seed alone, and in that of what they begin with."""
        identity = self.identity()
        del identity["seed"]
        if self.start.run is not None:
            identity["start"] = self.start.model_dump(include={"line", "encoding"})
        return f"{self.task.name}-{self.encoding.name}-{self.recipe.name}-{_digest(identity)}"

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        for name in ("run_id", "run_dir"):  # of what it is a copy of
            copied.__dict__.pop(name, None)
        return copied

    @cached_property
    def run_dir(self) -> Path:
        return self.results_dir / "runs" / self.run_id

    @property
    def work_dir(self) -> Path:
        """Where the run is written: in its place or, under `sweep.force`, beside it until it is finished."""
        return self.results_dir / "again" / self.run_id if self.sweep.force else self.run_dir

    @property
    def train_tokens(self) -> int:
        """The longest sequence trained on, in tokens."""
        assert self.recipe.train_length is not None
        return self.build_task().length(self.recipe.train_length)

    @property
    def max_tokens(self) -> int:
        """The longest sequence trained or evaluated on, in tokens."""
        assert self.recipe.train_length is not None and self.evaluation.lengths is not None
        task = self.build_task()
        return max(task.length(size) for size in (self.recipe.train_length, *self.evaluation.lengths))

    @property
    def frame(self) -> Frame:
        """The positions of the task, at the lengths trained and evaluated on."""
        assert self.recipe.train_length is not None and self.evaluation.lengths is not None
        task = self.build_task()
        longest = max(self.recipe.train_length, *self.evaluation.lengths)
        return Frame(task.extents(self.recipe.train_length), task.extents(longest), task.digits)

    def build_task(self) -> Task:
        return build_task(self.task.model_dump())

    def build_positions(self) -> Remap:
        return build_positions(self.positions.model_dump(), self.frame)

    def build_encodings(self) -> list[Encoding]:
        """One module for all layers, or one a layer, on torch's default device; what they learn is not yet drawn."""
        assert self.model.causal is not None
        positions = self.build_positions()
        geometry = Geometry(
            dim=self.model.dim,
            heads=self.model.heads,
            layers=self.model.layers,
            train_length=self.train_tokens,
            max_length=self.max_tokens,
            causal=self.model.causal,
            axes=positions.axes,
            train_extents=positions.train_extents,
            max_extents=positions.max_extents,
            digits=positions.frame.digits,
        )
        return build_encodings(self.encoding.model_dump(), geometry)


def _without(options: Mapping[str, Any], neutral: Mapping[str, object]) -> dict[str, Any]:
    """The keys that are not at their neutral value."""
    return {key: value for key, value in options.items() if key not in neutral or value != neutral[key]}


def _digest(identity: Mapping[str, Any]) -> str:
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def resolve(raw: Mapping[str, Any], gpu: bool | None = None) -> Config:
    """The config that `raw`, as composed, stands for: complete, checked, and ready to run.

    Args:
        gpu: whether there is one where it will run; None where that is here.

    Raises:
        ConfigError: all that is wrong with it, a line each.
    """
    errors = []
    completed = dict(raw)
    for group in BASES:
        options = raw.get(group)
        if isinstance(options, Mapping) and {"name", "target"} <= options.keys():
            try:
                completed[group] = complete(group, options)
            except ConfigError as error:
                errors += error.errors
                # What is wrong with the class, or that there is none, is said once.
                completed[group] = {**options, **{key: options[key] or group for key in ("name", "target")}}
    completed["recipe"] = _settled(raw.get("recipe"))
    try:
        config = parse(completed)
    except ConfigError as error:
        errors += error.errors
    if errors:
        raise ConfigError(*errors)
    return _fit(config, gpu)


@dataclass
class Resolver:
    """`resolve`, for the many jobs of a sweep: those that differ in their seed alone are checked together.

    Nothing that is checked depends on the seed but its own range. `gpu` as of `resolve`.
    """

    gpu: bool | None = None
    _found: dict[str, Config | ConfigError] = field(default_factory=dict)

    def __call__(self, raw: Mapping[str, Any]) -> Config:
        """As `resolve`."""
        seed = raw.get("seed")
        if type(seed) is not int or not 0 <= seed <= LARGEST_SEED:
            return resolve(raw, self.gpu)
        key = repr({**raw, "seed": None})  # unlike JSON, tells 1 from 1.0 and from true
        if key not in self._found:
            try:
                self._found[key] = resolve(raw, self.gpu)
            except ConfigError as error:
                self._found[key] = error
        found = self._found[key]
        if isinstance(found, ConfigError):
            raise ConfigError(*found.errors)
        return found.model_copy(update={"seed": seed})


def _settled(recipe: Any) -> Any:
    """A recipe with what its nulls stand for, and null for what has no part in it though every file has the key: so
    that two requests that train in the same way are the same run."""
    if not isinstance(recipe, Mapping):
        return recipe
    settled, neutral = dict(recipe), Recipe.neutral()
    if recipe.get("warmup_steps", 0) is None:
        steps = recipe.get("steps")
        settled["warmup_steps"] = max(0, min(100, steps // 10)) if isinstance(steps, int) else 0
    for key, (choice, users) in PARTS.items():
        has_part = recipe.get(choice, neutral.get(choice)) in users
        if has_part and recipe.get(key) is None and key in USUAL:
            settled[key] = USUAL[key]
        if not has_part and key in recipe and key not in neutral:
            settled[key] = None
    return settled


def parse(raw: Mapping[str, Any]) -> Config:
    """Types, ranges and keys alone.

    Raises:
        ConfigError: all that is wrong with them, a line each.
    """
    start = raw.get("start")
    context = {"started": isinstance(start, Mapping) and start.get("run") is not None}
    try:
        return Config.model_validate_json(json.dumps(raw, default=str), strict=True, context=context)
    except ValidationError as error:
        raise ConfigError(*(_line(details) for details in error.errors(include_url=False))) from None


def _line(error: Any) -> str:
    """One of pydantic's errors as ``recipe.steps=-5: must be at least 1``."""
    section = ".".join(map(str, error["loc"][:-1]))
    key = str(error["loc"][-1])
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])[1:]
    if error["type"] == "value_error":  # a rule between keys, which names them itself
        return rule(error)
    if error["type"] == "missing":
        return f"{path}: is missing"
    if error["type"] == "extra_forbidden":
        allowed = _keys(section)
        where = f"keys of {section}" if section else "keys"
        homes = [name for name in Config.model_fields if not section and key in _keys(name)]
        if homes:
            meant = f"; did you mean {homes[0]}.{key}?"
        else:
            meant = nearest(key, allowed, f"{section}." if section else "")
        return f"{path}={show(error['input'])}: unknown key{meant} ({where}: {', '.join(allowed)})"
    return f"{path}={show(error['input'])}: {rule(error)}"


def _keys(section: str) -> list[str]:
    """The keys of a section by its dotted path, of which plain values have none; of the whole config where it is ""."""
    model: Any = Config
    for part in section.split(".") if section else ():
        annotation = model.model_fields[part].annotation
        kinds = [kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "model_fields")]
        if not kinds:
            return []
        [model] = kinds
    return list(model.model_fields)


def _fit(config: Config, gpu: bool | None) -> Config:
    """Fill in what is left to the task and the machine, and hold the parts against each other.

    `gpu` is as in `resolve`.
    """
    name = config.task.name
    with blamed_on(f"task={name}"):
        task = config.build_task()
    errors = []

    with blamed_on(f"task={name}"):
        train_length = config.recipe.train_length or task.default_train_length
        sizes = config.evaluation.lengths
        if refusal := _refusal(task.check_size, train_length):
            errors.append(f"recipe.train_length={train_length}: {refusal}")
        elif sizes is not None:
            given = f"evaluation.lengths={show(sizes)}"
            errors += [f"{given}: {refusal}" for size in sizes if (refusal := _refusal(task.check_evaluated, size))]
        else:
            # Half of a short training length may be no problem at all.
            multiples = [math.floor(multiple * train_length + 0.5) for multiple in config.evaluation.multiples]
            sizes = [size for size in multiples if not _refusal(task.check_evaluated, size)]
            if max(multiples) > LARGEST:
                largest = show(max(config.evaluation.multiples))
                errors.append(
                    f"evaluation.multiples={largest}: of recipe.train_length={train_length} exceeds {LARGEST}"
                )
            elif not sizes:
                errors.append(
                    f"evaluation.multiples: none of recipe.train_length={train_length} is a size of task={name}"
                )

    recipe = config.recipe
    start = recipe.curriculum_start
    if recipe.early_stop and (refusal := _refusal(task.check_evaluated, train_length)):
        errors.append(f"recipe.early_stop: of recipe.train_length={train_length}: {refusal}")
    if recipe.lengths == "curriculum" and task.training_examples:
        errors.append(f"recipe.lengths=curriculum: task={name} has a finite training set, all of one size; use fixed")
    elif recipe.lengths == "curriculum" and not _refusal(task.check_size, train_length):
        with blamed_on(f"task={name}"):
            smallest = task.sizes(train_length)[0]
        start = smallest if start is None else start
        if not smallest <= start <= train_length:
            allowed = (
                f"must be from {smallest}, the smallest size of task={name}, to recipe.train_length={train_length}"
            )
            errors.append(f"recipe.curriculum_start={start}: {allowed}")

    causal = config.model.causal
    if causal is None:
        causal = task.causal is not False
    elif task.causal is not None and causal != task.causal:
        needs = "causal: true" if task.causal else "bidirectional: false"
        errors.append(f"model.causal={show(causal)}: contradicts task={name}, whose model must be {needs} or null")

    usable = torch.cuda.is_available() if gpu is None else gpu
    device = config.device if config.device != "auto" else "cuda" if usable else "cpu"
    if config.device != "cpu" and gpu is None and (why := absent()):
        errors.append(f"device={config.device}: {why} (correct it, or choose cpu)")
    elif device == "cuda" and not usable:
        why = "torch finds no GPU here" if gpu is None else "the launcher asks for no GPU"
        errors.append(f"device=cuda: {why} (choose cpu or auto)")
    if errors or sizes is None:
        raise ConfigError(*errors)

    # The examples of a finite training set are all of the longest size.
    lengths = "fixed" if task.training_examples else recipe.lengths
    changes = {
        "device": device,
        "task": config.task.model_copy(update=task.pinned()),
        "model": config.model.model_copy(update={"causal": causal}),
        "recipe": recipe.model_copy(
            update={"train_length": train_length, "lengths": lengths, "curriculum_start": start}
        ),
        "evaluation": config.evaluation.model_copy(update={"lengths": sorted(set(sizes))}),
    }
    config = config.model_copy(update=changes)
    _check_encoding(config, task)
    if config.start != Start():
        from rpe_bench.start import pinned  # which needs this module

        with _apart():
            config = config.model_copy(update={"start": pinned(config)})
    return config


def _refusal(check: Callable[[int], None], size: int) -> str | None:
    """Why there is no problem of this size, if so."""
    try:
        check(size)
    except ValueError as error:
        return str(error)
    return None


def _check_encoding(config: Config, task: Task) -> None:
    """Raise ConfigError where the positions cannot be had, or the encoding cannot be built for the model, or does not
    fit it or the positions."""
    label, remapped = f"encoding={config.encoding.name}", f"positions={config.positions.name}"
    asked_by, had_by = ["evaluation.lengths", "recipe.train_length"], [f"task={config.task.name}"]
    if config.positions != PLAIN:
        asked_by.append(remapped)
        had_by.append(remapped)
    with blamed_on(f"task={config.task.name}"):
        frame = config.frame
    with blamed_on(remapped):
        positions = build_positions(config.positions.model_dump(), frame)
    longest = max(positions.max_extents)
    with blamed_on(label), _apart():
        encodings = config.build_encodings()
    errors = []
    if any(encoding.causal_only for encoding in encodings) and not config.model.causal:
        errors.append(f"{label}: has no meaning where a token sees later ones, but model.causal is false")
    for axes in sorted({encoding.axes for encoding in encodings if encoding.axes is not None} - {positions.axes}):
        takes = "1 axis" if axes == 1 else f"{axes} axes"
        errors.append(f"{label}: takes {takes} of position, but {' with '.join(had_by)} has {positions.axes}")
    reach = min((encoding.longest for encoding in encodings if encoding.longest is not None), default=longest)
    if reach < longest:
        errors.append(
            f"{label}: has {reach} positions, but {' and '.join(asked_by)}"
            f" ask for {longest} (make one larger, or the others smaller)"
        )
    if errors:
        raise ConfigError(*errors)
    if positions.fractions:
        halves = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
        with blamed_on(f"{remapped}: {label}"), _apart():
            _try(config, encodings, halves[:, None].expand(3, positions.axes))
    if positions.axes > 1 and any(encoding.longest is not None for encoding in encodings):
        # A table may be long enough along one axis alone.
        corners = torch.tensor([[0] * positions.axes, [extent - 1 for extent in positions.max_extents]])
        with blamed_on(label), _apart():
            _try(config, encodings, corners)


@torch.no_grad()
def _try(config: Config, encodings: list[Encoding], positions_TA: torch.Tensor) -> None:
    """A forward pass at given positions: ValueError of an encoding that has no place for them."""
    assert config.model.causal is not None
    sizes = {"layers": config.model.layers, "dim": config.model.dim, "heads": config.model.heads}
    model = Transformer(vocabulary=1, classes=1, causal=config.model.causal, encodings=encodings, **sizes)
    model.reset_parameters(config.seed)
    model.eval()(torch.zeros(1, len(positions_TA), dtype=torch.int64), positions_TA[None])


@contextmanager
def _apart() -> Iterator[None]:
    """Torch as it is, but for what a constructor might do: draw from the global generator, or start threads.

    A process that has threads cannot be forked safely, and a sweep forks one for each run.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
