import math

import pytest
import torch
from support import normal, setting
from torch import Tensor

from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.encodings.alibi import ALiBi
from rpe_bench.encodings.base import Context, Geometry
from rpe_bench.encodings.fox import FoX, TwoSidedFoX
from rpe_bench.encodings.nope import NoPE


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def sized(heads: int, head_dim: int, causal: bool = True, seed: int = 0, **parameters: object) -> FoX:
    """As a model would build it, its gates far from one another."""
    geometry = Geometry(heads * head_dim, heads, train_length=16, max_length=2048, causal=causal)
    (encoding,) = FoX.build(geometry, **parameters)
    assert isinstance(encoding, FoX)
    encoding.reset_parameters(torch.Generator().manual_seed(seed))
    return encoding


def plain_logits(encoding: FoX, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    """From the definition, in float64: a sum of logarithms for each pair, gate after gate."""
    gates = torch.nn.functional.linear(x.double(), encoding.weight_GD.double(), encoding.bias_G.double())
    log_f = torch.nn.functional.logsigmoid(gates).mT
    T, H = q.shape[2], q.shape[1]
    past, future = (log_f, log_f) if encoding.sides == 1 else log_f.chunk(2, dim=1)
    bias = torch.zeros(len(x), H, T, T, dtype=torch.float64)
    for i in range(T):
        for j in range(T):
            between = past[:, :, j + 1 : i + 1] if j <= i else future[:, :, i + 1 : j + 1]
            bias[:, :, i, j] = between.sum(-1)
    return q.double() @ k.double().mT / q.shape[-1] ** 0.5 + bias


def test_golden_bias() -> None:
    encoding = sized(1, 4)
    with torch.no_grad():
        encoding.weight_GD.copy_(torch.eye(4)[:1])
        encoding.bias_G.zero_()
    x = torch.zeros(1, 3, 4, dtype=torch.float64)
    x[0, :, 0] = torch.tensor([logit(0.5), logit(0.25), logit(0.8)])
    q = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    bias = attention_logits(encoding, q, q, x=x)[0, 0]
    expected = torch.tensor([[0, 0, 0], [-1.38629, 0, 0], [-1.60944, -0.22314, 0]]).double()
    torch.testing.assert_close(bias.tril(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(causal: bool, per_head: bool) -> None:
    encoding = sized(3, 4, causal, bias_init=0.3, per_head=per_head)
    given = setting(encoding, 17)
    expected = plain_logits(encoding, given.q, given.k, given.context.x_BTD)
    found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD)
    mask = torch.zeros(17, 17).masked_fill(torch.ones(17, 17).triu(1) > 0, -math.inf if causal else 0)
    torch.testing.assert_close(found + mask, expected + mask, rtol=0, atol=1e-12)
    mixed = (expected + mask).softmax(-1) @ given.v
    for path in (attend, reference):
        found = path(encoding, given.q, given.k, given.v, given.context)
        torch.testing.assert_close(found, mixed, rtol=0, atol=1e-12)


def test_gates_that_are_open_are_no_position(make) -> None:
    encoding, none = sized(2, 4, bias_init=1000.0), make(NoPE)
    given = setting(encoding, 9)
    found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD)
    torch.testing.assert_close(found, attention_logits(none, given.q, given.k), rtol=0, atol=1e-14)


@pytest.mark.parametrize("causal", [True, False])
def test_constant_gates_are_alibi(make, causal: bool) -> None:
    encoding, alibi = sized(4, 4, causal), make(ALiBi, heads=4, causal=causal)
    encoding = encoding.double()
    with torch.no_grad():
        encoding.weight_GD.zero_()
        biases = [logit(math.exp(-slope)) for slope in alibi.slopes] * encoding.sides
        encoding.bias_G.copy_(torch.tensor(biases, dtype=torch.float64))
    given = setting(encoding, 30)
    found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD)
    expected = attention_logits(alibi, given.q, given.k)
    if causal:
        found, expected = found.tril(), expected.tril()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("head_dim", [8, 16, 24])
@pytest.mark.parametrize("bias_init", [5.0, -3.0])
def test_sums_over_a_long_sequence_keep_the_digits_of_their_differences(head_dim: int, bias_init: float) -> None:
    """Sums of gates that close by 95% a token reach 6,000, of which float32 would keep 4 digits behind the point."""
    encoding, T = sized(1, head_dim, bias_init=bias_init), 2048
    given = setting(encoding, T, dtype=torch.float32, batch=1)
    gates = torch.nn.functional.linear(given.context.x_BTD, encoding.weight_GD, encoding.bias_G)
    c = torch.nn.functional.logsigmoid(gates).double().cumsum(dim=1).mT
    expected = given.q.double() @ given.k.double().mT / head_dim**0.5 + c[..., :, None] - c[..., None, :]
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    with torch.no_grad():
        found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD)
        error = (found - expected).abs() / (1 + expected.abs())
        assert error[..., seen].max() < 1e-5
        mixed = attend(encoding, given.q, given.k, given.v, given.context)
    weights = expected.masked_fill(~seen, -math.inf).softmax(-1)
    torch.testing.assert_close(mixed.double(), weights @ given.v.double(), rtol=0, atol=1e-5)


def test_gradients_through_the_fused_kernel() -> None:
    """Of q, k, v, x and the gates, against the definition."""
    encoding = sized(2, 4, bias_init=0.0).double()
    given, plain = setting(encoding, 40), setting(encoding, 40)
    attend(encoding, *given.leaves()[:3], given.context).square().sum().backward()
    found = [tensor.grad for tensor in (*given.leaves(), *encoding.parameters())]
    encoding.zero_grad()
    q, k, v, x = plain.leaves()
    c = encoding.sums(plain.context)
    scores = q @ k.mT / 2 + c[..., :, None] - c[..., None, :]
    scores = scores.masked_fill(torch.ones(40, 40).triu(1) > 0, -math.inf)
    (scores.softmax(-1) @ v).square().sum().backward()
    for mine, expected in zip(found, [t.grad for t in (q, k, v, x, *encoding.parameters())], strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-11)


def test_later_inputs_do_not_reach_earlier_outputs() -> None:
    """Through the gates: what pads a sequence behind its end may be anything."""
    encoding = sized(2, 4, bias_init=0.0)
    given = setting(encoding, 12, dtype=torch.float32)
    before = attend(encoding, given.q, given.k, given.v, given.context)
    x = given.context.x_BTD.clone()
    x[:, 7:] = 1e6
    after = attend(encoding, given.q, given.k, given.v, given.context.with_(x_BTD=x))
    assert torch.equal(before[:, :, :7], after[:, :, :7]) and not torch.equal(before, after)


@pytest.mark.parametrize("causal", [True, False])
def test_what_is_forgotten_never_comes_back(causal: bool) -> None:
    """The bias falls with the distance, whatever the gates, on either side."""
    encoding = sized(3, 4, causal, bias_init=-1.0)
    q = torch.zeros(2, 3, 50, 4, dtype=torch.float64)
    bias = attention_logits(encoding, q, q, x=5 * normal(2, 50, 12, seed=3))
    past = torch.ones(50, 50).tril() > 0
    assert (bias.diff(dim=-1)[..., past[:, 1:]] > 0).all()
    if not causal:
        assert (bias.diff(dim=-1)[..., ~past[:, 1:] & (torch.ones(50, 49).triu() > 0)] < 0).all()
    assert encoding.decays


def test_both_sides_are_alike_where_their_gates_are() -> None:
    encoding = sized(2, 4, causal=False, bias_init=0.0)
    with torch.no_grad():
        encoding.weight_GD[2:] = encoding.weight_GD[:2]
    q = torch.zeros(1, 2, 9, 4, dtype=torch.float64)
    bias = attention_logits(encoding, q, q, x=normal(1, 9, 8, seed=0))
    torch.testing.assert_close(bias, bias.mT, rtol=0, atol=1e-12)


def test_positions_are_not_read() -> None:
    for causal in (True, False):
        encoding = sized(2, 4, causal)
        given = setting(encoding, 9)
        elsewhere = given.context.with_(positions=torch.randint(1000, (2, 9)))
        before = attend(encoding, given.q, given.k, given.v, given.context)
        assert torch.equal(attend(encoding, given.q, given.k, given.v, elsewhere), before)


def test_the_class_follows_the_model() -> None:
    assert type(sized(2, 4, causal=True)) is FoX and type(sized(2, 4, causal=False)) is TwoSidedFoX
    for cls, causal in ((FoX, False), (TwoSidedFoX, True)):
        with pytest.raises(ValueError, match=f"causal={causal}.*FoX.build"):
            cls(Geometry(8, 2, 16, 64, causal))


def test_gates_of_a_layer_or_of_all_of_a_head_or_of_all() -> None:
    geometry = Geometry(8, 2, 16, 64, causal=True, layers=3)
    assert len(FoX.build(geometry)) == 3 and len(FoX.build(geometry, shared=True)) == 1
    assert sized(4, 4, per_head=False).weight_GD.shape == (1, 16)
    assert sized(4, 4, causal=False).weight_GD.shape == (8, 16)


def test_initial_values() -> None:
    encoding = sized(16, 8, bias_init=2.5)
    assert (encoding.bias_G == 2.5).all()
    assert encoding.weight_GD.abs().max() <= 128**-0.5 < 1.05 * encoding.weight_GD.abs().max()


def test_it_says_what_it_needs() -> None:
    q = torch.zeros(1, 2, 3, 4)
    for causal in (True, False):
        with pytest.raises(ValueError, match=r"x \(B, T, D\)"):
            attention_logits(sized(2, 4, causal), q, q)
    with pytest.raises(ValueError, match=r"x \(B, T, D\)"):
        sized(2, 4).rotate(q, q)
    with pytest.raises(ValueError, match=r"x \(B, T, D\)"):
        attend(sized(2, 4), q, q, q, Context(3, causal=True))
