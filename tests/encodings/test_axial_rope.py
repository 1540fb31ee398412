import itertools
import math

import numpy as np
import pytest
import torch
from grids import grid
from torch import Tensor

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.axial_rope import AxialRoPE
from rpe_bench.encodings.rope import RoPE

LAYOUTS = ["interleaved", "half"]


def turn(x: np.ndarray, y: float, column: float, layout: str, base: float) -> np.ndarray:
    """R_(y,x) of one vector, from the definition."""
    K, out = len(x), np.empty_like(x)
    for t in range(K // 2):
        angle = (y if t < K // 4 else column) * base ** (-4 * (t % (K // 4)) / K)
        a, b = (2 * t, 2 * t + 1) if layout == "interleaved" else (t, t + K // 2)
        out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return out


@pytest.mark.parametrize(
    ("layout", "cell", "turned"),
    [
        ("interleaved", [1, 0], [-1.142640, 1.922076, 3, 4]),
        ("interleaved", [0, 1], [1, 2, -1.744977, 4.685622]),
        ("half", [1, 0], [-1.984111, 2, 2.462378, 4]),
        ("half", [0, 1], [1, -2.285279, 3, 3.844151]),
    ],
)
def test_worked_example(make, layout: str, cell: list[int], turned: list[float]) -> None:
    """The vector 1, 2, 3, 4, one pair of which turns by a radian a row, the other by one a column."""
    x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64).view(1, 1, 1, 4)
    q, k = make(AxialRoPE, heads=1, layout=layout).rotate(x, x, torch.tensor([[cell]]))
    assert q.flatten().tolist() == pytest.approx(turned, abs=1e-6)
    assert torch.equal(q, k)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_formula(make, reference_equals_formula, causal: bool, layout: str, base: float) -> None:
    encoding = make(AxialRoPE, causal=causal, layout=layout, base=base, head_dim=8)
    cells = grid(3, 5)[0].tolist()

    def logit(h, i, j, q, k) -> float:
        return turn(q, *cells[i], layout, base) @ turn(k, *cells[j], layout, base) / math.sqrt(8)

    reference_equals_formula(encoding, logit, 15, grid(3, 5, 2))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_of_cells_turns_half_the_pairs_alone(make, layout: str) -> None:
    """On a grid of one row the pairs of y stay as they are, and those of x are a one-dimensional RoPE's."""
    encoding = make(AxialRoPE, head_dim=8, layout=layout, base=50.0)
    q = torch.randn(1, 2, 9, 8, dtype=torch.float64)
    (turned, _), row = encoding.rotate(q, q, grid(1, 9)), [4, 5, 6, 7] if layout == "interleaved" else [2, 3, 6, 7]
    kept = [feature for feature in range(8) if feature not in row]
    assert torch.equal(turned[..., kept], q[..., kept])
    plain, _ = make(RoPE, layout=layout, base=50.0).rotate(q[..., row], q[..., row])
    torch.testing.assert_close(turned[..., row], plain, rtol=0, atol=1e-12)
    column, _ = encoding.rotate(q, q, grid(9, 1))
    assert torch.equal(column[..., row], q[..., row]) and not torch.equal(column[..., kept], q[..., kept])


def test_logits_depend_on_the_offset_alone(make) -> None:
    """Each axis shifts by itself; norms stay; and each axis and its direction matter."""
    encoding, cells = make(AxialRoPE, head_dim=16), grid(4, 5)
    q, k = torch.randn(2, 1, 2, 20, 16, dtype=torch.float64)
    logits = attention_logits(encoding, q, k, cells)
    for dy, dx in itertools.product((0, 1, 1000), (0, 17)):
        shifted = attention_logits(encoding, q, k, cells + torch.tensor([dy, dx]))
        torch.testing.assert_close(shifted, logits, rtol=0, atol=1e-9)
    for other in (cells.flip(-1), cells * torch.tensor([1, -1]), cells * torch.tensor([-1, 1])):
        assert (attention_logits(encoding, q, k, other) - logits).abs().max() > 0.1
    torch.testing.assert_close(encoding.rotate(q, k, cells)[0].norm(dim=-1), q.norm(dim=-1), rtol=1e-12, atol=0)


def test_layouts_are_one_up_to_a_permutation_of_features(make) -> None:
    q, k = torch.randn(2, 1, 2, 12, 8, dtype=torch.float64)
    to_half = [0, 2, 4, 6, 1, 3, 5, 7]
    interleaved = attention_logits(make(AxialRoPE, head_dim=8), q, k, grid(3, 4))
    half = attention_logits(make(AxialRoPE, head_dim=8, layout="half"), q[..., to_half], k[..., to_half], grid(3, 4))
    torch.testing.assert_close(interleaved, half, rtol=0, atol=1e-12)


def test_far_positions_are_exact(make) -> None:
    """An angle formed in float32 is off by 0.016 at a million, and 2^24 + 1 does not exist there."""
    far = torch.tensor([256, 257, 10_000, 1_000_000, 2**24 + 1])
    x = torch.zeros(1, 1, 5, 8)
    x[..., 0::2] = 1
    turned = make(AxialRoPE, heads=1, head_dim=8).rotate(x, x, torch.stack((far, far.flip(0)), dim=-1)[None])[0][0, 0]
    places = np.stack((far.numpy(), far.flip(0).numpy()), axis=-1).astype(np.longdouble)
    angles = (places[:, :, None] * np.longdouble(10) ** -np.arange(2)).reshape(5, 4)
    np.testing.assert_allclose(turned[:, 0::2], np.cos(angles), rtol=0, atol=1e-7)
    np.testing.assert_allclose(turned[:, 1::2], np.sin(angles), rtol=0, atol=1e-7)


@pytest.mark.parametrize("positions", [None, torch.arange(4), torch.zeros(1, 4), torch.zeros(1, 4, 1)])
def test_an_index_is_no_cell(make, positions: Tensor | None) -> None:
    q = torch.randn(1, 2, 4, 4)
    given = "none" if positions is None else f"{tuple(positions.shape)}".replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=rf"takes positions \(B, T, 2\).*was given {given}"):
        attention_logits(make(AxialRoPE), q, q, positions)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_dim": 7}, r"head of 7 \(dim 14 / heads 2\) is no multiple of 4"),
        ({"head_dim": 6}, "head of 6"),
        ({"layout": "pairs"}, "layout=pairs is not one of interleaved, half"),
        ({"base": 1.0}, "base=1.0"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(AxialRoPE, **parameters)
