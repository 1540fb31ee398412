import math

import numpy as np
import pytest
import torch

from rpe_bench.attention import attend, attention_logits
from rpe_bench.encodings.base import Context, Geometry
from rpe_bench.encodings.rope import RoPE
from rpe_bench.encodings.xpos import XPos

LAYOUTS = ["interleaved", "half"]


def zeta(t: int, width: int, gamma: float = 0.4) -> float:
    return (t / (width / 2) + gamma) / (1 + gamma)


def product(q: np.ndarray, k: np.ndarray, i: int, j: int, layout: str, S: float, gamma: float, base: float) -> float:
    """The sum over pairs of zeta_t^((i-j)/S) times the product of the turned pairs."""
    K, total = len(q), 0.0
    for t in range(K // 2):
        a, b = (2 * t, 2 * t + 1) if layout == "interleaved" else (t, t + K // 2)
        angle = (j - i) * base ** (-2 * t / K)
        # q.(R k) of one pair, where R turns by the angle of the offset.
        turned = math.cos(angle) * (q[a] * k[a] + q[b] * k[b]) + math.sin(angle) * (q[b] * k[a] - q[a] * k[b])
        total += zeta(t, K, gamma) ** ((i - j) / S) * turned
    return total


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("S", "gamma", "base"), [(512.0, 0.4, 10_000.0), (8.0, 1.0, 30.0)])
def test_formula(make, reference_equals_formula, layout: str, S: float, gamma: float, base: float) -> None:
    encoding = make(XPos, layout=layout, head_dim=6, scale_base=S, gamma=gamma, base=base)

    def logit(h, i, j, q, k) -> float:
        return product(q, k, i, j, layout, S, gamma, base) / math.sqrt(6)

    reference_equals_formula(encoding, logit)


def test_the_fastest_pair_shrinks_most(make) -> None:
    logarithms = make(XPos, head_dim=64).logarithms(torch.device("cpu")) * 512
    assert logarithms.exp()[0].item() == pytest.approx(0.285714, abs=1e-6)
    assert (logarithms.diff() > 0).all() and logarithms[-1] < 0


def test_without_decay_it_is_rope(make) -> None:
    q, k = torch.randn(2, 1, 2, 50, 8, dtype=torch.float64)
    slow = make(XPos, head_dim=8, scale_base=1e15)
    rope = make(RoPE, head_dim=8)
    torch.testing.assert_close(attention_logits(slow, q, k), attention_logits(rope, q, k), rtol=0, atol=1e-11)


def test_products_depend_on_offset_alone(make) -> None:
    encoding = make(XPos, heads=1, head_dim=16, scale_base=16.0)
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64).expand(2, 1, 1, 40, 16).contiguous()
    logits = attention_logits(encoding, q, k)[0, 0]
    torch.testing.assert_close(logits[1:, 1:], logits[:-1, :-1], rtol=1e-12, atol=1e-12)
    scattered = torch.tensor([[900, 7, 7, 300], [10**6, 10**6 + 1, 10**6 - 30, 10**6 + 64]])
    found = attention_logits(encoding, q[:, :, :4].expand(2, 1, 4, 16), k[:, :, :4].expand(2, 1, 4, 16), scattered)
    for b, positions in enumerate(scattered.tolist()):
        for i, m in enumerate(positions):
            for j, n in enumerate(positions):
                expected = product(q[0, 0, 0].numpy(), k[0, 0, 0].numpy(), m, n, "interleaved", 16.0, 0.4, 1e4) / 4
                assert found[b, 0, i, j].item() == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_the_envelope_decays_but_the_product_does_not(make) -> None:
    """Constant q and k give the sum of zeta_t^(r/S) cos(r theta_t), which still first rises from distance 5 to 6."""
    encoding = make(XPos, heads=1, head_dim=64)
    ones = torch.ones(1, 1, 300, 64, dtype=torch.float64)
    row = attention_logits(encoding, ones, ones)[0, 0, 299].flip(0)
    assert (row.diff() > 0).nonzero()[0].item() == 5
    envelope = (torch.arange(300).double()[:, None] * encoding.logarithms(torch.device("cpu"))).exp().sum(-1)
    assert (envelope.diff() < 0).all()
    assert not encoding.decays and encoding.causal_only and not encoding.preserves_norm


# What cannot be represented


@pytest.mark.parametrize(
    ("dtype", "reach"),
    [(torch.float64, 266879), (torch.float32, 33360), (torch.bfloat16, 33359), (torch.float16, 4170)],
)
def test_all_logits_are_finite_within_reach_and_refused_beyond(make, dtype: torch.dtype, reach: int) -> None:
    """Those of the future as well, which the mask has yet to hide."""
    encoding = make(XPos, head_dim=8)
    assert encoding.reach(dtype) == reach
    ends = torch.tensor([0, 1, reach // 2, reach - 2, reach - 1])
    q = torch.ones(1, 2, 5, 8, dtype=dtype)
    for start in (0, 10**6):
        logits = attention_logits(encoding, q, q, ends + start)
        assert logits.isfinite().all() and (logits.abs().float().sum((0, 1)) > 0).all()
        with pytest.raises(ValueError, match=rf"over {reach} positions .* was given {start} to {start + reach} "):
            encoding.rotate(q, q, torch.tensor([0, 1, 2, reach, 5]) + start)
    with pytest.raises(ValueError, match=f"over {reach} positions .* was given 3 to {3 + reach} in one sequence"):
        encoding.rotate(q.expand(2, 2, 5, 8), q, torch.tensor([[0, 1, 2, 3, 4], [3, 3, 3, 3, 3 + reach]]))


def test_a_sequence_that_is_too_long_is_refused(make) -> None:
    encoding = make(XPos, head_dim=8, scale_base=1.0)
    assert encoding.reach(torch.float32) == 66
    q = torch.randn(1, 2, 66, 8)
    assert attend(encoding, q, q, q, Context(66, True)).isfinite().all()
    with pytest.raises(
        ValueError, match="over 66 positions at most .scale_base=1.0, gamma=0.4., and was given 0 to 66"
    ):
        encoding.rotate(torch.randn(1, 2, 67, 8), torch.randn(1, 2, 67, 8))


def test_a_model_that_would_be_evaluated_beyond_reach_is_refused() -> None:
    assert XPos(Geometry(16, 2, 64, 33360, causal=True))
    with pytest.raises(ValueError, match="over 33360 positions .* was given 0 to 33360"):
        XPos(Geometry(16, 2, 64, 33361, causal=True))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_dim": 5}, r"head of 5 \(dim 10 / heads 2\) is odd"),
        ({"layout": "pairs"}, "layout=pairs is not one of interleaved, half"),
        ({"base": 1.0}, "base=1.0"),
        ({"scale_base": 0.0}, "scale_base=0.0 must be positive"),
        ({"gamma": 0.0}, "gamma=0.0 must be positive"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(XPos, **parameters)
