"""The training loop: one size a step, and every random choice a function of (seed, step)."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rpe_bench.config import Config, Recipe
from rpe_bench.curriculum import Curriculum
from rpe_bench.early_stop import Checked, Checks
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.positions.base import Remap
from rpe_bench.schedule import learning_rate
from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE, Batch, Task


class Data:
    """The training batch of each step: the same for every encoding under one seed.

    Fresh examples at every step, of one size for the whole batch, so that nothing is padded; or, for a task with a
    finite training set, that set in a new order each epoch. Positions are remapped anew at every step, by draws of a
    stream of their own: the examples are the same under every remap.

    A run that begins with another's weights, which have `behind` steps of training behind them, goes on with the batch
    after the last of those: it meets none twice, and meets the same ones whatever it changes.
    """

    def __init__(self, task: Task, positions: Remap, recipe: Recipe, seed: int, behind: int = 0) -> None:
        self.task = task
        self.positions = positions
        self.seed = seed
        self.behind = behind
        self.batch_size = recipe.batch_size
        assert recipe.train_length is not None
        longest = recipe.train_length
        self.sizes: Sequence[int] = [longest] if recipe.lengths == "fixed" else task.sizes(longest)
        self.curriculum = Curriculum.of(recipe)
        self.examples = training_set(task, seed, longest)

    def batch(self, step: int) -> Batch:
        step += self.behind
        batch = self._examples(step)
        return replace(batch, positions=self.positions.training(batch, stream("positions", self.seed, step)))

    def _examples(self, step: int) -> Batch:
        if self.examples is not None:
            return self._from_set(self.examples, step)
        rng = stream("train", self.seed, step)
        allowed = len(self.sizes)
        if self.curriculum is not None:
            allowed = bisect_right(self.sizes, self.curriculum.bound(step - self.behind))
        size = self.sizes[int(rng.integers(allowed))]
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


def make_optimiser(model: Transformer, recipe: Recipe) -> torch.optim.Optimizer:
    """torch's own, of a resolved recipe; w is its weight decay, g the clipped gradient, b1 and b2 its betas.

        adamw   m <- b1 m + (1 - b1) g,  m' = m / (1 - b1^n) at step n = 1, ..;  v and v' likewise, of g^2 and b2
                theta <- (1 - lr w) theta - lr m' / (sqrt(v') + 1e-8)     Loshchilov and Hutter 2019, 1711.05101
        adam    the same without the factor, and of g + w theta for g     Kingma and Ba 2015, 1412.6980
        sgd     v <- momentum v + g + w theta,  theta <- theta - lr v     Polyak 1964; v starts at 0

    Weight decay is on matrices of the trunk alone: not on norms, nor on what an encoding has learned of positions.
    """
    decayed = [p for n, p in model.named_parameters() if p.dim() > 1 and not n.startswith("encodings.")]
    others = [p for n, p in model.named_parameters() if p.dim() <= 1 or n.startswith("encodings.")]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if recipe.optimiser == "sgd":
        assert recipe.momentum is not None
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, fused=True)
    assert recipe.betas is not None
    family = torch.optim.AdamW if recipe.optimiser == "adamw" else torch.optim.Adam
    return family(groups, lr=recipe.lr, betas=recipe.betas, fused=True)


def add_gradient(model: Transformer, batch: Batch, recipe: Recipe, device: torch.device) -> Tensor:
    """Add the gradient of a step's loss to that of the parameters; returns the loss, which has no graph.

    The loss is the mean over the scored tokens of the whole batch, in however many micro-batches it is taken: each is
    weighted by its scored tokens, since a mean of their means would give the tokens of a sparser one more weight.
    """
    size = len(batch) // recipe.accumulate
    parts = [batch.rows(slice(start, start + size)) for start in range(0, len(batch), size)]
    scored = [int((part.targets_BT != IGNORE).sum()) for part in parts]
    total = torch.zeros((), device=device)
    for part, count in zip(parts, scored, strict=True):
        if count == 0:  # whose mean would not be a number
            continue
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16-mixed"):
            loss = loss_of(model, part.to(device)) * (count / sum(scored))
        loss.backward()
        total += loss.detach()
    return total


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

    optimiser: torch.optim.Optimizer
    step: int = 0
    tokens: int = 0
    logged_tokens: int = 0
    losses: list[Tensor] = field(default_factory=list)
    """Of the steps since the last row of train.csv, as are the norms."""
    norms: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0
    """That training has taken, checks included."""
    logged_seconds: float = 0.0
    checked: Checked = field(default_factory=Checked)
    """Empty without `recipe.early_stop`."""

    def is_over(self, recipe: Recipe) -> bool:
        """Whether no step follows."""
        return self.step >= recipe.steps or self.checked.stopped

    def as_dict(self) -> dict[str, Any]:
        """For torch.save."""
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        kept["optimiser"] = self.optimiser.state_dict()
        for name in ("losses", "norms"):  # one tensor each rather than as many as there are steps
            kept[name] = torch.stack(kept[name]) if kept[name] else torch.empty(0)
        kept["checked"] = dict(vars(self.checked))
        return kept

    def load(self, kept: Mapping[str, Any]) -> None:
        """Become what `as_dict` was made of."""
        values = {item.name: kept[item.name] for item in fields(self) if item.name != "checked"}
        self.optimiser.load_state_dict(values.pop("optimiser"))
        self.checked = Checked(**kept.get("checked", {}))  # checkpoints from before there was early stopping have none
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
    """Train up to `recipe.steps`, or until `recipe.early_stop` ends it, from `state` on; returns the state at the end.

    Args:
        log: is called every `recipe.log_every` steps and at the last, with the means over the steps since then.
        after_step: is called between steps, when the state and the model are what the next step starts from; after the
            last, the model is the one to be evaluated.

    Raises:
        FloatingPointError: the loss is no longer finite.
    """
    recipe = config.recipe
    data = Data(task, config.build_positions(), recipe, config.seed, config.start.steps or 0)
    state = state or State(make_optimiser(model, recipe))
    optimiser = state.optimiser
    checks = Checks(config, task) if recipe.early_stop else None
    model.train()
    parameters = list(model.parameters())
    began = time.perf_counter() - state.seconds
    while not state.is_over(recipe):
        batch = data.batch(state.step)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, state.step)
        optimiser.zero_grad()
        loss = add_gradient(model, batch, recipe, device)
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimiser.step()
        state.step += 1
        state.tokens += batch.tokens_BT.numel()
        state.losses.append(loss)
        state.norms.append(norm.detach())
        if checks is not None and checks.are_due(state.step):
            checks.make(state.checked, state.step, model, device)
        state.seconds = time.perf_counter() - began
        if state.step % recipe.log_every == 0 or state.is_over(recipe):
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
