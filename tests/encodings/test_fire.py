import math

import numpy as np
import pytest
import torch

from rpe_bench import attention
from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.encodings import fire
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.fire import FIRE
from rpe_bench.encodings.nope import NoPE

GOLDEN = {(10, 0): 0.1752548, (1024, 0): 0.9999998, (1024, 1014): 0.1494301}
"""The normalised distance of (i, j) at c = 0.1 and L = 512, before anything is learned."""


def ratio(i: int, j: int, c: float, reach: float) -> float:
    def psi(x: float) -> float:
        return math.log(abs(c * x) + 1)

    return psi(abs(i - j)) / (psi(max(i, reach)) + 1e-6)


def network(encoding: FIRE, x: float) -> np.ndarray:
    (weight, constant), out = (p.detach().double().numpy() for p in (encoding.into, encoding.out))
    return np.maximum(x * weight + constant, 0) @ out


def test_golden_distances(make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, q = make(FIRE, heads=1), torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    monkeypatch.setattr(encoding, "f", lambda ratio: ratio[..., None])
    found = [encoding.bias(q, q, Context(2, True, torch.tensor([j, i])))[0, 1, 0].item() for i, j in GOLDEN]
    assert found == pytest.approx(list(GOLDEN.values()), abs=5e-8)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
@pytest.mark.parametrize("threshold", [512.0, 7.5, 7.0])
def test_formula(make, reference_equals_formula, causal: bool, per_head: bool, threshold: float) -> None:
    """The length is 23: within the threshold, and beyond."""
    encoding = make(FIRE, causal=causal, per_head=per_head, threshold=threshold, width=5)
    encoding.c.data.fill_(-0.4)
    encoding.multiplier.data.fill_(-1.5)
    c, reach = encoding.c.item(), abs(encoding.multiplier.item()) * threshold

    def logit(h, i, j, q, k) -> float:
        return q @ k / 2 + network(encoding, ratio(i, j, c, reach))[h if per_head else 0]

    reference_equals_formula(encoding, logit)


@pytest.mark.parametrize("causal", [True, False])
def test_given_positions(make, causal: bool) -> None:
    """Out of order, repeated and far, on both sides of the threshold; for all examples, and for each."""
    encoding = make(FIRE, causal=causal, threshold=20.0).double()
    one, two = [3, 0, 50, 50, 7], [0, 20, 21, 2000, 5]
    q, k = torch.randn(2, 2, 2, 5, 4, dtype=torch.float64)
    for positions in (torch.tensor(one), torch.tensor([one, two]), torch.tensor([one, two])[..., None]):
        found = attention_logits(encoding, q, k, positions) - q @ k.mT / 2
        for b in range(2):
            p = two if b and positions.dim() > 1 else one
            expected = [[network(encoding, ratio(i, j, encoding.c.item(), 20.0)) for j in p] for i in p]
            np.testing.assert_allclose(found[b].detach().movedim(0, -1), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_distance_is_all_up_to_the_threshold_and_not_beyond(make, causal: bool) -> None:
    encoding = make(FIRE, causal=causal, threshold=20.0).double()
    assert encoding.by_offset_alone(Context(21, causal)) and not encoding.by_offset_alone(Context(22, causal))
    assert not encoding.by_offset_alone(Context(5, causal, torch.arange(5)))
    encoding.multiplier.data.fill_(-0.5)
    assert encoding.by_offset_alone(Context(11, causal)) and not encoding.by_offset_alone(Context(12, causal))


@pytest.mark.parametrize("length", [10, 21, 22, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_each_way_to_compute_it_has_the_values_and_gradients_of_the_reference(make, causal: bool, length: int) -> None:
    """At 21 tokens the last query stands at the threshold itself."""
    encoding = make(FIRE, causal=causal, threshold=20.0).double()
    q, k, v = torch.randn(3, 2, 2, length, 4, dtype=torch.float64)
    context, gradients = Context(length, causal), []
    for compute in (attend, reference):
        encoding.zero_grad()
        mixed = compute(encoding, q, k, v, context)
        mixed.square().sum().backward()
        gradients.append([mixed, *(parameter.grad for parameter in encoding.parameters())])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(attend(encoding, q, k, v, context), gradients[1][0], rtol=0, atol=1e-10)


def test_the_network_is_asked_once_a_distance(make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, asked = make(FIRE, threshold=64.0), []
    f = encoding.f
    monkeypatch.setattr(encoding, "f", lambda ratio: asked.append(ratio.numel()) or f(ratio))
    q, k, v = torch.randn(3, 1, 2, 40, 4)
    attend(encoding, q, k, v, Context(40, True))
    assert asked == [40]


@torch.no_grad()
def test_pairs_beyond_the_threshold_are_taken_piece_by_piece(make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, q = make(FIRE, threshold=8.0).double(), torch.zeros(2, 2, 30, 4, dtype=torch.float64)
    for positions in (None, torch.randint(40, (2, 30))):
        whole = attention_logits(encoding, q, q, positions)
        with monkeypatch.context() as patch:
            patch.setattr(fire, "PAIRS", 70)
            torch.testing.assert_close(attention_logits(encoding, q, q, positions), whole, rtol=0, atol=1e-14)
    with torch.enable_grad():
        torch.testing.assert_close(attention_logits(encoding, q, q, positions), whole, rtol=0, atol=1e-14)


@torch.no_grad()
def test_beyond_the_threshold_rows_are_taken_in_chunks(make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, rows = make(FIRE, threshold=8.0).double(), []
    q, k, v = torch.randn(3, 1, 2, 50, 4, dtype=torch.float64)
    expected = reference(encoding, q, k, v, Context(50, True))
    bias = FIRE.bias
    monkeypatch.setattr(FIRE, "bias", lambda self, q, k, context: rows.append(q.shape[2]) or bias(self, q, k, context))
    monkeypatch.setattr(attention, "CHUNK_ELEMENTS", 2 * 50 * 20)
    torch.testing.assert_close(attend(encoding, q, k, v, Context(50, True)), expected, rtol=0, atol=1e-12)
    assert rows == [20, 20, 10]


def test_a_bias_depends_on_the_place_of_its_query_only_beyond_the_threshold(make) -> None:
    encoding = make(FIRE, threshold=100.0).double()
    q = torch.zeros(1, 2, 5, 4, dtype=torch.float64)
    near = attention_logits(encoding, q, q)
    for shift, same in ((17, True), (96, True), (97, False), (1000, False)):
        assert torch.equal(attention_logits(encoding, q, q, torch.arange(5) + shift), near) == same


def test_a_zero_network_is_no_position(make) -> None:
    encoding, none = make(FIRE), make(NoPE)
    encoding.out.data.zero_()
    q = torch.randn(1, 2, 5, 4)
    assert torch.equal(attention_logits(encoding, q, q), attention_logits(none, q, q))


@pytest.mark.parametrize("name", ["c", "multiplier"])
def test_gradients_are_finite_where_a_learned_scale_is_zero(make, name: str) -> None:
    """There the normaliser of the first query is no more than its epsilon."""
    encoding = make(FIRE).double()
    getattr(encoding, name).data.zero_()
    q, k, v = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64)
    for positions in (None, torch.tensor([0, 1, 1, 4, 9, 2])):
        mixed = attend(encoding, q, k, v, Context(6, True, positions))
        mixed.square().sum().backward()
        assert mixed.isfinite().all() and all(p.grad.isfinite().all() for p in encoding.parameters())


def test_initial_values(make) -> None:
    encoding = make(FIRE, heads=64, width=400, c=0.3)
    assert encoding.c.item() == pytest.approx(0.3) and encoding.multiplier.item() == 1
    for parameter, bound in ((encoding.into, 1), (encoding.out, 0.05)):
        assert 0.98 * bound < parameter.abs().max().item() <= bound
        assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"width": 0}, "width=0 must be at least 1"),
        ({"c": 0.0}, "c=0.0 must be positive"),
        ({"threshold": -1.0}, "threshold=-1.0 must be positive"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(FIRE, **parameters)
