"""A RoPE model at several times its training length: each scaling of its rotation, as it is and after fine-tuning."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rpe_bench import catalogue
from rpe_bench.components import complete
from rpe_bench.config import LARGEST
from rpe_bench.errors import ConfigError, nearest
from rpe_bench.stages import Overrides, Plan, Stage, trained_positions
from rpe_bench.trained import Trained

PLAIN, BASE = "plain", "base"
"""The rotation as it was trained; and with another base, which is no scaling of a class of its own."""
ZERO_SHOT, FINE_TUNED = "zero_shot", "fine_tuned"
TAKEN = {
    "recipe.steps": "--steps",
    "recipe.lr": "--lr",
    "recipe.name": "the stage",
    "recipe.train_length": "--factor",
}
"""Keys that are not for overrides."""


def scalings() -> dict[str, dict[str, Any]]:
    """The scalings of RoPE by their names, each with every option spelt out: those of the files in conf/encoding."""
    found = {}
    for name in catalogue.encodings():
        options = catalogue.read("encoding", name)
        if isinstance(options.get("scaling"), Mapping):
            spelt_out = complete("encoding", options)["scaling"]
            found[str(spelt_out["name"])] = spelt_out
    return found


def chosen_scalings(given: str | None) -> list[str]:
    """The scalings that are asked for: `a,b`, or all of them where nothing is.

    Raises:
        ConfigError: there is none of such a name.
    """
    chosen = [PLAIN, *scalings(), BASE] if given is None else list(dict.fromkeys(given.split(",")))
    _check_scalings("--scalings", chosen)
    return chosen


def check_scaling(name: str) -> None:
    """Raise ConfigError where there is no scaling of a name."""
    _check_scalings("--scaling", [name])


def _check_scalings(flag: str, names: Sequence[str]) -> None:
    known = [PLAIN, *scalings(), BASE]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            *(f"{flag}={n}: no such scaling{nearest(n, known)} (choose from {', '.join(known)})" for n in unknown)
        )


def check_factor(factor: float) -> None:
    if not 1 < factor < math.inf:
        raise ConfigError(f"--factor={factor:g}: must be a number more than 1: how many times the length trained on")


def check_rotation(where: str, encoding: Mapping[str, Any]) -> None:
    """Raise ConfigError where an encoding, with every parameter spelt out, has no rotation to be scaled."""
    if not {"base", "scaling"} <= encoding.keys():
        able = [name for name in catalogue.encodings() if catalogue.read("encoding", name).get("scaling", "") is None]
        raise ConfigError(
            f"{where}: encoding={encoding['name']} has no rotation that could be scaled (as {', '.join(able)} have)"
        )
    if encoding["scaling"] is not None:
        raise ConfigError(
            f"{where}: the rotation of encoding={encoding['name']} is scaled already; begin with a plain one"
        )


def scaled(
    encoding: Mapping[str, Any], scaling: str, factor: float, trained: int, base: float | None
) -> dict[str, Any]:
    """An encoding with its rotation scaled.

    Args:
        factor: s, how many times the length trained on.
        trained: positions met in training, the `original_length` of a scaling that knows it, also where a run goes on
            to train at a longer length.
        base: of the scaling `base`; by default 10 s times the base that there was, so that 10,000 becomes 400,000 for
            s = 4, as much as Xiong et al. 2023 (arXiv 2309.16039) took, 500,000. NTK-aware scaling, after which the
            lowest frequency is divided by exactly s, multiplies it by s^(r/(r-2)) alone.
    """
    if scaling == PLAIN:
        return dict(encoding)
    named = {**encoding, "name": f"{encoding['name']}_{scaling}"}
    if scaling == BASE:
        return named | {"base": 10 * factor * encoding["base"] if base is None else base}
    options = scalings()[scaling] | {"factor": factor}
    if "original_length" in options:
        options["original_length"] = trained
    return named | {"scaling": options}


def lengths_of(train_length: int, factor: float) -> list[int]:
    """Sizes to evaluate at: the training length, twice that, four times, and so on up to `factor` times."""
    longest = extended(train_length, factor)
    doublings = [train_length * 2**n for n in range(math.ceil(math.log2(factor)))]
    return sorted({*doublings, longest})


def extended(train_length: int, factor: float) -> int:
    """`factor` times a length, to the nearest whole number.

    Raises:
        ConfigError: that is no longer, or longer than any length may be.
    """
    longest = math.floor(factor * train_length + 0.5)
    if not train_length < longest <= LARGEST:
        allowed = f"must be from {train_length + 1} to {LARGEST}"
        raise ConfigError(f"--factor={factor:g}: of the length trained on, {train_length}, {allowed}")
    return longest


def comparison(
    sources: Sequence[Trained],
    chosen: Sequence[str],
    factor: float,
    steps: int,
    lr: float | None,
    base: float | None,
    overrides: Overrides,
) -> tuple[Plan, list[tuple[Trained, str, Stage]]]:
    """Every run of a comparison: its source, its scaling and what it does.

    Raises:
        ConfigError: the runs have no rotation to be scaled, or `factor` times their length is no length.
    """
    first = sources[0].config
    check_rotation(str(sources[0].directory), first.encoding.model_dump())
    assert first.recipe.train_length is not None  # resolved
    trained, longest = trained_positions(sources[0]), extended(first.recipe.train_length, factor)
    runs = []
    for scaling in chosen:
        encoding = scaled(first.encoding.model_dump(), scaling, factor, trained, base)
        stages = [Stage(ZERO_SHOT, encoding)]
        if steps:
            stages.append(Stage(FINE_TUNED, encoding, steps, lr, longest))
        overrides.check(stages)
        runs += [(source, scaling, stage) for stage in stages for source in sources]
    return Plan(lengths_of(first.recipe.train_length, factor), overrides), runs
