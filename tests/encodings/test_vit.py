from dataclasses import replace

import pytest
import torch
from grids import grid
from torch import Tensor

from rpe_bench.encodings.vit import ViT, bicubic


def table(encoding: ViT) -> Tensor:
    """E, (rows, columns, D)."""
    rows, columns = encoding.size
    if encoding.factorised:
        return (encoding.tables[0][:, None] + encoding.tables[1]).detach()
    return encoding.tables[0].detach().unflatten(0, (rows, columns))


def resized(E: Tensor, H: int, W: int) -> Tensor:
    """By torch, for images (1, D, rows, columns)."""
    image = E.permute(2, 0, 1)[None]
    return torch.nn.functional.interpolate(image, (H, W), mode="bicubic", align_corners=False)[0].permute(1, 2, 0)


def at(encoding: ViT, positions: Tensor) -> Tensor:
    """What is added at the positions, (B, T, D)."""
    width = encoding.tables[0].shape[1]
    x = torch.zeros(*positions.shape[:2], width, dtype=encoding.tables[0].dtype)
    return encoding.embed(x, positions).detach()


@pytest.mark.parametrize("factorised", [False, True])
def test_a_cell_has_a_row(make, factorised: bool) -> None:
    encoding = make(ViT, factorised=factorised, size=[3, 5])
    x, E = torch.randn(1, 15, 8), table(encoding)
    assert torch.equal(encoding.embed(x, grid(3, 5)), x + E.flatten(0, 1))
    cells = torch.tensor([[[2, 4], [0, 1]], [[1, 0], [1, 0]]])
    assert torch.equal(at(encoding, cells), E[cells[..., 0], cells[..., 1]])


def test_the_table_has_the_cells_of_the_largest_training_grid(make) -> None:
    encoding = make(ViT)
    assert encoding.geometry.train_extents == (4, 4) and encoding.geometry.max_extents == (8, 8)
    assert encoding.size == (4, 4) and encoding.tables[0].shape == (16, 8)
    assert [part.shape for part in make(ViT, factorised=True, size=[4, 6]).tables] == [(4, 8), (6, 8)]


@pytest.mark.parametrize("factorised", [False, True])
@pytest.mark.parametrize(("H", "W"), [(4, 5), (8, 8), (7, 19), (4, 6), (44, 12)])
def test_larger_grids_resize_the_table(make, factorised: bool, H: int, W: int) -> None:
    """On every axis on which they exceed it, as bicubic interpolation of an image does."""
    encoding = make(ViT, factorised=factorised).double()
    found = at(encoding, grid(H, W))[0].unflatten(0, (H, W))
    torch.testing.assert_close(found, resized(table(encoding), H, W), rtol=0, atol=1e-12)


def test_an_axis_that_fits_is_not_resized(make) -> None:
    """On a grid of 2 x 8, rows 0 and 1 of the table count and columns are twice as many."""
    encoding = make(ViT).double()
    found = at(encoding, grid(2, 8))[0].unflatten(0, (2, 8))
    torch.testing.assert_close(found, resized(table(encoding), 4, 8)[:2], rtol=0, atol=1e-12)


def test_each_example_has_its_own_grid(make) -> None:
    encoding = make(ViT).double()
    layouts = [grid(4, 4), grid(2, 8), grid(8, 2), grid(2, 8)]
    found = at(encoding, torch.cat(layouts))
    for b, layout in enumerate(layouts):
        torch.testing.assert_close(found[b : b + 1], at(encoding, layout), rtol=0, atol=1e-12)
    assert torch.equal(found[0], table(encoding).flatten(0, 1))


def test_the_order_of_tokens_does_not_matter_to_resizing(make) -> None:
    encoding, order = make(ViT), torch.randperm(30)
    assert torch.equal(at(encoding, grid(5, 6)[:, order]), at(encoding, grid(5, 6))[:, order])


def test_bicubic_of_the_same_size_changes_nothing() -> None:
    for side in (1, 2, 3, 8, 44, 99):
        entry, weight = bicubic(torch.arange(side), side, torch.tensor(side))
        assert torch.equal((entry * weight).sum(-1), torch.arange(side).double())
        assert weight.max(dim=-1).values.eq(1).all() and weight.count_nonzero() == side


def test_bicubic_keeps_what_is_constant() -> None:
    _, weight = bicubic(torch.arange(31), 8, torch.tensor(31))
    torch.testing.assert_close(weight.sum(-1), torch.ones(31).double(), rtol=0, atol=1e-14)


def test_beyond_the_table_is_an_error_where_so_chosen(make) -> None:
    encoding = make(ViT, beyond="error", size=[3, 5])
    assert encoding.longest == 5 and encoding.prefix_consistent and not make(ViT).prefix_consistent
    assert make(ViT).longest is None
    at(encoding, grid(3, 5))
    with pytest.raises(ValueError, match="position 3 lies beyond a learned table of 3 rows"):
        at(encoding, grid(4, 5))
    with pytest.raises(ValueError, match="position 7 lies beyond a learned table of 5 columns"):
        at(encoding, torch.tensor([[[0, 0], [2, 7]]]))


def test_what_no_table_has_is_an_error(make) -> None:
    with pytest.raises(ValueError, match="position -1 lies before"):
        at(make(ViT), torch.tensor([[[0, -1], [2, 9]]]))
    with pytest.raises(ValueError, match="whole positions"):
        at(make(ViT), torch.tensor([[[0, 0], [0, 0.5]]]))
    with pytest.raises(ValueError, match="was given none"):
        make(ViT).embed(torch.zeros(1, 4, 8))


def test_concatenated(make) -> None:
    encoding = make(ViT, combine="concatenate", width=3)
    assert encoding.tables[0].shape == (16, 3)
    x = torch.randn(2, 16, 8)
    found = encoding.embed(x, grid(4, 4, 2))
    assert torch.equal(found, torch.cat((x[..., :5], encoding.tables[0].expand(2, 16, 3)), dim=-1))


def test_initial_values(make) -> None:
    values = make(ViT, head_dim=64, std=0.5).tables[0]
    assert values.std().item() == pytest.approx(0.5, rel=0.05)
    assert len(values.unique(dim=0)) == 16


def test_cells_out_of_reach_learn_nothing(make) -> None:
    encoding = make(ViT)
    encoding.embed(torch.randn(2, 6, 8), grid(2, 3, 2)).square().sum().backward()
    touched = encoding.tables[0].grad.abs().sum(1).nonzero().flatten().tolist()
    assert touched == [0, 1, 2, 4, 5, 6]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"std": -1.0}, "std=-1.0"),
        ({"size": [4]}, r"size=\[4\] must be two positive integers, \[rows, columns\]"),
        ({"size": [0, 4]}, r"size=\[0, 4\]"),
        ({"beyond": "clamp"}, "beyond=clamp is not one of resize, error"),
        ({"width": 3}, "width=3 contradicts combine=add"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(ViT, **parameters)


def test_as_many_parameters_as_declared(make) -> None:
    geometry = replace(make(ViT).geometry, train_extents=(3, 7))
    for options, expected in (({}, 21 * 8), ({"factorised": True}, 10 * 8), ({"size": [2, 5]}, 10 * 8)):
        encoding = ViT(geometry, **options)
        known = {"size": None, "factorised": False, "combine": "add", "width": None, "D": 8, "geometry": geometry}
        assert eval(ViT.learns, known | options) == expected == sum(p.numel() for p in encoding.parameters())
