import numpy as np
import pytest
import torch

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.transformer_xl import TransformerXL


def r(distance: float, width: int, base: float = 10_000.0) -> np.ndarray:
    """[sin | cos] in blocks."""
    angles = distance / base ** (np.arange(0, width, 2) / width)
    return np.concatenate((np.sin(angles), np.cos(angles)))


@pytest.mark.parametrize("clamp_len", [None, 4])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(make, reference_equals_formula, clamp_len: int | None, per_head: bool) -> None:
    encoding = make(TransformerXL, std=1.0, clamp_len=clamp_len, per_head=per_head)
    u, v, W = (p.detach().double().numpy() for p in (encoding.u_HK, encoding.v_HK, encoding.weight_HDK))

    def logit(h, i, j, q, k) -> float:
        distance = i - j if clamp_len is None else min(i - j, clamp_len)
        h = h if per_head else 0
        return ((q + u[h]) @ k + (q + v[h]) @ (r(distance, 8) @ W[h])) / 2

    reference_equals_formula(encoding, logit)


def test_all_zero_is_no_position(make) -> None:
    q, k = torch.randn(2, 1, 2, 9, 4)
    assert torch.equal(attention_logits(make(TransformerXL, std=0.0), q, k), attention_logits(make(NoPE), q, k))


def test_a_scale_for_each_head(make) -> None:
    """Which a subclass may have, as any encoding may."""
    q, k = torch.randn(2, 1, 2, 40, 4, dtype=torch.float64)
    encoding = make(TransformerXL, std=1.0).double()
    plain = attention_logits(encoding, q, k)
    encoding.scale = encoding.scale * torch.tensor([2.0, 3.0])[:, None, None]
    torch.testing.assert_close(attention_logits(encoding, q, k), plain * torch.tensor([2.0, 3.0])[:, None, None])


def test_positions_between_the_whole_ones(make) -> None:
    """A sinusoid is no table: it has a value for any distance."""
    encoding = make(TransformerXL, std=1.0).double()
    q, k = torch.randn(2, 1, 2, 9, 4, dtype=torch.float64)
    u, v, W = (p.detach() for p in (encoding.u_HK, encoding.v_HK, encoding.weight_HDK))
    positions = torch.tensor([0, 0.5, 1, 1.25, 9, 3, 3, 2.75, 1e5], dtype=torch.float64)
    distance = positions[:, None] - positions[None, :]
    sinusoid = torch.from_numpy(np.stack([[r(float(d), 8) for d in row] for row in distance]))
    expected = (q + u[:, None]) @ k.mT + torch.einsum("bhqk,hdk,qsd->bhqs", q + v[:, None], W, sinusoid)
    found = attention_logits(encoding, q, k, positions)
    torch.testing.assert_close(found, expected / 2, rtol=0, atol=1e-9)


@pytest.mark.parametrize("positions", [None, torch.arange(12)])
def test_distances_beyond_clamp_len_count_as_it(make, positions: torch.Tensor | None) -> None:
    encoding = make(TransformerXL, std=1.0, clamp_len=5)
    q = torch.randn(1, 2, 12, 4)
    bias = encoding.bias(q, q, Context(12, True, positions))
    torch.testing.assert_close(bias[..., 11, :6], bias[..., 11, 6:7].expand(1, 2, 6))
    assert (bias[..., 11, 6] - bias[..., 11, 7]).abs().min() > 1e-3


def test_initial_values(make) -> None:
    encoding = make(TransformerXL, heads=8, head_dim=16, std=0.5)
    assert encoding.weight_HDK.shape == (8, 128, 16) and encoding.u_HK.shape == encoding.v_HK.shape == (8, 16)
    assert encoding.weight_HDK.std().item() == pytest.approx(0.5, rel=0.05)
    assert not torch.equal(encoding.u_HK, encoding.v_HK)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"std": -0.1}, "std=-0.1"),
        ({"clamp_len": 0}, "clamp_len=0"),
        ({"base": 1.0}, "base=1.0"),
        ({"heads": 1, "head_dim": 5}, "a width of 5 is odd"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(TransformerXL, **parameters)
