"""What a profile is made of: one call of one encoding's model, on sequences of one length.

Time and memory depend on shapes alone, so that tokens are random and every one of them is scored; what an encoding
learns is as drawn. Vocabulary and answers are the task's, sizes and recipe the config's. A model is built as if it had
been trained at the very length that it is called at.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from rpe_bench.components import build_encodings, load_class
from rpe_bench.config import Config
from rpe_bench.encodings.base import DistanceBias, Encoding, Geometry
from rpe_bench.model import Transformer
from rpe_bench.seeds import torch_stream
from rpe_bench.tasks.base import Batch
from rpe_bench.train import add_gradient, make_optimiser

KINDS = ("training", "evaluation")
"""A step of training on `recipe.batch_size` examples; a forward pass without gradients of one example."""

BASELINE = "nope"
"""What every encoding is compared with."""

Call = Callable[[], None]


class Cell(NamedTuple):
    """One call that is measured."""

    kind: str
    length: int
    encoding: str


@dataclass(frozen=True)
class Subject:
    """An encoding, by the keys of its YAML."""

    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.options["name"])

    @property
    def cls(self) -> type[Encoding]:
        found: type[Encoding] = load_class("encoding", self.options["target"])
        return found

    @property
    def axes(self) -> int:
        """Columns of a position that it is given: of a grid, cells of the smallest square."""
        return self.cls.axes or 1

    @property
    def place(self) -> str:
        """Where it brings positions in, as costs differ by it."""
        cls = self.cls
        places = [cls.in_effect] if cls.in_effect else cls.changes()
        if not places:
            return "no position"
        if not cls.pairwise:
            return "content"
        if places[0] == "bias" and issubclass(cls, DistanceBias):
            return "distance bias"
        return {"embed": "embedding", "rotate": "rotation"}.get(places[0], "other bias")


def build(config: Config, subject: Subject, length: int) -> Transformer:
    """The model of a subject for sequences of a length, on the CPU.

    Raises:
        ValueError: the encoding has no meaning in such a model, or cannot be built for it.
    """
    assert config.model.causal is not None  # resolved
    task, causal = config.build_task(), config.model.causal
    layers, dim, heads = config.model.layers, config.model.dim, config.model.heads
    if subject.cls.causal_only and not causal:
        raise ValueError("has no meaning where a token sees later ones, but model.causal is false")
    geometry = Geometry(dim, heads, length, length, causal, layers, subject.axes)
    model = Transformer(
        vocabulary=task.vocabulary,
        classes=task.classes,
        layers=layers,
        dim=dim,
        heads=heads,
        causal=causal,
        encodings=build_encodings(subject.options, geometry),
        embedding_std=config.model.embedding_std,
    )
    model.reset_parameters(config.seed)
    return model


def batch_of(config: Config, subject: Subject, length: int, examples: int) -> Batch:
    """Random tokens and targets."""
    task, generator = config.build_task(), torch_stream("profile", length)
    shape = (examples, length)
    tokens_BT = torch.randint(task.vocabulary, shape, generator=generator)
    targets_BT = torch.randint(task.classes, shape, generator=generator)
    return Batch(tokens_BT, targets_BT, _cells(subject.axes, *shape))


def _cells(axes: int, examples: int, length: int) -> Tensor | None:
    if axes == 1:
        return None
    geometry = Geometry(dim=1, heads=1, train_length=length, max_length=length, causal=True, axes=axes)
    cells = torch.cartesian_prod(*(torch.arange(side) for side in geometry.max_extents))
    return cells[:length].expand(examples, length, axes)


def examples_of(config: Config, kind: str) -> int:
    return config.recipe.batch_size if kind == "training" else 1


def prepared(config: Config, subject: Subject, kind: str, length: int) -> tuple[Call, Transformer]:
    """The call of a cell, with all that it needs on the config's device, and the model that it is of."""
    device = torch.device(config.device)
    model = build(config, subject, length).to(device)
    batch = batch_of(config, subject, length, examples_of(config, kind))
    return (training_step(config, model, batch) if kind == "training" else evaluation(model, batch.to(device))), model


def training_step(config: Config, model: Transformer, batch: Batch) -> Call:
    """A step as `train` takes it, but for sampling and bookkeeping."""
    recipe, device = config.recipe, torch.device(config.device)
    optimiser, parameters = make_optimiser(model, recipe), list(model.parameters())
    model.train()

    def step() -> None:
        optimiser.zero_grad()
        add_gradient(model, batch, recipe, device)
        clip_grad_norm_(parameters, recipe.grad_clip)
        optimiser.step()

    return step


def evaluation(model: Transformer, batch: Batch) -> Call:
    """A forward pass as an evaluation makes it, always in float32; a logit for each token and answer."""
    model.eval()

    @torch.no_grad()
    def call() -> None:
        model(batch.tokens_BT, batch.positions)

    return call


class Clock:
    """Seconds that a call takes.

    On the CPU with one thread, the processor's time: what else the machine does then matters less. Otherwise time on
    the wall, a GPU being waited for.
    """

    def __init__(self, config: Config) -> None:
        self.device = torch.device(config.device)
        alone = config.device == "cpu" and config.threads == 1
        self.name = "processor time" if alone else "wall time"
        self._now = time.process_time if alone else time.perf_counter

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self._now()

    def of(self, call: Call) -> float:
        start = self.now()
        call()
        return self.now() - start


def lengths_of(kind: str, given: Sequence[int] | None) -> list[int]:
    """The lengths that a kind is measured at: those given, or by default as many as show how it grows."""
    if given is not None:
        return sorted(set(given))
    return [64, 128, 256, 512, 1024] if kind == "training" else [256, 512, 1024, 2048, 4096, 8192]
