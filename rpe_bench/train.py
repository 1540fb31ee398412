"""The training loop: AdamW, warm-up then cosine, one size a step, every random choice a function of (seed, step)."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

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


def train(
    config: Config, task: Task, model: Transformer, device: torch.device, log: Callable[[Progress], None]
) -> tuple[torch.optim.AdamW, Progress]:
    """Train for `recipe.steps`; returns the optimiser and the last progress.

    `log` is called every `recipe.log_every` steps and at the last, with the means over the steps since the last call.

    Raises:
        FloatingPointError: the loss is no longer finite.
    """
    recipe = config.recipe
    data = Data(task, config.build_positions(), recipe, config.seed)
    optimiser = make_optimiser(model, recipe)
    model.train()
    parameters = list(model.parameters())
    losses, norms, tokens, logged_tokens = [], [], 0, 0
    since = time.perf_counter()
    progress = None
    for step in range(recipe.steps):
        batch = data.batch(step).to(device)
        tokens += batch.tokens_BT.numel()
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16-mixed"):
            loss = loss_of(model, batch)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(recipe, step)
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimiser.step()
        losses.append(loss.detach())
        norms.append(norm.detach())
        if (step + 1) % recipe.log_every == 0 or step + 1 == recipe.steps:
            now = time.perf_counter()
            mean_loss = float(torch.stack(losses).mean())
            if not math.isfinite(mean_loss):
                first = step + 1 - len(losses)
                raise FloatingPointError(f"the training loss is {mean_loss} between steps {first} and {step}")
            speed = (tokens - logged_tokens) / (now - since)
            lr = optimiser.param_groups[0]["lr"]
            progress = Progress(step + 1, tokens, mean_loss, lr, float(torch.stack(norms).mean()), speed)
            log(progress)
            losses, norms, logged_tokens, since = [], [], tokens, now
    assert progress is not None  # steps is at least 1
    return optimiser, progress
