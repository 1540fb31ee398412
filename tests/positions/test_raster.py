"""A grid in a line: row after row, with as many positions from one row to the next as are asked for."""

from dataclasses import replace

import pytest
import torch

from rpe_bench.positions.base import Frame
from rpe_bench.positions.raster import Raster
from rpe_bench.seeds import stream

FRAME = Frame((3, 4), (6, 6))


def test_rows_of_a_width(grid) -> None:
    remap = Raster(FRAME, width=7)
    assert (remap.axes, remap.train_extents, remap.max_extents) == (1, (21,), (42,))
    for draw in (remap.training, remap.evaluation):
        positions = draw(grid, stream("test"))
        assert positions.tolist() == [[7 * y + x for y, x in cells] for cells in grid.positions.tolist()]


def test_the_order_of_the_tokens_needs_no_positions(grid) -> None:
    remap = Raster(FRAME)
    assert (remap.axes, remap.train_extents, remap.max_extents) == (1, (12,), (36,))
    assert remap.training(grid, stream("test")) is None and remap.evaluation(grid, stream("test")) is None


def test_cells_in_any_order(grid) -> None:
    """In their own width, the cells of every shape are 0..T-1."""
    order = torch.tensor([5, 3, 0, 1, 2, 4, 11, 10, 9, 8, 7, 6])
    shuffled = replace(grid, positions=grid.positions[:, order])
    assert torch.equal(Raster(FRAME).training(shuffled, stream("test")), order.expand(4, 12))


def test_what_makes_no_line_is_refused() -> None:
    with pytest.raises(ValueError, match="^puts a grid in a line, but the task's positions have 1 axis already$"):
        Raster(Frame((12,), (40,)))
    with pytest.raises(ValueError, match="^width=5 is too small: a grid of 6 columns would give cells one position$"):
        Raster(FRAME, width=5)
