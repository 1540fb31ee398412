"""Lengths of training by a curriculum: its bound, the sizes drawn under it, and what it costs."""

from collections import Counter

import pytest
import torch

from rpe_bench.config import Config
from rpe_bench.curriculum import Curriculum
from rpe_bench.sweep.progress import effort
from rpe_bench.train import Data


def data_of(config: Config) -> Data:
    return Data(config.build_task(), config.build_positions(), config.recipe, config.seed)


def test_the_bound_grows_evenly_and_then_stays() -> None:
    curriculum = Curriculum(start=4, longest=10, growing=12)
    assert [curriculum.bound(step) for step in range(15)] == [4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 10]
    assert [Curriculum(4, 10, 1).bound(step) for step in range(3)] == [4, 10, 10]
    assert [Curriculum(4, 4, 3).bound(step) for step in range(5)] == [4] * 5


@pytest.mark.parametrize("steps", [1, 7, 12, 13, 100])
@pytest.mark.parametrize("growing", [1, 5, 12])
def test_the_mean_bound_is_that_of_the_bounds(growing: int, steps: int) -> None:
    """But for rounding to whole sizes: less than one, and half a step's growth at either end."""
    curriculum = Curriculum(start=40, longest=100, growing=growing)
    mean = sum(curriculum.bound(step) for step in range(steps)) / steps
    assert mean == pytest.approx(curriculum.mean_bound(steps), abs=1 + 60 / growing / 2)
    assert Curriculum(40, 100, 10**6).mean_bound(2 * 10**6) == 85  # 70 for half of the time, then 100


def test_what_a_recipe_says(make_config) -> None:
    keys = {"recipe.lengths": "curriculum", "recipe.steps": 9, "recipe.curriculum_share": 0.3}
    assert Curriculum.of(make_config("copy", "rope", keys).recipe) == Curriculum(4, 16, 3)
    keys |= {"recipe.curriculum_start": 7, "recipe.curriculum_share": None, "recipe.train_length": 20}
    assert Curriculum.of(make_config("copy", "rope", keys).recipe) == Curriculum(7, 20, 4)
    assert Curriculum.of(make_config("copy", "rope", keys | {"recipe.curriculum_share": 0.01}).recipe).growing == 1
    assert Curriculum.of(make_config("copy").recipe) is None


def test_sizes_are_uniform_up_to_the_bound(make_config) -> None:
    keys = {"recipe.lengths": "curriculum", "recipe.batch_size": 1, "recipe.train_length": 9}
    data = data_of(make_config("copy", "rope", keys | {"recipe.steps": 6000, "recipe.curriculum_share": 0.5}))
    sizes = [(data.batch(step).tokens_BT.shape[1] - 1) // 2 for step in range(4200)]
    for first, bound in ((600, 5), (1200, 6), (3000, 9)):
        assert data.curriculum.bound(first) == bound
        counts = Counter(sizes[first : first + 600])
        assert sorted(counts) == list(range(4, bound + 1))
        expected = 600 / len(counts)
        assert sum((count - expected) ** 2 / expected for count in counts.values()) < 20.5  # as for uniform lengths
    assert set(sizes[:600]) == {4}


def test_once_it_has_ended_batches_are_those_of_uniform_lengths(make_config) -> None:
    keys = {"recipe.steps": 40, "recipe.curriculum_share": 0.5, "recipe.lengths": "curriculum"}
    growing, uniform = data_of(make_config("copy", "rope", keys)), data_of(make_config("copy"))
    same = [torch.equal(growing.batch(step).tokens_BT, uniform.batch(step).tokens_BT) for step in range(40)]
    assert all(same[20:]) and not all(same[:20])


def test_only_sizes_of_the_task_are_drawn(make_config) -> None:
    """Grids of up to 64 cells, which not every number is."""
    config = make_config("grid_lookup", "vit", {"recipe.lengths": "curriculum", "recipe.steps": 60})
    data, sizes = data_of(config), config.build_task().sizes(64)
    assert len(sizes) < 61
    drawn = [data.batch(step).tokens_BT.shape[1] for step in range(60)]
    assert set(drawn) <= set(sizes) and max(drawn[:15]) <= 34 < max(drawn)


def test_batches_are_a_function_of_seed_step_and_recipe(make_config) -> None:
    config = make_config("copy", "nope", {"recipe.lengths": "curriculum", "recipe.steps": 8})
    forwards, backwards = data_of(config), data_of(config)
    later = {step: backwards.batch(step).tokens_BT for step in reversed(range(8))}
    assert all(torch.equal(forwards.batch(step).tokens_BT, later[step]) for step in range(8))


def test_a_sweep_knows_that_it_is_shorter(make_config) -> None:
    """So that the estimates of a sweep are not those of uniform lengths."""

    def of(lengths: str, **keys: object) -> float:
        overrides = {"recipe.lengths": lengths, "recipe.steps": 10_000} | {f"recipe.{k}": v for k, v in keys.items()}
        return effort(make_config("copy", "rope", overrides | {"evaluation.examples": 1}))

    assert of("curriculum") < of("uniform") < of("fixed")
    assert of("curriculum", curriculum_share=1.0) < of("curriculum", curriculum_share=0.1)
    assert of("curriculum", curriculum_start=16) == of("uniform")
    assert of("curriculum", curriculum_start=8, curriculum_share=1.0) / of("uniform") == pytest.approx(0.75, abs=0.01)
