"""Learning rates: a linear warm-up, then one of five schedules.

Of S steps t = 0 .. S - 1, W warm up; r is `min_lr_ratio`. In units of `lr`, the schedule following the warm-up:

    warm-up        (t + 1) / W                              while t < W
    cosine         r + (1 - r) (1 + cos(pi p)) / 2          with p = (t - W) / (S - 1 - W)
    linear         1 - (1 - r) p
    constant       1
    inverse_sqrt   sqrt(max(W, 1) / (t + 1))
    wsd            1 - (1 - r) max(0, t + 1 - S + D) / D    warm-up, stable, decay: D steps decay, `decay_share` of all

Those with an r end at it, in the last step. inverse_sqrt, which knows nothing of S, has its peak where warm-up ends.

Cosine: Loshchilov and Hutter 2017, 1608.03983. Linear, as of BERT: Devlin et al. 2019, 1810.04805. Inverse square root,
as of the first Transformer but for its factor: Vaswani et al. 2017, 1706.03762. WSD: Hu et al. 2024, 2404.06395; with a
linear decay, Hägele et al. 2024, 2405.18392.
"""

import math

from rpe_bench.config import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of a step, counted from 0, of a resolved recipe."""
    warmup = recipe.warmup_steps
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    if recipe.schedule == "constant":
        return recipe.lr
    if recipe.schedule == "inverse_sqrt":
        return recipe.lr * math.sqrt(max(warmup, 1) / (step + 1))
    lowest = recipe.min_lr_ratio
    assert lowest is not None
    if recipe.schedule == "wsd":
        decaying = max(0, step + 1 - recipe.steps + recipe.decay_steps)
        return recipe.lr * (1 - (1 - lowest) * decaying / recipe.decay_steps)
    progress = (step - warmup) / max(1, recipe.steps - 1 - warmup)
    if recipe.schedule == "linear":
        return recipe.lr * (1 - (1 - lowest) * progress)
    return recipe.lr * (lowest + (1 - lowest) * (1 + math.cos(math.pi * progress)) / 2)
