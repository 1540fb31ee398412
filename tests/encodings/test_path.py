import pytest
import torch
from support import normal, setting
from torch import Tensor

import rpe_bench.attention
from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.encodings.base import Context, Geometry
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.path import PaTH, causal_convolution


def transitions_by_hand(encoding: PaTH, x_TD: Tensor) -> list[list[Tensor]]:
    """H_t of each head, (K, K), from the layer's input at t and before."""
    K, taps = encoding.geometry.head_dim, encoding.taps_CN
    low = [encoding.up_CR @ (encoding.down_RD @ x) for x in x_TD]
    found = []
    for t, x in enumerate(x_TD):
        mixed = sum(
            taps[:, -1 - back] * low[t - back] if t >= back else torch.zeros_like(low[0])
            for back in range(taps.shape[1])
        )
        w = torch.nn.functional.silu(mixed)
        heads = []
        for h in range(len(encoding.beta_HD)):
            w_h = w[h * K : (h + 1) * K]
            w_h = w_h / w_h.norm()
            beta = 2 * torch.sigmoid(encoding.beta_HD[h] @ x + encoding.beta_bias_H[h])
            heads.append(torch.eye(K).double() - beta * torch.outer(w_h, w_h))
        found.append(heads)
    return found


def logits_by_hand(encoding: PaTH, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
    """k_j^T H_{j+1} ... H_i q_i / sqrt(K), one product after the other; 0 for j > i."""
    B, H, T, K = q.shape
    found = torch.zeros(B, H, T, T, dtype=torch.float64)
    for b in range(B):
        steps = transitions_by_hand(encoding, x[b])
        for h in range(H):
            for i in range(T):
                back = q[b, h, i]
                for j in range(i, -1, -1):
                    found[b, h, i, j] = k[b, h, j] @ back / K**0.5
                    back = steps[j][h % len(steps[j])] @ back
    return found


@pytest.fixture
def path(make):
    """PaTH in float64, its betas well apart."""

    def build(**parameters) -> PaTH:
        encoding = make(PaTH, **{"rank": 3} | parameters).double()
        with torch.no_grad():
            encoding.beta_bias_H.copy_(torch.linspace(-1.0, 2.0, len(encoding.beta_bias_H)))
        return encoding

    return build


@torch.no_grad()
@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 70])
def test_formula(path, tokens: int) -> None:
    """Within one chunk of 32, at its edges and across three."""
    encoding = path()
    given = setting(encoding, tokens, batch=1)
    found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD).tril()
    expected = logits_by_hand(encoding, given.q, given.k, given.context.x_BTD)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("parameters", [{"per_head": False}, {"kernel": 1}, {"heads": 1, "head_dim": 40}])
def test_formula_with_other_options(path, parameters: dict[str, int]) -> None:
    encoding = path(**parameters)
    given = setting(encoding, 35)
    found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD).tril()
    expected = logits_by_hand(encoding, given.q, given.k, given.context.x_BTD)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_transitions_that_do_nothing_are_no_position(make, path) -> None:
    """beta = 0."""
    encoding, none = path(), make(NoPE)
    with torch.no_grad():
        encoding.beta_bias_H.fill_(-1e9)
    given = setting(encoding, 70)
    found = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD).tril()
    torch.testing.assert_close(found, attention_logits(none, given.q, given.k).tril(), rtol=0, atol=1e-14)


def test_reflections_keep_norms_and_nothing_else_does(path) -> None:
    encoding = path()
    with torch.no_grad():
        encoding.beta_bias_H.fill_(1e9)
    (step,) = transitions_by_hand(encoding, normal(1, 8, seed=0))
    torch.testing.assert_close(step[0] @ step[0].mT, torch.eye(4).double(), rtol=0, atol=1e-12)
    assert not encoding.preserves_norm
    # One query after 69 reflections, seen by the 4 unit vectors as keys at the start: its norm is what it was.
    T = 70
    q, x = normal(1, 2, T, 4, seed=0), normal(1, T, 8, seed=1)
    parts = []
    for unit in torch.eye(4).double():
        k = torch.zeros(1, 2, T, 4, dtype=torch.float64)
        k[:, :, 0] = unit
        parts.append(2 * attention_logits(encoding, q, k, x=x)[0, :, -1, 0])
    torch.testing.assert_close(torch.stack(parts, -1).norm(dim=-1), q[0, :, -1].norm(dim=-1), rtol=0, atol=1e-12)


def test_directions_have_norm_1_and_betas_lie_between_0_and_2(path) -> None:
    encoding = path()
    w, beta = encoding.transitions(Context(50, causal=True, x_BTD=3 * normal(2, 50, 8, seed=0)))
    torch.testing.assert_close(w.norm(dim=-1), torch.ones(2, 2, 50).double(), rtol=0, atol=1e-12)
    assert (beta > 0).all() and (beta < 2).all() and beta.max() > 1.5 and beta.min() < 0.5


def test_an_input_of_zeros_transports_nothing(path) -> None:
    """A direction of norm 0 cannot have norm 1; no NaN comes of it, forwards or backwards."""
    encoding = path()
    given = setting(encoding, 5)
    x = torch.zeros(2, 5, 8, dtype=torch.float64, requires_grad=True)
    found = attention_logits(encoding, given.q, given.k, x=x).tril()
    torch.testing.assert_close(found, (given.q @ given.k.mT / 2).tril(), rtol=0, atol=1e-12)
    found.sum().backward()
    assert x.grad.isfinite().all() and encoding.up_CR.grad.isfinite().all()


@pytest.mark.parametrize("chunk", [1, 7, 32, 45])
def test_rows_in_chunks_that_are_not_those_of_the_product(path, monkeypatch, chunk: int) -> None:
    encoding, T = path(), 100
    given = setting(encoding, T)
    with torch.no_grad():
        whole = reference(encoding, given.q, given.k, given.v, given.context)
        monkeypatch.setattr(rpe_bench.attention, "CHUNK_ELEMENTS", chunk * 2 * 2 * T)
        parts = attend(encoding, given.q, given.k, given.v, given.context)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-13)
    trained = attend(encoding, given.q, given.k, given.v, given.context)
    torch.testing.assert_close(trained, whole, rtol=0, atol=1e-13)


@torch.no_grad()
def test_a_long_sequence_in_float32(path) -> None:
    """2,000 transitions, most of them near reflections, which forget nothing: errors add up and do not grow."""
    encoding, T = path(heads=1, head_dim=16), 2048
    encoding.beta_bias_H.fill_(6.0)
    given = setting(encoding, T, batch=1)
    exact = attention_logits(encoding, given.q, given.k, x=given.context.x_BTD)
    x = given.context.x_BTD.float()
    found = attention_logits(encoding.float(), given.q.float(), given.k.float(), x=x)
    assert (found - exact).abs().max() < 1e-5 * exact.abs().max()
    assert exact[0, 0, -100:, :100].abs().max() > 0.01  # or no error could show


def test_later_inputs_do_not_reach_earlier_outputs(path) -> None:
    """Through the convolution or a chunk's product: what pads a sequence behind its end may be anything."""
    encoding = path().float()
    given = setting(encoding, 50, dtype=torch.float32)
    before = attend(encoding, given.q, given.k, given.v, given.context)
    x, k = given.context.x_BTD.clone(), given.k.clone()
    x[:, 37:], k[:, :, 37:] = 1e4, -1e4
    after = attend(encoding, given.q, k, given.v, given.context.with_(x_BTD=x))
    assert torch.equal(before[:, :, :37], after[:, :, :37]) and not torch.equal(before, after)


def test_gradients_equal_finite_differences_across_chunks(make) -> None:
    encoding = make(PaTH, heads=1, head_dim=2, rank=1, kernel=2).double()
    q, k, x = normal(3, 1, 34, 2, seed=0)
    weight = normal(34, 34, seed=1).tril()

    def weighed(q: Tensor, k: Tensor, x: Tensor, *_: Tensor) -> Tensor:
        return (attention_logits(encoding, q[:, None], k[:, None], x=x) * weight).sum()

    inputs = [tensor.requires_grad_() for tensor in (q, k, x)]
    assert torch.autograd.gradcheck(weighed, (*inputs, *encoding.parameters()))


def test_the_convolution_is_causal() -> None:
    x, taps = normal(1, 6, 3, seed=0), normal(3, 4, seed=1)
    channels = torch.nn.functional.pad(x.mT, (3, 0))
    expected = torch.nn.functional.conv1d(channels, taps[:, None], groups=3).mT
    torch.testing.assert_close(causal_convolution(x, taps), expected, rtol=0, atol=1e-12)


def test_of_a_layer_or_of_all_of_a_head_or_of_all(make) -> None:
    geometry = Geometry(8, 2, 16, 64, causal=True, layers=3)
    assert len(PaTH.build(geometry)) == 3 and len(PaTH.build(geometry, shared=True)) == 1
    assert make(PaTH, heads=4).up_CR.shape == (16, 32) and make(PaTH, heads=4, per_head=False).up_CR.shape == (4, 32)


def test_it_says_what_it_needs(make) -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"x \(B, T, D\)"):
        attention_logits(make(PaTH), q, q)


@pytest.mark.parametrize(("parameters", "message"), [({"rank": 0}, "rank=0"), ({"kernel": 0}, "kernel=0")])
def test_impossible_options_are_refused(make, parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(PaTH, **parameters)
