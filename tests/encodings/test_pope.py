import math

import pytest
import torch
from support import normal, setting

from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.encodings.base import Geometry
from rpe_bench.encodings.pope import PoPE


def softplus(number: float) -> float:
    return math.log1p(math.exp(number))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(make, reference_equals_formula, causal: bool, per_head: bool) -> None:
    encoding = make(PoPE, base=100.0, delta_init="uniform", causal=causal, per_head=per_head)
    delta = encoding.delta_HK.detach().double().numpy()

    def logit(h, i, j, q, k) -> float:
        row = delta[h if per_head else 0]
        angles = [(i - j) * 100 ** (-c / 4) - row[c] for c in range(4)]
        return sum(softplus(q[c]) * softplus(k[c]) * math.cos(angles[c]) for c in range(4)) / 2

    reference_equals_formula(encoding, logit)


def test_all_features_turn_each_at_a_frequency_of_its_own(make) -> None:
    angles = make(PoPE, head_dim=4).angles(torch.tensor([0, 1, 1000]))
    expected = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)
    torch.testing.assert_close(angles, torch.stack((0 * expected, expected, 1000 * expected)), rtol=1e-12, atol=0)
    q, k = normal(2, 1, 2, 3, 4, seed=0)
    assert [t.shape for t in make(PoPE).rotate(q, k)] == [(1, 2, 3, 8)] * 2


def test_a_zero_phase_is_symmetric(make) -> None:
    """Queries and keys may change places where they differ in position alone."""
    encoding = make(PoPE, causal=False)
    q, k = normal(2, 1, 2, 9, 4, seed=0)
    found, exchanged = attention_logits(encoding, q, k), attention_logits(encoding, k, q)
    torch.testing.assert_close(found, exchanged.mT, rtol=0, atol=1e-12)
    with torch.no_grad():
        encoding.delta_HK.fill_(-0.5)
    assert (attention_logits(encoding, q, k) - attention_logits(encoding, k, q).mT).abs().max() > 0.1


def test_at_distance_zero_all_content_is_positive(make) -> None:
    encoding = make(PoPE)
    q, k = -normal(2, 3, 2, 1, 4, seed=0).abs()
    assert (attention_logits(encoding, q, k) > 0).all()


@pytest.mark.parametrize("value", [0.0, -2 * math.pi, 1e-3, 0.5])
def test_a_phase_learns_at_the_edges_of_its_range_and_beyond(make, value: float) -> None:
    """A clamp to [-2 pi, 0] would leave one that is stepped beyond it without a gradient for good."""
    encoding = make(PoPE).double()
    with torch.no_grad():
        encoding.delta_HK.fill_(value)
    q, k = normal(2, 1, 2, 5, 4, seed=0)
    assert torch.autograd.gradcheck(lambda _: attention_logits(encoding, q, k), (encoding.delta_HK,))
    attention_logits(encoding, q, k).square().sum().backward()
    assert (encoding.delta_HK.grad != 0).all()


def test_a_phase_beyond_its_range_equals_one_within(make) -> None:
    encoding = make(PoPE, delta_init="uniform").double()
    q, k = normal(2, 1, 2, 5, 4, seed=0)
    before = attention_logits(encoding, q, k)
    with torch.no_grad():
        encoding.delta_HK.add_(4 * math.pi)
    torch.testing.assert_close(attention_logits(encoding, q, k), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_queries_wider_than_values_through_the_fused_kernel(make, causal: bool) -> None:
    encoding = make(PoPE, delta_init="uniform", causal=causal).double()
    given, plain = setting(encoding, 40), setting(encoding, 40)
    fused = attend(encoding, *given.leaves()[:3], given.context)
    expected = reference(encoding, *plain.leaves()[:3], plain.context)
    assert fused.shape == given.v.shape
    torch.testing.assert_close(fused, expected, rtol=0, atol=1e-12)
    for mixed in (fused, expected):
        mixed.square().sum().backward()
    for mine, theirs in zip(given.leaves()[:3], plain.leaves()[:3], strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-11)


def test_angles_of_far_positions_are_rounded_once(make) -> None:
    encoding = make(PoPE).float()
    far = torch.tensor([10**6, 10**6 + 1])
    q, k = normal(2, 1, 2, 2, 4, seed=0, dtype=torch.float32)
    exact = attention_logits(encoding.double(), q.double(), k.double(), far)
    torch.testing.assert_close(attention_logits(encoding.float(), q, k, far).double(), exact, rtol=0, atol=1e-6)


def test_one_phase_a_head_or_for_all_of_a_layer_or_of_all(make) -> None:
    assert make(PoPE, heads=4).delta_HK.shape == (4, 4)
    assert make(PoPE, heads=4, per_head=False).delta_HK.shape == (1, 4)
    geometry = Geometry(8, 2, 16, 64, causal=True, layers=3)
    assert len(PoPE.build(geometry)) == 3 and len(PoPE.build(geometry, shared=True)) == 1


def test_initial_values(make) -> None:
    assert (make(PoPE).delta_HK == 0).all()
    delta = make(PoPE, heads=16, head_dim=16, delta_init="uniform").delta_HK
    assert -2 * math.pi <= delta.min() < -6 and -0.3 < delta.max() < 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"base": 1.0}, "base=1.0"), ({"delta_init": "ones"}, "delta_init=ones .* zero, uniform")],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(PoPE, **parameters)
