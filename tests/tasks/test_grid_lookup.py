"""The answer is the token at the offset that the marked cell asks for."""

import itertools
import math

import numpy as np
import pytest
import torch

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE, Batch
from rpe_bench.tasks.grid_lookup import GridLookup

Cells = dict[tuple[int, int], int]


def offsets(task: GridLookup) -> list[tuple[int, int]]:
    """Those that can be asked for, in the order of their tokens."""
    near = range(-task.reach, task.reach + 1)
    return [offset for offset in itertools.product(near, near) if offset != (0, 0)]


def marked(task: GridLookup, cells: Cells) -> tuple[tuple[int, int], tuple[int, int]]:
    """The marked cell and the offset that it asks for."""
    ((cell, token),) = [(cell, token) for cell, token in cells.items() if token >= task.classes]
    return cell, offsets(task)[token - task.classes]


def answer(task: GridLookup, cells: Cells) -> int:
    """Worked out from the cells alone."""
    (y, x), (dy, dx) = marked(task, cells)
    return cells[y + dy, x + dx]


def grids(batch: Batch) -> list[Cells]:
    """Each example as its cells."""
    assert batch.positions is not None
    return [
        dict(zip(map(tuple, cells), tokens, strict=True))
        for cells, tokens in zip(batch.positions.tolist(), batch.tokens_BT.tolist(), strict=True)
    ]


def shape(cells: Cells) -> tuple[int, int]:
    H, W = (max(axis) + 1 for axis in zip(*cells, strict=True))
    assert list(cells) == list(itertools.product(range(H), range(W)))  # row after row
    return H, W


def test_worked_example(diagram) -> None:
    task = GridLookup()
    rows = diagram(task)
    cells = dict(zip(itertools.product(range(3), range(4)), rows["tokens"], strict=True))
    assert marked(task, cells) == ((1, 2), (1, -1))
    assert rows["targets"] == [answer(task, cells) if at == 6 else IGNORE for at in range(12)]


@pytest.mark.parametrize(("reach", "side"), [(1, 2), (2, 8), (5, 6)])
def test_targets(reach: int, side: int) -> None:
    task = GridLookup(types=5, reach=reach, side=side)
    for size in (4, 36, 128):
        batch = task.sample(stream("test", size), 100, size)
        for row, cells in enumerate(grids(batch)):
            (y, x), (dy, dx) = marked(task, cells)
            H, W = shape(cells)
            place = y * W + x
            assert batch.targets_BT[row, place] == answer(task, cells)
            assert (batch.targets_BT[row] != IGNORE).sum() == 1
            assert {name: int(values[row]) for name, values in batch.slices.items()} == {
                "distance": abs(dy) + abs(dx),
                "rows": H,
            }


@pytest.mark.parametrize("side", [3, 5, 8])
def test_shapes(side: int) -> None:
    """Sides of at least 2, at most 4 : 1, and within side x side as far as that has so many cells."""
    task = GridLookup(reach=1, side=side)
    longest = 0
    for size in range(4, 300):
        sides = [(H, size // H) for H in range(2, size) if size % H == 0]
        expected = [
            (H, W) for H, W in sides if H <= 4 * W and W <= 4 * H and W > 1 and (size > side**2 or max(H, W) <= side)
        ]
        assert task.shapes(size) == expected
        longest = max([longest, *map(max, expected)])
        assert task.extents(size) == (longest, longest)
        assert (size in task.sizes(size)) == bool(expected)
    assert task.sizes(side**2)[-1] == side**2 and task.extents(side**2) == (side, side)


def test_trained_within_a_square_and_evaluated_beyond_it() -> None:
    task = GridLookup()
    for size in task.sizes(task.default_train_length):
        assert max(max(shape(cells)) for cells in grids(task.sample(stream("test", size), 20, size))) <= 8
    for size, shapes in ((128, {(8, 16), (16, 8)}), (256, {(8, 32), (16, 16), (32, 8)}), (512, {(16, 32), (32, 16)})):
        assert {shape(cells) for cells in grids(task.sample(stream("test", size), 50, size))} == shapes


def test_every_multiple_that_is_evaluated_can_be_posed() -> None:
    task = GridLookup()
    for multiple in (0.5, 1, 1.25, 1.5, 2, 4, 8):
        task.check_size(int(multiple * task.default_train_length))


def test_sizes_that_are_no_grid_are_refused() -> None:
    task = GridLookup()
    with pytest.raises(ValueError, match="^size 22 is no grid: .* within 8 x 8 .* the nearest sizes are 21 and 24$"):
        task.sample(stream("test"), 2, 22)
    with pytest.raises(ValueError, match="^size 67 is no grid: .* 4 : 1 have so many cells; .* 66 and 70$"):
        task.check_size(67)
    with pytest.raises(ValueError, match="size 5 .* nearest sizes are 4 and 6"):
        task.check_size(5)


def test_places_shapes_and_offsets_are_uniform() -> None:
    """Places over the grid, shapes over those of the size, offsets over those that stay in the grid."""
    task, examples, size = GridLookup(reach=2), 5000, 8
    seen = [(shape(cells), *marked(task, cells)) for cells in grids(task.sample(stream("test"), examples, size))]
    assert {of for of, _, _ in seen} == {(2, 4), (4, 2)}
    for H, W in ((2, 4), (4, 2)):
        questions = [(place, offset) for of, place, offset in seen if of == (H, W)]
        assert abs(len(questions) - examples / 2) < 5 * math.sqrt(examples / 4)
        for place in itertools.product(range(H), range(W)):
            here = [offset for at, offset in questions if at == place]
            expected = len(questions) / size
            assert abs(len(here) - expected) < 5 * math.sqrt(expected)
            inside = [(dy, dx) for dy, dx in offsets(task) if 0 <= place[0] + dy < H and 0 <= place[1] + dx < W]
            assert set(here) == set(inside)
            for offset in inside:
                expected = len(here) / len(inside)
                assert abs(here.count(offset) - expected) < 5 * math.sqrt(expected)


def test_answers_are_uniform_and_chance_is_exact() -> None:
    task, examples = GridLookup(types=4), 5000
    batch = task.sample(stream("test"), examples, 64)
    share = batch.targets_BT[batch.targets_BT != IGNORE].bincount() / examples
    assert ((share - task.chance(64)).abs() < 5 * (0.25 * 0.75 / examples) ** 0.5).all()


@pytest.mark.parametrize(("size", "share"), [(64, 0.12), (256, 0.09)])
def test_what_a_bag_of_tokens_tells(size: int, share: float) -> None:
    """The docstring's numbers: how often the most frequent value is the answer."""
    task, examples = GridLookup(), 3000
    batch = task.sample(stream("test"), examples, size)
    counts = torch.stack([(batch.tokens_BT == value).sum(1) for value in range(16)], dim=1)
    right = counts.argmax(1) == batch.targets_BT.max(1).values
    assert right.double().mean().item() == pytest.approx(share, abs=0.02)


def test_queries() -> None:
    task = GridLookup(types=7, reach=3, side=4)
    asked = np.array(offsets(task))
    assert task.query(asked[:, 0], asked[:, 1]).tolist() == list(range(7, 7 + 48))
    assert task.vocabulary == 7 + 48


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 1}, "^side must be at least 2, got 1$"),
        ({"reach": 0}, "^reach must be from 1 to 7, one less than side, got 0$"),
        ({"reach": 4, "side": 4}, "^reach must be from 1 to 3, one less than side, got 4$"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GridLookup(**options)


def test_no_grid_is_smaller_than_the_smallest() -> None:
    with pytest.raises(ValueError, match="no grid has up to 3 cells"):
        GridLookup().extents(3)
