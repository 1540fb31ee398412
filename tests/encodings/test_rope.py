import math

import numpy as np
import pytest
import torch

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.rope import RoPE, turn, turns_of

LAYOUTS = ["interleaved", "half"]
WORKED = {  # x = 1 2 3 4 at position 1
    "interleaved": [-1.14264, 1.922076, 2.959851, 4.0298],
    "half": [-1.984111, 1.959901, 2.462378, 4.0198],
}


def turned(
    x: np.ndarray, position: int, layout: str, base: float = 10_000.0, rotary: float = 1.0, proportion: float = 1.0
) -> np.ndarray:
    """R_p x by its definition, pair after pair."""
    r = int(rotary * len(x))
    y = x.copy()
    for t in range(r // 2):
        a, b = (2 * t, 2 * t + 1) if layout == "interleaved" else (t, t + r // 2)
        angle = position * base ** (-2 * t / r) if t < int(proportion * r // 2) else 0.0
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
@pytest.mark.parametrize(
    "options", [{}, {"base": 30.0}, {"rotary": 0.5}, {"proportion": 0.5}, {"rotary": 0.8, "proportion": 0.7}]
)
def test_formula(make, reference_equals_formula, causal: bool, layout: str, options: dict[str, float]) -> None:
    encoding = make(RoPE, causal=causal, layout=layout, head_dim=8, **options)

    def logit(h, i, j, q, k) -> float:
        return turned(q, i, layout, **options) @ turned(k, j, layout, **options) / math.sqrt(8)

    reference_equals_formula(encoding, logit, tokens=13)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rotation_undoes_another_up_to_their_offset(make, layout: str) -> None:
    """R_m^T R_n = R_(n-m), and R_0 is the identity: as matrices, whose columns are the turned basis vectors."""
    basis = torch.eye(8, dtype=torch.float64)[:, None, None].expand(8, 1, 40, 8)
    R = make(RoPE, heads=1, head_dim=8, layout=layout).rotate(basis, basis)[0].squeeze(1).permute(1, 2, 0)
    assert torch.equal(R[0], torch.eye(8, dtype=torch.float64))
    for m, n in ((0, 5), (3, 3), (7, 39), (12, 20)):
        torch.testing.assert_close(R[m].T @ R[n], R[n - m], rtol=0, atol=1e-14)
        torch.testing.assert_close(R[n].T @ R[m], R[n - m].T, rtol=0, atol=1e-14)


def test_partial_and_proportional_rotations_are_two_things(make) -> None:
    here = torch.arange(1)
    partial = make(RoPE, head_dim=8, rotary=0.5, layout="half")
    proportional = make(RoPE, head_dim=8, proportion=0.5, layout="half")
    assert partial.frequencies(here).tolist() == pytest.approx([1, 0.01])
    assert proportional.frequencies(here).tolist() == pytest.approx([1, 0.1, 0, 0])
    q = torch.randn(1, 2, 9, 8)
    changed = [(encoding.rotate(q, q)[0] != q)[..., 1:, :].any(0).any(0).any(0) for encoding in (partial, proportional)]
    assert changed[0].nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert changed[1].nonzero().flatten().tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_ends_of_proportional_rotation(make, layout: str) -> None:
    """All pairs turning is RoPE, and none is no position at all, to the bit."""
    q, k = torch.randn(2, 2, 2, 9, 8)
    full, whole = make(RoPE, head_dim=8, layout=layout), make(RoPE, head_dim=8, layout=layout, proportion=1.0)
    assert torch.equal(attention_logits(full, q, k), attention_logits(whole, q, k))
    none = make(RoPE, head_dim=8, layout=layout, proportion=0.0)
    assert torch.equal(attention_logits(none, q, k), attention_logits(make(NoPE, head_dim=8), q, k))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_features_that_do_not_turn_are_left_alone(make, layout: str) -> None:
    encoding = make(RoPE, head_dim=8, layout=layout, rotary=0.5)
    q, k = torch.randn(2, 2, 2, 9, 8)
    for before, after in zip((q, k), encoding.rotate(q, k), strict=True):
        assert torch.equal(after[..., 4:], before[..., 4:])
        assert not torch.equal(after[..., 1:, :4], before[..., 1:, :4])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_turns_may_stretch(layout: str) -> None:
    x = torch.tensor([3.0, 4.0, 5.0, 6.0], dtype=torch.float64).expand(1, 1, 1, 4)
    found = turn(x, 2 * turns_of(torch.zeros(1, 2, dtype=torch.float64)), layout)
    assert torch.equal(found, 2 * x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_stay_and_products_depend_on_offset_alone(make, layout: str) -> None:
    encoding = make(RoPE, heads=1, head_dim=64, layout=layout)
    q, k = torch.randn(2, 1, 1, 1, 64, dtype=torch.float64).expand(2, 1, 1, 40, 64).contiguous()
    rotated, _ = encoding.rotate(q, k)
    torch.testing.assert_close(rotated.norm(dim=-1), q.norm(dim=-1), rtol=1e-12, atol=0)
    logits = attention_logits(encoding, q, k)[0, 0]
    torch.testing.assert_close(logits[1:, 1:], logits[:-1, :-1], rtol=0, atol=1e-12)  # Toeplitz
    assert (logits[0, 1:] - logits[1:, 0]).abs().max() > 0.1  # and the sign of the offset matters


def test_layouts_are_one_up_to_a_permutation_of_features(make) -> None:
    q, k = torch.randn(2, 2, 2, 9, 8, dtype=torch.float64)
    to_half = [0, 2, 4, 6, 1, 3, 5, 7]
    interleaved = attention_logits(make(RoPE, head_dim=8), q, k)
    half = attention_logits(make(RoPE, head_dim=8, layout="half"), q[..., to_half], k[..., to_half])
    torch.testing.assert_close(interleaved, half, rtol=0, atol=1e-12)


def test_weights_of_one_layout_serve_the_other_once_permuted(make) -> None:
    """The conversion of checkpoints: rows of both projections reordered within each head."""
    H, K, D = 2, 8, 16
    x = torch.randn(1, 9, D, dtype=torch.float64)
    weights = torch.randn(2, H * K, D, dtype=torch.float64)
    to_half = torch.cat([torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]) + h * K for h in range(H)])

    def logits(layout: str, weights: torch.Tensor) -> torch.Tensor:
        q, k = ((x @ w.T).unflatten(-1, (H, K)).transpose(1, 2) for w in weights)
        return attention_logits(make(RoPE, head_dim=K, layout=layout), q, k)

    interleaved = logits("interleaved", weights)
    torch.testing.assert_close(logits("half", weights[:, to_half]), interleaved, rtol=0, atol=1e-6)
    assert (logits("half", weights) - interleaved).abs().max() > 0.1


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({}, "Su et al. 2021, arXiv 2104.09864"),
        ({"rotary": 0.5}, "Black et al. 2022, arXiv 2204.06745"),
        ({"proportion": 0.5}, "Barbero et al. 2024, arXiv 2410.06205"),
    ],
)
def test_each_form_names_its_paper(make, options: dict[str, float], source: str) -> None:
    encoding = make(RoPE, **options)
    assert (encoding.year, encoding.source) == (int(source.split(",")[0][-4:]), source)


def test_frequencies(make) -> None:
    frequencies = make(RoPE, head_dim=8).frequencies(torch.arange(3))
    assert frequencies.tolist() == pytest.approx([1, 0.1, 0.01, 0.001])
    assert frequencies[0] == 1.0


def test_an_offset_call_after_one_from_zero(make) -> None:
    """A table kept from positions 0..3 must not serve 5..8."""
    encoding = make(RoPE, head_dim=8)
    x = torch.randn(1, 2, 1, 8).expand(1, 2, 12, 8)
    whole = make(RoPE, head_dim=8).rotate(x, x)[0]
    assert torch.equal(encoding.rotate(x[:, :, :4], x[:, :, :4])[0], whole[:, :, :4])
    assert torch.equal(encoding.rotate(x[:, :, :4], x[:, :, :4], torch.arange(5, 9))[0], whole[:, :, 5:9])
    assert torch.equal(encoding.rotate(x[:, :, :4], x[:, :, :4])[0], whole[:, :, :4])


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
    far = make(RoPE, heads=1, head_dim=8, layout=layout).rotate(x, x, positions)[0][0, 0]
    angles = positions.numpy().astype(np.longdouble)[:, None] * np.longdouble(10) ** -np.arange(4)
    cos, sin = (far[:, 0::2], far[:, 1::2]) if layout == "interleaved" else (far[:, :4], far[:, 4:])
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
            rotated = module.rotate(q, q)[0]
            assert torch.equal(rotated, exact.to(dtype))
            assert not torch.equal(rotated[:, :, 256], rotated[:, :, 257])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_of_q_does_not_matter(make, layout: str) -> None:
    """The complex view of a tensor exists for some strides only."""
    encoding = make(RoPE, layout=layout)
    permuted, odd_stride = torch.randn(3, 5, 4, 2).permute(0, 3, 1, 2), torch.randn(3, 2, 5, 5)[..., 1:]
    odd_start, repeated = torch.randn(3, 2, 5, 6)[..., 1:5], torch.ones(1).expand(3, 2, 5, 4)
    odd_but_contiguous, one_row = torch.randn(121)[1:].view(3, 2, 5, 4), torch.randn(1, 2, 1, 5)[..., 1:]
    for q in (permuted, odd_stride, odd_start, repeated, odd_but_contiguous, one_row):
        plain = q.contiguous()
        torch.testing.assert_close(attention_logits(encoding, q, q), attention_logits(encoding, plain, plain))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_dim": 5}, r"head of 5 \(dim 10 / heads 2\) is odd"),
        ({"layout": "pairs"}, "layout=pairs is not one of interleaved, half"),
        ({"base": 1.0}, "base=1.0"),
        ({"rotary": 0.0}, "rotary=0.0 must be more than 0 and at most 1"),
        ({"rotary": 1.5}, "rotary=1.5"),
        ({"rotary": 0.25}, r"rotary=0.25 of a head of 4 \(dim 8 / heads 2\) is 1"),
        ({"rotary": 0.1}, r"rotary=0.1 of a head of 4 .* is 0"),
        ({"proportion": -0.1}, "proportion=-0.1 must lie between 0 and 1"),
        ({"proportion": 1.1}, "proportion=1.1"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(RoPE, **parameters)
