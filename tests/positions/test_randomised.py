"""Sorted positions without repeats, every set as likely as any other, anew for every draw."""

from collections import Counter
from itertools import combinations

import pytest
import torch

from rpe_bench.positions.base import Frame
from rpe_bench.positions.randomised import Randomised
from rpe_bench.seeds import stream

TEXT, GRID = Frame((12,), (40,)), Frame((8, 8), (8, 20))


@pytest.mark.parametrize("per_example", [False, True])
def test_positions_are_sorted_and_differ(text, per_example: bool) -> None:
    remap = Randomised(TEXT, range=41, per_example=per_example)
    for length in (1, 12, 40, 41):
        for draw in (remap.training, remap.evaluation):
            positions = draw(text(4, length), stream("test", length))
            assert positions.dtype == torch.int64
            assert positions.shape == ((4, length) if per_example else (length,))
            assert (positions.diff(dim=-1) > 0).all()
            assert positions.min() >= 0 and positions.max() < 41


def test_as_many_as_there_are_leave_no_choice(text) -> None:
    positions = Randomised(TEXT, range=40).training(text(4, 40), stream("test"))
    assert torch.equal(positions, torch.arange(40))


@pytest.mark.parametrize("per_example", [False, True])
def test_every_set_is_as_likely(text, per_example: bool) -> None:
    remap = Randomised(Frame((3,), (3,)), range=5, per_example=per_example)
    rng, counts = stream("test"), Counter()
    for _ in range(500 if per_example else 2000):
        counts.update(map(tuple, remap.training(text(4, 3), rng).reshape(-1, 3).tolist()))
    assert set(counts) == set(combinations(range(5), 3))
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 27.9  # chi-square's 0.1 % for 10 values


def test_examples_share_a_draw_or_have_their_own(text) -> None:
    own = Randomised(TEXT, range=1000, per_example=True).training(text(50, 12), stream("test"))
    assert len(own.unique(dim=0)) == 50
    assert Randomised(TEXT, range=1000).training(text(50, 12), stream("test")).dim() == 1


def test_a_draw_is_a_function_of_the_generator(text) -> None:
    remap = Randomised(TEXT)
    first, again, other = (remap.training(text(), stream("positions", 0, step)) for step in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("per_example", [False, True])
def test_rows_and_columns_of_a_grid_are_drawn_apart(grid, per_example: bool) -> None:
    remap = Randomised(GRID, range=30, per_example=per_example)
    assert (remap.axes, remap.train_extents, remap.max_extents) == (2, (30, 30), (30, 30))
    positions = remap.training(grid, stream("test"))
    assert positions.shape == grid.positions.shape
    drawn = set()
    for axis in range(2):
        for example in range(4):
            # One position a row (column), in order.
            pairs = torch.stack((grid.positions[example, :, axis], positions[example, :, axis]), dim=-1).unique(dim=0)
            assert pairs[:, 0].tolist() == list(range(len(pairs)))
            assert (pairs[:, 1].diff() > 0).all()
            drawn.add((axis, *pairs[:2, 1].tolist()))
    assert len(drawn) == (8 if per_example else 2)


def test_a_range_that_is_too_small_is_refused(text) -> None:
    with pytest.raises(ValueError, match="^range=39 is too small: 40 different positions are to be drawn from it$"):
        Randomised(TEXT, range=39)
    with pytest.raises(ValueError, match="^range=19 is too small: 20 "):
        Randomised(GRID, range=19)
    with pytest.raises(ValueError, match="^range=40 has no 41 different positions$"):
        Randomised(TEXT, range=40).training(text(4, 41), stream("test"))
    with pytest.raises(ValueError, match="^draws=0 must be at least 1$"):
        Randomised(TEXT, draws=0)
