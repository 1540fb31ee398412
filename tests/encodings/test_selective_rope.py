import math

import pytest
import torch
from support import normal, setting
from torch import Tensor

from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.encodings.base import Context, Geometry
from rpe_bench.encodings.rope import RoPE
from rpe_bench.encodings.selective_rope import SelectiveRoPE


def angles_by_hand(encoding: SelectiveRoPE, x_TD: Tensor) -> list[list[list[float]]]:
    """Of each token, head and pair: step after step."""
    H, K = encoding.geometry.heads, encoding.geometry.head_dim
    taps, channels = encoding.taps_CN, len(encoding.up_CR)
    low = []
    for x in x_TD:
        parts = [part / part.norm() for part in x.chunk(H)]
        low.append(encoding.up_CR @ (encoding.down_RD @ torch.cat(parts)))
    total, found = [0.0] * channels, []
    for t in range(len(x_TD)):
        for c in range(channels):
            step = sum(taps[c, -1 - back] * low[t - back][c] for back in range(taps.shape[1]) if t >= back)
            total[c] += step.item() + (0.0 if encoding.b_C is None else math.exp(encoding.b_C[c]))
        theta = [encoding.base ** (-2 * c / K) for c in range(K // 2)]
        heads = [total[start : start + K // 2] for start in range(0, channels, K // 2)]
        found.append([[a * b for a, b in zip(theta, heads[h % len(heads)], strict=True)] for h in range(H)])
    return found


@torch.no_grad()
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("options", [{}, {"drift": True, "kernel": 1}, {"per_head": False}])
def test_formula(make, layout: str, options: dict[str, object]) -> None:
    """A logit depends on the angles gathered between its tokens, pair for pair."""
    encoding = make(SelectiveRoPE, base=50.0, rank=3, layout=layout, **options).double()
    for parameter in encoding.parameters():
        parameter.add_(normal(*parameter.shape, seed=4))
    T = 11
    given = setting(encoding, T)
    found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD)
    pairs = [(0, 2), (1, 3)] if layout == "half" else [(0, 1), (2, 3)]
    for b in range(2):
        angles = angles_by_hand(encoding, given.context.x_BTD[b])
        for h, i, j in ((h, i, j) for h in range(2) for i in range(T) for j in range(T)):
            q, k, expected = given.q[b, h, i].tolist(), given.k[b, h, j].tolist(), 0.0
            for c, (one, two) in enumerate(pairs):
                turned = complex(q[one], q[two]) * complex(k[one], k[two]).conjugate()
                angle = angles[i][h][c] - angles[j][h][c]
                expected += (turned * complex(math.cos(angle), math.sin(angle))).real / 2
            assert found[b, h, i, j].item() == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_drift_alone_is_rope(make, layout: str) -> None:
    encoding = make(SelectiveRoPE, base=10_000.0, layout=layout, drift=True)
    rope = make(RoPE, base=10_000.0, layout=layout)
    with torch.no_grad():
        encoding.up_CR.zero_()
    given = setting(encoding, 40)
    found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD)
    torch.testing.assert_close(found, attention_logits(rope, given.q, given.k), rtol=0, atol=1e-12)


def test_no_steps_are_no_position(make) -> None:
    encoding = make(SelectiveRoPE)
    with torch.no_grad():
        encoding.taps_CN.zero_()
    given = setting(encoding, 9)
    q, k = encoding.rotate(given.q, given.k, None, given.context)
    assert torch.equal(q, given.q) and torch.equal(k, given.k)


def test_norms_stay(make) -> None:
    encoding = make(SelectiveRoPE, head_dim=8, drift=True)
    given = setting(encoding, 300)
    for before, after in zip((given.q, given.k), encoding.rotate(given.q, given.k, None, given.context), strict=True):
        torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1), rtol=1e-14, atol=0)
        assert (after - before).abs().max() > 0.1


def test_only_angles_between_two_tokens_count(make) -> None:
    """What comes before both of them turns both alike."""
    encoding = make(SelectiveRoPE, kernel=2)
    given = setting(encoding, 20)
    x = given.context.x_BTD.clone()
    x[:, :7] = normal(2, 7, 8, seed=5)
    before = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD)
    after = attention_logits(encoding, given.q, given.k, x=x)
    torch.testing.assert_close(after[..., 8:, 8:], before[..., 8:, 8:], rtol=0, atol=1e-12)
    assert (after[..., :7, :7] - before[..., :7, :7]).abs().max() > 1e-3


def test_angles_gathered_over_a_long_sequence_keep_their_digits(make) -> None:
    """After 20,000 steps of about one radian, float32 would know the angle to a thousandth."""
    encoding, T = make(SelectiveRoPE, heads=1, rank=1, kernel=1), 20_000
    with torch.no_grad():
        encoding.down_RD.copy_(torch.tensor([[1.0, 0, 0, 0]]))
        encoding.up_CR.fill_(1.0)
        encoding.taps_CN.fill_(1.0)
    x = normal(1, T, 4, seed=0, dtype=torch.float32) + torch.tensor([5.0, 0, 0, 0])
    q = torch.ones(1, 1, T, 4)
    turned, _ = encoding.rotate(q, q, None, Context(T, causal=True, x_BTD=x))
    steps = torch.nn.functional.normalize(x, dim=-1)[..., 0].double()
    angle = steps.cumsum(dim=1)
    assert angle[0, -1] > 15_000
    torch.testing.assert_close(turned[0, 0, :, 0].double(), (angle.cos() - angle.sin())[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_reach_the_input_through_the_fused_kernel(make, causal: bool) -> None:
    encoding = make(SelectiveRoPE, causal=causal).double()
    gradients = []
    for path in (attend, reference):
        given = setting(encoding, 12)
        path(encoding, *given.leaves()[:3], given.context).square().sum().backward()
        gradients.append([leaf.grad for leaf in given.leaves()])
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.abs().max() > 0
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_later_inputs_do_not_reach_earlier_outputs(make) -> None:
    """Through the convolution or the sums: what pads a sequence behind its end may be anything."""
    encoding = make(SelectiveRoPE)
    given = setting(encoding, 12, dtype=torch.float32)
    before = attend(encoding, given.q, given.k, given.v, given.context)
    x = given.context.x_BTD.clone()
    x[:, 7:] = 1e4
    after = attend(encoding, given.q, given.k, given.v, given.context.with_(x_BTD=x))
    assert torch.equal(before[:, :, :7], after[:, :, :7]) and not torch.equal(before, after)


def test_an_input_of_zeros_gives_no_nan(make) -> None:
    encoding = make(SelectiveRoPE).double()
    given = setting(encoding, 5)
    x = torch.zeros(2, 5, 8, dtype=torch.float64, requires_grad=True)
    found = attention_logits(encoding, given.q, given.k, x=x)
    found.sum().backward()
    assert found.isfinite().all() and x.grad.isfinite().all()


def test_of_a_layer_or_of_all_of_a_head_or_of_all(make) -> None:
    geometry = Geometry(8, 2, 16, 64, causal=True, layers=3)
    assert len(SelectiveRoPE.build(geometry)) == 3 and len(SelectiveRoPE.build(geometry, shared=True)) == 1
    assert make(SelectiveRoPE, heads=4).up_CR.shape == (8, 32)
    assert make(SelectiveRoPE, heads=4, per_head=False).up_CR.shape == (2, 32)


def test_it_says_what_it_needs(make) -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"x \(B, T, D\)"):
        attention_logits(make(SelectiveRoPE), q, q)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_dim": 5}, "head of 5"),
        ({"base": 1.0}, "base=1.0"),
        ({"rank": 0}, "rank=0"),
        ({"kernel": 0}, "kernel=0"),
        ({"layout": "quarter"}, "layout=quarter"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(SelectiveRoPE, **parameters)
