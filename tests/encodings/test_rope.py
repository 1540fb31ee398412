import math

import numpy as np
import pytest
import torch

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.rope import RoPE

LAYOUTS = ["interleaved", "half"]
WORKED = {  # x = 1 2 3 4 at position 1
    "interleaved": [-1.14264, 1.922076, 2.959851, 4.0298],
    "half": [-1.984111, 1.959901, 2.462378, 4.0198],
}


def turn(x: np.ndarray, position: int, layout: str, base: float = 10_000.0) -> np.ndarray:
    """R_p x by its definition, pair after pair."""
    K = len(x)
    y = np.empty(K)
    for t in range(K // 2):
        a, b = (2 * t, 2 * t + 1) if layout == "interleaved" else (t, t + K // 2)
        angle = position * base ** (-2 * t / K)
        y[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        y[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return y


@pytest.mark.parametrize("layout", LAYOUTS)
def test_worked_example(make, layout: str) -> None:
    x = torch.tensor([1.0, 2, 3, 4]).expand(1, 1, 2, 4).contiguous()
    q, k = make(RoPE, heads=1, layout=layout).rotate(x, x)
    assert torch.equal(q[0, 0, 0], x[0, 0, 0])  # R_0 is the identity
    assert q[0, 0, 1].tolist() == pytest.approx(WORKED[layout], abs=1e-5)
    assert torch.equal(q, k)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10_000.0, 30.0])
def test_formula(make, reference_equals_formula, causal: bool, layout: str, base: float) -> None:
    encoding = make(RoPE, causal=causal, layout=layout, base=base, head_dim=6)

    def logit(h, i, j, q, k) -> float:
        return turn(q, i, layout, base) @ turn(k, j, layout, base) / math.sqrt(6)

    reference_equals_formula(encoding, logit)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_stay_and_products_depend_on_offset_alone(make, layout: str) -> None:
    encoding = make(RoPE, heads=1, head_dim=64, layout=layout)
    q, k = torch.randn(2, 1, 1, 1, 64, dtype=torch.float64).expand(2, 1, 1, 40, 64).contiguous()
    turned, _ = encoding.rotate(q, k)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1), rtol=1e-12, atol=0)
    logits = attention_logits(encoding, q, k)[0, 0]
    torch.testing.assert_close(logits[1:, 1:], logits[:-1, :-1], rtol=0, atol=1e-12)  # Toeplitz
    assert (logits[0, 1:] - logits[1:, 0]).abs().max() > 0.1  # and the sign of the offset matters


def test_layouts_are_one_up_to_a_permutation_of_features(make) -> None:
    q, k = torch.randn(2, 2, 2, 9, 8, dtype=torch.float64)
    to_half = [0, 2, 4, 6, 1, 3, 5, 7]
    interleaved = attention_logits(make(RoPE, head_dim=8), q, k)
    half = attention_logits(make(RoPE, head_dim=8, layout="half"), q[..., to_half], k[..., to_half])
    torch.testing.assert_close(interleaved, half, rtol=0, atol=1e-12)


def test_frequencies(make) -> None:
    assert make(RoPE, head_dim=8).frequencies(torch.device("cpu")).tolist() == pytest.approx([1, 0.1, 0.01, 0.001])


def test_no_monotone_decay(make) -> None:
    """Constant q and k give the sum of cos(r theta_t), which with 64 features first rises from distance 5 to 6."""
    ones = torch.ones(1, 1, 12, 64, dtype=torch.float64)
    row = attention_logits(make(RoPE, heads=1, head_dim=64), ones, ones)[0, 0, 11].flip(0)
    assert (row.diff() > 0).nonzero()[0].item() == 5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_far_positions_are_exact(make, layout: str) -> None:
    """An angle formed in float32 is off by 0.016 at a million, and 2^24 + 1 does not exist there."""
    positions = torch.tensor([256, 257, 10_000, 1_000_000, 2**24 + 1])
    x = torch.zeros(1, 1, 5, 8)
    x[..., : (8 if layout == "interleaved" else 4) : (2 if layout == "interleaved" else 1)] = 1  # first of each pair
    turned = make(RoPE, heads=1, head_dim=8, layout=layout).rotate(x, x, positions)[0][0, 0]
    angles = positions.numpy().astype(np.longdouble)[:, None] * np.longdouble(10) ** -np.arange(4)
    cos, sin = (turned[:, 0::2], turned[:, 1::2]) if layout == "interleaved" else (turned[:, :4], turned[:, 4:])
    np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=1e-7)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=0, atol=1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_half_precision_rounds_once(make, layout: str) -> None:
    """bfloat16 has no 257: neither positions nor angles may pass through it."""
    encoding = make(RoPE, head_dim=8, layout=layout)
    for dtype in (torch.bfloat16, torch.float16):
        q = torch.randn(1, 2, 1, 8).expand(1, 2, 300, 8).contiguous().to(dtype)
        exact = encoding.rotate(q.float(), q.float())[0]
        for module in (encoding, encoding.to(dtype)):
            turned = module.rotate(q, q)[0]
            assert torch.equal(turned, exact.to(dtype))
            assert not torch.equal(turned[:, :, 256], turned[:, :, 257])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_of_q_does_not_matter(make, layout: str) -> None:
    """The complex view of a tensor exists for some strides only."""
    encoding = make(RoPE, layout=layout)
    permuted, odd_stride = torch.randn(3, 5, 4, 2).permute(0, 3, 1, 2), torch.randn(3, 2, 5, 5)[..., 1:]
    odd_start, repeated = torch.randn(3, 2, 5, 6)[..., 1:5], torch.ones(1).expand(3, 2, 5, 4)
    for q in (permuted, odd_stride, odd_start, repeated):
        plain = q.contiguous()
        torch.testing.assert_close(attention_logits(encoding, q, q), attention_logits(encoding, plain, plain))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_dim": 5}, r"head of 5 \(dim 10 / heads 2\) is odd"),
        ({"layout": "pairs"}, "layout=pairs is not one of interleaved, half"),
        ({"base": 1.0}, "base=1.0"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(RoPE, **parameters)
