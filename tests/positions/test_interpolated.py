"""Sequences longer than those trained on are squeezed into the positions that training reached."""

from fractions import Fraction

import pytest
import torch

from rpe_bench.positions.base import Frame
from rpe_bench.positions.interpolated import Interpolated
from rpe_bench.seeds import stream


def test_positions_are_those_of_the_formula(text) -> None:
    remap = Interpolated(Frame((12,), (40,)))
    for length in (13, 24, 37, 40):
        positions = remap.evaluation(text(2, length), stream("test"))
        assert positions.dtype == torch.float64
        assert positions.tolist() == [float(Fraction(place * 12, length)) for place in range(length)]
        assert positions.max() < 12


def test_training_and_what_is_no_longer_stay_as_they_are(text, grid) -> None:
    remap = Interpolated(Frame((12,), (40,)))
    assert remap.training(text(2, 12), stream("test")) is None
    assert remap.evaluation(text(2, 12), stream("test")) is None
    assert remap.evaluation(text(2, 5), stream("test")) is None
    assert torch.equal(Interpolated(Frame((6, 6), (9, 9))).evaluation(grid, stream("test")), grid.positions)


def test_each_axis_of_each_grid_is_squeezed_as_it_needs(grid) -> None:
    positions = Interpolated(Frame((3, 4), (6, 6))).evaluation(grid, stream("test"))
    for example, (rows, columns) in enumerate([(2, 6), (3, 4), (4, 3), (6, 2)]):
        scale = torch.tensor([min(3, rows) / rows, min(4, columns) / columns], dtype=torch.float64)
        torch.testing.assert_close(positions[example], grid.positions[example] * scale, rtol=0, atol=1e-15)


def test_a_fixed_factor(text) -> None:
    frame = Frame((12,), (40,))
    remap = Interpolated(frame, factor=2.0)
    assert remap.evaluation(text(2, 5), stream("test")).tolist() == [0, 0.5, 1, 1.5, 2]
    assert remap.training(text(2, 12), stream("test")) is None
    assert remap.max_extents == (20,)
    assert Interpolated(frame, factor=1.0).evaluation(text(2, 5), stream("test")) is None
    assert Interpolated(frame, factor=9.0).max_extents == Interpolated(frame).max_extents == (12,)


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="^factor=0.5 must be at least 1, or null for the ratio of the lengths$"):
        Interpolated(Frame((12,), (40,)), factor=0.5)
