"""Another encoding for a finished run: the stages of the change, and of taking an encoding away."""

from collections.abc import Sequence
from typing import Any

from rpe_bench.extension import check_factor, check_rotation, check_scaling, scaled
from rpe_bench.stages import Overrides, Plan, Stage, chosen_encoding
from rpe_bench.trained import Trained

CHANGED, PRETRAINED, FINE_TUNED, SCALED = "changed", "pretrained", "fine_tuned", "scaled"
DROPPED, RECALIBRATED = "dropped", "recalibrated"
TAKEN = {"recipe.steps": "a flag of its stage", "recipe.lr": "a flag of its stage", "recipe.name": "the stage"}
"""Keys that are not for overrides."""


def retrofitting(
    sources: Sequence[Trained],
    encoding: str,
    overrides: Overrides,
    pretraining: tuple[int, float | None],
    fine_tuning: tuple[int, float | None, int | None],
    scaling: tuple[str, float] | None,
) -> tuple[Plan, list[Stage]]:
    """The way to a model with another encoding: change, go on with pre-training, fine-tune, scale.

    Args:
        encoding: its id.
        pretraining: steps, and their learning rate (a tenth of the source's where None), at the source's length.
        fine_tuning: steps, learning rate, and the size to train at: twice the source's where None.
        scaling: at inference, of a rotation: its name, and the factor over the length last trained on.

    Raises:
        ConfigError: it is the encoding that the runs have, or has no rotation to be scaled.
    """
    options = chosen_encoding(sources, encoding, overrides)
    source = sources[0].config
    assert source.recipe.train_length is not None and source.evaluation.lengths is not None  # resolved
    stages, length = [Stage(CHANGED, options)], source.recipe.train_length
    if pretraining[0]:
        stages.append(Stage(PRETRAINED, options, *pretraining))
    if fine_tuning[0]:
        length = 2 * length if fine_tuning[2] is None else fine_tuning[2]
        stages.append(Stage(FINE_TUNED, options, fine_tuning[0], fine_tuning[1], length))
    if scaling is not None:
        name, factor = scaling
        check_scaling(name)
        check_factor(factor)
        check_rotation("--scaling", options)
        last = source.model_copy(update={"recipe": source.recipe.model_copy(update={"train_length": length})})
        trained = last.build_positions().train_extents[0]
        stages.append(Stage(SCALED, scaled(options, name, factor, trained, None), train_length=length))
    return Plan(source.evaluation.lengths, overrides), stages


def dropping(
    sources: Sequence[Trained], steps: int, lr: float | None, overrides: Overrides
) -> tuple[Plan, list[Stage]]:
    """Take the encoding away, and go on without it for a few steps: DroPE, 2025 (arXiv 2512.12167).

    The scale of the softmax stays, which that paper tunes besides.

    Raises:
        ConfigError: the runs have none.
    """
    options: dict[str, Any] = chosen_encoding(sources, "nope", overrides)
    lengths = sources[0].config.evaluation.lengths
    assert lengths is not None  # resolved
    return Plan(lengths, overrides), [Stage(DROPPED, options), Stage(RECALIBRATED, options, steps, lr)]
