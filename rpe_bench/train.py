"""The training loop: AdamW, warm-up then cosine, one size a step, every random choice a function of (seed, step)."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rpe_bench.config import Config, Recipe
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.positions.base import Remap
from rpe_bench.seeds import stream
from rpe_bench.tasks.base import Batch, Task


class Data:
    """The training batch of each step: the same for every encoding under one seed.

    Fresh examples at every step, of one size for the whole batch, so that nothing is padded; or, for a task with a
    finite training set, that set in a new order each epoch. Positions are remapped anew at every step, by draws of a
    stream of their own: the examples are the same under every remap.
    """

    def __init__(self, task: Task, positions: Remap, recipe: Recipe, seed: int) -> None:
        self.task = task
        self.positions = positions
        self.seed = seed
        self.batch_size = recipe.batch_size
        assert recipe.train_length is not None
        longest = recipe.train_length
        self.sizes: Sequence[int] = task.sizes(longest) if recipe.lengths == "uniform" else [longest]
        self.examples = training_set(task, seed, longest)

    def batch(self, step: int) -> Batch:
        batch = self._examples(step)
        return replace(batch, positions=self.positions.training(batch, stream("positions", self.seed, step)))

    def _examples(self, step: int) -> Batch:
        if self.examples is not None:
            return self._from_set(self.examples, step)
        rng = stream("train", self.seed, step)
        size = self.sizes[int(rng.integers(len(self.sizes)))]
        return self.task.sample(rng, self.batch_size, size)

    def _from_set(self, examples: Batch, step: int) -> Batch:
        """The step's slice of an endless sequence of epochs, each in an order of its own."""
        first = step * self.batch_size
        places = np.arange(first, first + self.batch_size)
        epochs, within = places // len(examples), places % len(examples)
        order = {int(e): stream("epoch", self.seed, int(e)).permutation(len(examples)) for e in np.unique(epochs)}
        chosen = torch.from_numpy(np.array([order[int(e)][w] for e, w in zip(epochs, within, strict=True)]))
        return examples.rows(chosen)


def training_set(task: Task, seed: int, size: int) -> Batch | None:
    """The examples of a task that has a finite number of them, all of the longest size."""
    if not task.training_examples:
        return None
    return task.sample(stream("training_set", seed), task.training_examples, size)


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up over `warmup_steps`, then a cosine down to `min_lr_ratio` of the peak at the last step."""
    if step < recipe.warmup_steps:
        return recipe.lr * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - 1 - recipe.warmup_steps)
    return recipe.lr * (recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * (1 + math.cos(math.pi * progress)) / 2)


def make_optimiser(model: Transformer, recipe: Recipe) -> torch.optim.AdamW:
    """Weight decay on matrices of the trunk alone: not on norms, nor on what an encoding has learned of positions."""
    decayed = [p for n, p in model.named_parameters() if p.dim() > 1 and not n.startswith("encodings.")]
    others = [p for n, p in model.named_parameters() if p.dim() <= 1 or n.startswith("encodings.")]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, fused=True)


@dataclass
class Progress:
    """One row of train.csv."""

    step: int
    tokens: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float


@dataclass
class State:
    """Where training stands between two steps: with the weights, all that the steps to come depend on.

    Examples, positions and learning rate are functions of (seed, step), so that there is no generator to be kept.
    """

    optimiser: torch.optim.AdamW
    step: int = 0
    tokens: int = 0
    logged_tokens: int = 0
    losses: list[Tensor] = field(default_factory=list)
    """Of the steps since the last row of train.csv, as are the norms."""
    norms: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0
    """That training has taken."""
    logged_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For torch.save."""
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        kept["optimiser"] = self.optimiser.state_dict()
        for name in ("losses", "norms"):  # one tensor each rather than as many as there are steps
            kept[name] = torch.stack(kept[name]) if kept[name] else torch.empty(0)
        return kept

    def load(self, kept: Mapping[str, Any]) -> None:
        """Become what `as_dict` was made of."""
        values = {item.name: kept[item.name] for item in fields(self)}
        self.optimiser.load_state_dict(values.pop("optimiser"))
        for name, value in values.items():
            setattr(self, name, list(value) if name in ("losses", "norms") else value)


def train(
    config: Config,
    task: Task,
    model: Transformer,
    device: torch.device,
    log: Callable[[Progress], None],
    state: State | None = None,
    after_step: Callable[[State], None] = lambda state: None,
) -> State:
    """Train up to `recipe.steps`, from `state` on; returns the state at the end.

    Args:
        log: is called every `recipe.log_every` steps and at the last, with the means over the steps since then.
        after_step: is called between steps, when the state and the model are what the next step starts from.

    Raises:
        FloatingPointError: the loss is no longer finite.
    """
    recipe = config.recipe
    data = Data(task, config.build_positions(), recipe, config.seed)
    state = state or State(make_optimiser(model, recipe))
    optimiser = state.optimiser
    model.train()
    parameters = list(model.parameters())
    began = time.perf_counter() - state.seconds
    while state.step < recipe.steps:
        batch = data.batch(state.step).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16-mixed"):
            loss = loss_of(model, batch)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, state.step)
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimiser.step()
        state.step += 1
        state.tokens += batch.tokens_BT.numel()
        state.losses.append(loss.detach())
        state.norms.append(norm.detach())
        state.seconds = time.perf_counter() - began
        if state.step % recipe.log_every == 0 or state.step == recipe.steps:
            mean_loss = float(torch.stack(state.losses).mean())
            if not math.isfinite(mean_loss):
                first = state.step - len(state.losses)
                raise FloatingPointError(f"the training loss is {mean_loss} between steps {first} and {state.step - 1}")
            state.seconds = time.perf_counter() - began  # a GPU is waited for by the mean alone
            speed = (state.tokens - state.logged_tokens) / (state.seconds - state.logged_seconds)
            lr = optimiser.param_groups[0]["lr"]
            log(Progress(state.step, state.tokens, mean_loss, lr, float(torch.stack(state.norms).mean()), speed))
            state.losses, state.norms = [], []
            state.logged_tokens, state.logged_seconds = state.tokens, state.seconds
        after_step(state)
    return state
