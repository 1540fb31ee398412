"""One shift for all tokens of an example, uniform in training, none in evaluation."""

import pytest
import torch

from rpe_bench.positions.base import Frame
from rpe_bench.positions.offset import Offset
from rpe_bench.seeds import stream


@pytest.mark.parametrize("per_example", [False, True])
def test_the_shift_is_uniform(text, per_example: bool) -> None:
    remap = Offset(Frame((12,), (40,)), most=4, per_example=per_example)
    rng, shifts = stream("test"), []
    for _ in range(500 if per_example else 2000):
        positions = remap.training(text(), rng)
        assert positions.shape == ((4, 12) if per_example else (12,))
        shift = positions - torch.arange(12)
        assert (shift == shift[..., :1]).all()
        shifts.append(shift[..., 0].flatten())
    counts = torch.cat(shifts).bincount(minlength=5)
    assert len(counts) == 5 and ((counts - 400) ** 2 / 400).sum() < 18.5  # chi-square's 0.1 % for 5 values


def test_evaluation_is_unshifted_unless_told_otherwise(text, grid) -> None:
    frame = Frame((12,), (40,))
    assert Offset(frame).evaluation(text(), stream("test")) is None
    assert torch.equal(Offset(frame, evaluated=7).evaluation(text(), stream("test")), torch.arange(7, 19))
    assert torch.equal(Offset(Frame((6, 6), (6, 6))).evaluation(grid, stream("test")), grid.positions)


@pytest.mark.parametrize(
    ("most", "evaluated", "train", "longest"), [(0, 0, 12, 40), (10, 0, 22, 40), (50, 0, 62, 62), (10, 5, 22, 45)]
)
def test_extents(most: int, evaluated: int, train: int, longest: int) -> None:
    remap = Offset(Frame((12,), (40,)), most=most, evaluated=evaluated)
    assert (remap.train_extents, remap.max_extents) == ((train,), (longest,))


@pytest.mark.parametrize("per_example", [False, True])
def test_each_axis_of_a_grid_has_its_own_shift(grid, per_example: bool) -> None:
    remap = Offset(Frame((6, 6), (6, 6)), most=1000, per_example=per_example)
    shift = remap.training(grid, stream("test")) - grid.positions
    assert shift.shape == (4, 12, 2) and (shift == shift[:, :1]).all()
    assert len(shift.unique()) == (8 if per_example else 2)


def test_no_shift_at_all_is_plain(text) -> None:
    positions = Offset(Frame((12,), (40,)), most=0).training(text(), stream("test"))
    assert torch.equal(positions, torch.arange(12).expand(4, 12))


@pytest.mark.parametrize("name", ["most", "evaluated"])
def test_negative_shifts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=-1 must not be negative$"):
        Offset(Frame((12,), (40,)), **{name: -1})
