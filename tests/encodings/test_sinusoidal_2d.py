import math

import numpy as np
import pytest
import torch
from grids import grid

from rpe_bench.encodings.sinusoidal_2d import Sinusoidal2D


def formula(y: float, x: float, D: int, base: float) -> list[float]:
    """Sines then cosines of x, then those of y."""
    angles = [[p / base ** (4 * t / D) for t in range(D // 4)] for p in (x, y)]
    return [f(angle) for axis in angles for f in (math.sin, math.cos) for angle in axis]


@pytest.mark.parametrize(("width", "base"), [(4, 10_000.0), (8, 10_000.0), (20, 50.0)])
def test_formula(make, width: int, base: float) -> None:
    encoding = make(Sinusoidal2D, heads=1, head_dim=width, base=base)
    cells = torch.tensor([[0, 0], [1, 0], [0, 1], [2, 7], [31, 3], [999, 998]])
    expected = [formula(y, x, width, base) for y, x in cells.tolist()]
    np.testing.assert_allclose(encoding.table(cells), expected, rtol=0, atol=1e-12)


def test_golden_values(make) -> None:
    """Of width 8, of which the first four features are those of the column; the frequencies are 1 and 0.01."""
    table = make(Sinusoidal2D, heads=1, head_dim=8).table(torch.tensor([[0, 0], [1, 0], [0, 1]]))
    one = [0.841471, 0.01, 0.540302, 0.99995]
    golden = [[0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 1, 1, *one], [*one, 0, 0, 1, 1]]
    np.testing.assert_allclose(table, golden, rtol=0, atol=1e-6)


def test_inner_products_depend_on_distances_alone(make) -> None:
    """Of each axis by itself; and all norms are the same."""
    table = make(Sinusoidal2D, head_dim=8).table(grid(6, 6)[0])
    products = (table @ table.T).unflatten(0, (6, 6)).unflatten(2, (6, 6))
    torch.testing.assert_close(products[1:, :, 1:], products[:-1, :, :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(products[:, 1:, :, 1:], products[:, :-1, :, :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(table.square().sum(-1), torch.full((36,), 8.0).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("width", "apart"), [(16, 0.645), (32, 1.015)])
def test_cells_are_distinct(make, width: int, apart: float) -> None:
    """Cells that differ on one axis differ as positions do in a sinusoid of half the width, the least over 2048."""
    table = make(Sinusoidal2D, heads=1, head_dim=width).table(grid(40, 40)[0])
    assert torch.pdist(table).min().item() >= apart - 1e-3


def test_added_and_concatenated(make) -> None:
    x, cells = torch.randn(2, 15, 16), grid(3, 5, 2)
    added = make(Sinusoidal2D, head_dim=8)
    torch.testing.assert_close(added.embed(x, cells), x + added.table(cells).float())
    for width, expected in ((None, 8), (4, 4)):
        encoding = make(Sinusoidal2D, head_dim=8, combine="concatenate", width=width)
        found = encoding.embed(x, cells)
        assert torch.equal(found[..., :-expected], x[..., :-expected])
        assert torch.equal(found[..., -expected:], encoding.table(cells).float())
        assert encoding.table(cells).shape == (2, 15, expected)


def test_each_example_has_its_own_grid(make) -> None:
    encoding, x = make(Sinusoidal2D), torch.zeros(4, 16, 8)
    layouts = [grid(4, 4), grid(2, 8), grid(8, 2), grid(2, 8)]
    found = encoding.embed(x, torch.cat(layouts))
    for b, layout in enumerate(layouts):
        assert torch.equal(found[b], encoding.table(layout)[0].float())


def test_far_positions_are_exact(make) -> None:
    """An angle formed in float32 is off by 0.016 at a million, and 2^24 + 1 does not exist there."""
    far = torch.tensor([256, 257, 1_000_000, 2**24 + 1])
    cells = torch.stack((far, far.flip(0)), dim=-1)[None]
    found = make(Sinusoidal2D, head_dim=8).embed(torch.zeros(1, 4, 16), cells)[0]
    exponents = np.arange(0, 16, 4, dtype=np.longdouble) / 16
    y, x = (far.numpy().astype(np.longdouble)[:, None] * np.longdouble(10_000) ** -exponents for far in cells[0].T)
    expected = np.concatenate((np.sin(x), np.cos(x), np.sin(y), np.cos(y)), axis=1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_dim": 7, "heads": 1}, "multiple of 4 features, not a width of 7"),
        ({"head_dim": 6, "heads": 1}, "width of 6"),
        ({"combine": "concatenate", "width": 6}, "width of 6"),
        ({"combine": "concatenate", "width": 8}, "width=8"),
        ({"combine": "both"}, "combine=both"),
        ({"base": 1.0}, "base=1.0"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Sinusoidal2D, **parameters)


def test_an_index_is_no_cell(make) -> None:
    with pytest.raises(ValueError, match="was given none"):
        make(Sinusoidal2D).embed(torch.zeros(1, 4, 8))
