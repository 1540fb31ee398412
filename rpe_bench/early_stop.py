"""Early stopping: training ends once held-out examples of the training length say that it no longer helps.

Nothing longer is ever looked at: to stop, or to choose weights, by what lies beyond training would be to select on what
is to be measured. The examples come from a stream of their own, so that they are neither those trained on nor those
evaluated on. A task that holds some of its material back draws them from that: of a text they are windows of the files
held out, which those of the evaluation may overlap. Under one seed they are the same for all encodings.

Patience, and the best weights so far to return to: Prechelt 1998, "Early stopping - but when?".
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rpe_bench.config import Config
from rpe_bench.curriculum import Curriculum
from rpe_bench.evaluate import score, summarise
from rpe_bench.model import Transformer
from rpe_bench.seeds import stream
from rpe_bench.tasks.base import Batch, Task


@dataclass
class Checked:
    """What the checks have found so far, which a run that was interrupted has to know."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """Of validation.csv, one a check."""
    best: float | None = None
    """The metric at the last check that was an improvement."""
    best_step: int | None = None
    without: int = 0
    """Checks since then."""
    stopped: bool = False
    """Whether training has ended before its last step."""
    weights: dict[str, Tensor] | None = None
    """Those at `best_step`, where they are to be returned to."""


class Checks:
    """The held-out examples of a run that may stop early, and the rule by which it does.

    The rule is `recipe.early_stop`. Checks begin when a curriculum has reached the training length: until then they
    would be of a length that has not been trained on.
    """

    def __init__(self, config: Config, task: Task) -> None:
        recipe = config.recipe
        assert recipe.early_stop is not None and recipe.train_length is not None
        self.rule = recipe.early_stop
        self.steps = recipe.steps
        self.size = recipe.train_length
        curriculum = Curriculum.of(recipe)
        self.first = 0 if curriculum is None else curriculum.growing
        batch = held_out(task, config.seed, self.rule.examples, self.size)
        positions = config.build_positions().evaluation(batch, stream("early stop positions", config.seed))
        self.batch = replace(batch, positions=positions)
        self.chance = task.chance(self.size)

    def are_due(self, step: int) -> bool:
        """After so many steps."""
        return step >= self.first and (step % self.rule.every == 0 or step == self.steps)

    def make(self, checked: Checked, step: int, model: Transformer, device: torch.device) -> None:
        """Check a model after so many steps, and write down in `checked` what follows.

        Where training ends here and the best weights are to be kept, the model has them afterwards.
        """
        rule = self.rule
        scores = summarise(self.size, self.batch, *score(model, self.batch, device), self.chance)
        model.train()
        checked.rows.append({"step": step} | scores.evaluation)
        value = scores.evaluation[rule.metric]
        sign = -1 if rule.metric == "loss" else 1
        # Those that reach the threshold are the first to do so, and those to keep, however little better they are.
        reached = rule.threshold is not None and sign * (value - rule.threshold) >= 0
        if reached or checked.best is None or sign * (value - checked.best) > rule.min_improvement:
            checked.best, checked.best_step, checked.without = value, step, 0
            if rule.keep == "best":
                checked.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        else:
            checked.without += 1
        out_of_patience = rule.patience is not None and checked.without >= rule.patience
        checked.stopped = step < self.steps and (reached or out_of_patience)
        if (checked.stopped or step == self.steps) and checked.weights is not None:
            model.load_state_dict(checked.weights)
            checked.weights = None


def held_out(task: Task, seed: int, examples: int, size: int) -> Batch:
    """The examples that are checked, scored as those of an evaluation are."""
    batch = task.held_out(stream("early stop", seed), examples, size)
    return batch if task.last is None else batch.ending(size, task.last)
