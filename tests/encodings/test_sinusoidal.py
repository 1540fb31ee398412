import math

import numpy as np
import pytest
import torch

from rpe_bench.encodings.sinusoidal import Sinusoidal, sinusoid


def test_golden_values() -> None:
    table = sinusoid(torch.arange(3), 4, 10_000.0)
    golden = [[0, 1, 0, 1], [0.841471, 0.540302, 0.01, 0.99995], [0.909297, -0.416147, 0.019999, 0.9998]]
    np.testing.assert_allclose(table, golden, rtol=0, atol=1e-6)


@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_formula(base: float) -> None:
    table = sinusoid(torch.tensor([0, 1, 2, 17, 999]), 10, base).tolist()
    for row, p in zip(table, (0, 1, 2, 17, 999), strict=True):
        angles = [p / base ** (2 * t / 10) for t in range(5)]
        expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
        assert row == pytest.approx(expected, abs=1e-12)


def test_a_shift_is_a_rotation() -> None:
    """PE(p + k) = M_k PE(p), with a block [[cos kw, sin kw], [-sin kw, cos kw]] for each pair (sin, cos)."""
    D, k = 16, 13
    table = sinusoid(torch.arange(64), D, 10_000.0)
    M = torch.zeros(D, D, dtype=torch.float64)
    for t in range(D // 2):
        angle = k * 10_000 ** (-2 * t / D)
        block = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        M[2 * t : 2 * t + 2, 2 * t : 2 * t + 2] = block
    torch.testing.assert_close(table[k:], table[:-k] @ M.T, rtol=0, atol=1e-6)


def test_inner_products_depend_on_distance_alone() -> None:
    table = sinusoid(torch.arange(50), 16, 10_000.0)
    products = table @ table.T
    torch.testing.assert_close(products[1:, 1:], products[:-1, :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(products, products.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(products.diagonal(), torch.full((50,), 8.0).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("width", "apart"), [(8, 0.645), (16, 1.015), (64, 1.472)])
def test_rows_are_distinct(width: int, apart: float) -> None:
    table = sinusoid(torch.arange(2048), width, 10_000.0)
    assert torch.pdist(table).min().item() == pytest.approx(apart, abs=1e-3)


def test_far_positions_are_exact(make) -> None:
    """An angle formed in float32 is off by 0.016 at a million, and 2^24 + 1 does not exist there."""
    positions = torch.tensor([256, 257, 10_000, 1_000_000, 2**24 + 1])
    table = make(Sinusoidal, head_dim=8).table(positions, 5, positions.device, torch.float32)
    exponent = np.arange(0, 16, 2, dtype=np.longdouble) / 16
    angles = positions.numpy().astype(np.longdouble)[:, None] * np.longdouble(10_000) ** -exponent
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), rtol=0, atol=1e-7)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), rtol=0, atol=1e-7)


def test_half_precision_rounds_once(make) -> None:
    """bfloat16 has no 257: positions must not pass through it."""
    encoding = make(Sinusoidal, head_dim=8)
    exact = sinusoid(torch.arange(300), 16, 10_000.0)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.zeros(1, 300, 16, dtype=dtype)
        for module in (encoding, encoding.to(dtype)):
            table = module.embed(x)[0]
            assert torch.equal(table, exact.to(dtype))
            assert torch.equal(module.embed(x, torch.arange(300))[0], table)
            assert not torch.equal(table[256], table[257])


def test_concatenated(make) -> None:
    """The token keeps its first features; the position takes the last `width`."""
    x = torch.randn(2, 7, 16)
    for width, expected in ((None, 8), (6, 6)):
        table = sinusoid(torch.arange(7), expected, 10_000.0).float().expand(2, 7, expected)
        encoding = make(Sinusoidal, head_dim=8, combine="concatenate", width=width)
        for positions in (None, torch.arange(7), torch.arange(7).expand(2, 7)):
            y = encoding.embed(x, positions)
            assert torch.equal(y[..., :-expected], x[..., :-expected])
            assert torch.equal(y[..., -expected:], table)


def test_added(make) -> None:
    x = torch.randn(2, 7, 16)
    torch.testing.assert_close(make(Sinusoidal, head_dim=8).embed(x), x + sinusoid(torch.arange(7), 16, 1e4).float())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_dim": 7, "heads": 1}, "7 is odd"),
        ({"combine": "concatenate", "width": 3}, "3 is odd"),
        ({"combine": "concatenate", "width": 8}, "width=8"),
        ({"combine": "concatenate", "width": 0}, "width=0"),
        ({"combine": "add", "width": 4}, "width=4 contradicts"),
        ({"combine": "both"}, "combine=both"),
        ({"base": 1.0}, "base=1.0"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Sinusoidal, **parameters)
