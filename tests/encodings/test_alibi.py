import math
from fractions import Fraction

import pytest
import torch

from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.encodings.alibi import ALiBi, slopes
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE

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


@pytest.mark.parametrize("heads", [2, 6])
def test_two_sided_halves_look_back_and_ahead(make, reference_equals_formula, bias_matrix, heads: int) -> None:
    """Each half has the slopes of a model of as many heads; itself a token sees in both."""
    encoding = make(ALiBi, heads=heads, causal=False, bidirectional="two_sided")
    half = heads // 2
    bias = bias_matrix(encoding, 9)
    seen = bias > -math.inf
    ones = torch.ones(half, 9, 9, dtype=torch.bool)
    assert torch.equal(seen, torch.cat((ones.tril(), ones.triu())))
    assert torch.equal(bias[:half], bias[half:].mT)

    def logit(h, i, j, q, k) -> float:
        if (j > i) if h < half else (j < i):
            return -math.inf
        return q @ k / 2 - slopes(half)[h % half] * abs(i - j)

    reference_equals_formula(encoding, logit)


@pytest.mark.parametrize("bidirectional", ["symmetric", "two_sided"])
def test_each_form_is_the_reference_on_every_path(make, bidirectional: str) -> None:
    encoding = make(ALiBi, causal=False, bidirectional=bidirectional)
    q, k, v = torch.randn(3, 1, 2, 40, 4)
    given = torch.tensor([7, 7, 90, *range(37)])  # repeated, out of order and far
    for positions in (None, given):
        context = Context(40, False, positions)
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                mixed = attend(encoding, q, k, v, context)
                torch.testing.assert_close(mixed, reference(encoding, q, k, v, context), rtol=0, atol=1e-5)


def test_no_slope_is_no_position(make) -> None:
    encoding, none = make(ALiBi), make(NoPE)
    encoding.slopes = [0.0, 0.0]
    q = torch.randn(1, 2, 9, 4)
    assert torch.equal(attention_logits(encoding, q, q), attention_logits(none, q, q))


def test_of_keys_that_are_alike_a_later_one_weighs_more(make) -> None:
    encoding = make(ALiBi, heads=8)
    q = torch.ones(1, 8, 4, 4)
    row = attention_logits(encoding, q, q)[0, :, 3].softmax(-1)
    assert (row.diff(dim=-1) > 0).all()


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


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bidirectional": "both"}, "bidirectional=both is not one of symmetric, two_sided"),
        ({"bidirectional": "two_sided"}, "bidirectional=two_sided is for a model without a causal mask"),
        ({"bidirectional": "two_sided", "causal": False, "heads": 3}, "heads=3 is odd"),
    ],
)
def test_impossible_forms_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(ALiBi, **parameters)


def test_nothing_is_learned(make) -> None:
    encoding = make(ALiBi)
    assert not list(encoding.parameters()) and not encoding.learned
