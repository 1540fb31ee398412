from fractions import Fraction

import pytest
import torch

from rpe_bench.encodings.alibi import ALiBi, slopes

POWER_OF_8 = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
GOLDEN = {
    1: [0.00390625],
    2: [0.0625, 0.00390625],
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],  # unsorted, and not the literal 2^(-8(h+1)/6)
    8: POWER_OF_8,
    12: [*POWER_OF_8, 0.70710678, 0.35355339, 0.1767767, 0.08838835],
}


@pytest.mark.parametrize("heads", GOLDEN)
def test_golden_slopes(heads: int) -> None:
    assert slopes(heads) == pytest.approx(GOLDEN[heads], rel=1e-7)


def test_every_number_of_heads_has_distinct_slopes() -> None:
    for heads in range(1, 65):
        assert len(slopes(heads)) == len(set(slopes(heads))) == heads
        assert all(0 < slope < 1 for slope in slopes(heads))


@pytest.mark.parametrize("causal", [True, False])
def test_formula(make, reference_equals_formula, causal: bool) -> None:
    encoding = make(ALiBi, heads=6, causal=causal)
    reference_equals_formula(encoding, lambda h, i, j, q, k: q @ k / 2 - GOLDEN[6][h] * abs(i - j))


def test_bidirectional_bias_is_symmetric(make, bias_matrix) -> None:
    bias = bias_matrix(make(ALiBi, heads=8, causal=False), 9)
    distance = torch.tensor([[abs(i - j) for j in range(9)] for i in range(9)]).double()
    assert torch.equal(bias, bias.mT)
    assert torch.equal(bias, -torch.tensor(POWER_OF_8).double()[:, None, None] * distance)


def test_weights_decay_strictly_with_distance(make) -> None:
    """The sign: of keys that are all alike, the nearest weighs most."""
    encoding = make(ALiBi, heads=8)
    offset = torch.arange(-300, 1)
    assert (encoding.of_offset(offset).diff(dim=0) > 0).all()


def test_a_far_distance_is_rounded_once(make) -> None:
    """A distance must not pass through float32, which has no 2^24 + 1, on its way into float64."""
    far = 2**24 + 1
    bias = make(ALiBi, heads=12).of_offset(torch.tensor([-far, far]))
    assert Fraction(bias[0, 0].item()) == Fraction(-far, 2) == Fraction(bias[1, 0].item())


def test_nothing_is_learned(make) -> None:
    encoding = make(ALiBi)
    assert not list(encoding.parameters()) and not encoding.learned
