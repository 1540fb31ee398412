import math

import pytest
import torch

from rpe_bench.attention import attend
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.sandwich import Sandwich


def summed(distance: int, width: int, base: float = 10_000.0) -> float:
    return sum(math.cos(distance / base ** (2 * t / width)) for t in range(width // 2))


def test_golden_sum(make) -> None:
    """The last of 8 heads divides by 8."""
    bias = make(Sandwich, heads=8, width=8).of_offset(-torch.arange(4))[:, 7]
    assert (8 * bias).tolist() == pytest.approx([4, 3.535256, 2.563718, 1.964890], abs=1e-6)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_heads_divide_by_eight_hths(make, heads: int) -> None:
    bias = make(Sandwich, heads=heads).of_offset(torch.tensor([0]))[0]
    assert bias.tolist() == pytest.approx([64 * heads / (8 * (h + 1)) for h in range(heads)])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("width", "base"), [(128, 10_000.0), (6, 30.0)])
def test_formula(make, reference_equals_formula, causal: bool, width: int, base: float) -> None:
    encoding = make(Sandwich, heads=3, causal=causal, width=width, base=base)
    reference_equals_formula(encoding, lambda h, i, j, q, k: q @ k / 2 + summed(i - j, width, base) * 3 / (8 * (h + 1)))


def test_it_is_the_product_of_two_sinusoids(make) -> None:
    """Of positions i and j, whatever both are: the bias is a function of i - j."""
    t = torch.arange(8, dtype=torch.float64)
    angles = torch.tensor([5.0, 12.0], dtype=torch.float64)[:, None] * 10_000 ** (-2 * t / 16)
    sinusoids = torch.cat((angles.sin(), angles.cos()), dim=-1)
    bias = make(Sandwich, heads=8, width=16).of_offset(torch.tensor([7]))[0, 7]
    assert (8 * bias).item() == pytest.approx((sinusoids[0] @ sinusoids[1]).item(), abs=1e-12)


def test_it_falls_but_not_at_every_step(make) -> None:
    bias = make(Sandwich).of_offset(torch.arange(2000))[:, 0]
    assert (bias.diff() > 0).nonzero()[0].item() == 11  # from distance 11 to 12
    assert bias[0] > bias[10] > bias[100] > bias[1000]


def test_far_distances_are_exact(make) -> None:
    """A distance of 2^24 + 1 does not pass through float32, which has none."""
    far = 2**24 + 1
    bias = make(Sandwich, heads=8, width=2).of_offset(torch.tensor([-far]))[0, 7]
    assert 8 * bias.item() == pytest.approx(math.cos(far), abs=1e-9)


def test_a_table_is_that_of_its_options(make) -> None:
    encoding = make(Sandwich)
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    for attribute, value in (("width", 8), ("base", 50.0)):
        attend(encoding, q, k, v, Context(9, True))
        setattr(encoding, attribute, value)
        found = attend(encoding, q, k, v, Context(9, True))
        torch.testing.assert_close(found, attend(encoding, q, k, v, Context(9, True, torch.arange(9))))


def test_nothing_is_learned(make) -> None:
    encoding = make(Sandwich)
    assert not list(encoding.parameters()) and not encoding.learned


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"width": 7}, "width=7 must be even"), ({"width": 0}, "width=0"), ({"base": 1.0}, "base=1.0 must be greater")],
)
def test_impossible_options_are_refused(make, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Sandwich, **parameters)
