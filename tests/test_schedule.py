"""Learning rates against closed forms and, where torch has the same schedule, against its own."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler

from rpe_bench.config import Recipe
from rpe_bench.schedule import learning_rate

STEPS, WARMUP, PEAK, LOWEST = 111, 10, 0.02, 0.1


@pytest.fixture
def recipe(make_config) -> Callable[..., Recipe]:
    def make(schedule: str, **keys: object) -> Recipe:
        base = {"steps": STEPS, "warmup_steps": WARMUP, "lr": PEAK, "min_lr_ratio": LOWEST, "schedule": schedule}
        return make_config(overrides={f"recipe.{key}": value for key, value in (base | keys).items()}).recipe

    return make


def rates(recipe: Recipe) -> list[float]:
    return [learning_rate(recipe, step) for step in range(recipe.steps)]


def of_torch(count: int, make: Callable[[torch.optim.Optimizer], LRScheduler]) -> list[float]:
    """What one of torch's schedulers does to the peak over so many steps."""
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler = make(optimiser)
    found = []
    for _ in range(count):
        found += scheduler.get_last_lr()
        optimiser.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "inverse_sqrt", "wsd"])
def test_every_schedule_warms_up_linearly_to_the_peak(recipe, schedule: str) -> None:
    found = rates(recipe(schedule))
    assert found[:WARMUP] == pytest.approx([PEAK * (step + 1) / WARMUP for step in range(WARMUP)])
    # The factor of torch's goes from that of the first step to 1.
    first = {"start_factor": 1 / WARMUP, "total_iters": WARMUP - 1}
    assert found[:WARMUP] == pytest.approx(of_torch(WARMUP, lambda optimiser: LinearLR(optimiser, **first)))
    assert max(found) == pytest.approx(PEAK)
    assert all(one >= other for one, other in pairwise(found[WARMUP - 1 :]))


def test_cosine(recipe) -> None:
    found = rates(recipe("cosine"))
    assert found[10] == pytest.approx(PEAK)
    assert found[60] == pytest.approx(PEAK * (0.1 + 0.9 / 2))  # half way from 10 to 110
    assert found[35] == pytest.approx(PEAK * (0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2))  # a quarter of the way
    assert found[110] == pytest.approx(PEAK * LOWEST)
    torchs = of_torch(101, lambda optimiser: CosineAnnealingLR(optimiser, T_max=100, eta_min=PEAK * LOWEST))
    assert found[10:] == pytest.approx(torchs)


def test_linear(recipe) -> None:
    found = rates(recipe("linear"))
    assert [found[step] for step in (10, 60, 110)] == pytest.approx([PEAK, PEAK * 0.55, PEAK * LOWEST])
    fall = {"start_factor": 1.0, "end_factor": LOWEST, "total_iters": 100}
    assert found[10:] == pytest.approx(of_torch(101, lambda optimiser: LinearLR(optimiser, **fall)))


def test_constant(recipe) -> None:
    same = of_torch(101, lambda optimiser: ConstantLR(optimiser, factor=1.0))
    assert rates(recipe("constant"))[10:] == same == [PEAK] * 101


def test_inverse_sqrt_is_that_of_the_first_transformer_scaled_to_its_peak(recipe) -> None:
    found = rates(recipe("inverse_sqrt"))
    paper = [min(n**-0.5, n * WARMUP**-1.5) for n in range(1, STEPS + 1)]
    assert found == pytest.approx([PEAK * rate / max(paper) for rate in paper])
    assert found[39] == pytest.approx(PEAK / 2)  # at four times the warm-up
    assert rates(recipe("inverse_sqrt", warmup_steps=0, steps=4)) == pytest.approx([PEAK / n**0.5 for n in range(1, 5)])


def test_wsd_is_flat_and_then_decays_over_its_share(recipe) -> None:
    config = recipe("wsd", decay_share=0.36)
    assert config.decay_steps == 40
    found = rates(config)
    assert found[10:71] == [PEAK] * 61
    assert [found[step] for step in (71, 90, 110)] == pytest.approx([PEAK * (1 - 0.9 / 40), PEAK * 0.55, PEAK * LOWEST])
    fall = {"start_factor": 1.0, "end_factor": LOWEST, "total_iters": 40}
    assert found[70:] == pytest.approx(of_torch(41, lambda optimiser: LinearLR(optimiser, **fall)))
    assert recipe("wsd").decay_share == 0.2


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("cosine", 0, [1, 0.5, 0]),
        ("cosine", 1, [1, 1, 0]),
        ("cosine", 3, [1 / 3, 2 / 3, 1]),
        ("linear", 0, [1, 0.5, 0]),
        ("linear", 2, [0.5, 1, 1]),
        ("wsd", 0, [1, 1, 0]),
        ("wsd", 2, [0.5, 1, 0]),
        ("constant", 0, [1, 1, 1]),
        ("inverse_sqrt", 1, [1, 0.5**0.5, 3**-0.5]),
    ],
)
def test_very_short_runs(recipe, schedule: str, warmup: int, expected: list[float]) -> None:
    keys = {"steps": 3, "warmup_steps": warmup, "lr": 1.0, "min_lr_ratio": 0.0}
    assert rates(recipe(schedule, **keys)) == pytest.approx(expected)
