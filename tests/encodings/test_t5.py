from fractions import Fraction

import pytest
import torch

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.t5 import T5

# The offset is j - i: the past is negative.
BIDIRECTIONAL = {
    -128: 15, -64: 14, -32: 12, -16: 10, -15: 9, -9: 8, -8: 8, -7: 7, -1: 1, 0: 0,
    1: 17, 7: 23, 8: 24, 15: 25, 16: 26, 32: 28, 64: 30, 127: 31, 200: 31,
}  # fmt: skip
CAUSAL = {-200: 31, -128: 31, -127: 31, -64: 26, -32: 21, -16: 16, -15: 15, -1: 1, 0: 0, 1: 0, 7: 0, 300: 0}


def exact_bucket(offset: int, causal: bool, num_buckets: int = 32, max_distance: int = 128) -> int:
    """The formula in rational numbers: floor(log(a) / log(b) * c) >= m means a^c >= b^m."""
    N = num_buckets if causal else num_buckets // 2
    base = N if not causal and offset > 0 else 0
    n = max(-offset, 0) if causal else abs(offset)
    half = N // 2
    if n < half:
        return base + n
    grown = 0
    while half + grown < N - 1 and Fraction(n, half) ** (N - half) >= Fraction(max_distance, half) ** (grown + 1):
        grown += 1
    return base + half + grown


@pytest.mark.parametrize(("causal", "golden"), [(True, CAUSAL), (False, BIDIRECTIONAL)])
def test_golden_buckets(make, causal: bool, golden: dict[int, int]) -> None:
    offsets = torch.tensor(list(golden))
    encoding = make(T5, causal=causal)
    assert encoding.bucket(offsets).tolist() == list(golden.values())
    assert encoding.bucket(offsets.double()).tolist() == list(golden.values())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (4, 16), (8, 100), (64, 512)])
def test_buckets_are_exact(make, causal: bool, num_buckets: int, max_distance: int) -> None:
    """A logarithm rounded down at a power would put the first distance of a bucket into the one before."""
    offsets = range(-600, 601)
    encoding = make(T5, causal=causal, num_buckets=num_buckets, max_distance=max_distance)
    expected = [exact_bucket(offset, causal, num_buckets, max_distance) for offset in offsets]
    assert encoding.bucket(torch.tensor(offsets)).tolist() == expected


def test_a_logarithm_in_float32_would_not_do(make) -> None:
    """There the distance 728 falls into the bucket after its own."""
    encoding = make(T5, max_distance=939)
    assert encoding.bucket(torch.tensor([-728])).item() == exact_bucket(-728, True, 32, 939) == 30


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(make, reference_equals_formula, causal: bool, scaled: bool, per_head: bool) -> None:
    encoding = make(T5, causal=causal, scaled=scaled, per_head=per_head, num_buckets=8, max_distance=12)
    table = encoding.table_NH.detach().double().numpy()
    scale = 0.5 if scaled else 1.0

    def logit(h, i, j, q, k) -> float:
        return scale * (q @ k) + table[exact_bucket(j - i, causal, 8, 12), h if per_head else 0]

    reference_equals_formula(encoding, logit)


def test_initial_values(make) -> None:
    encoding = make(T5, heads=64, head_dim=4)
    assert encoding.table_NH.shape == (32, 64)
    assert encoding.table_NH.std().item() == pytest.approx(256**-0.5, rel=0.05)
    assert abs(encoding.table_NH.mean().item()) < 0.01


def test_a_zero_table_is_no_position(make) -> None:
    encoding, none = make(T5, scaled=True), make(NoPE)
    torch.nn.init.zeros_(encoding.table_NH)
    q = torch.randn(1, 2, 5, 4)
    assert torch.equal(attention_logits(encoding, q, q), attention_logits(none, q, q))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_buckets": 6}, "num_buckets=6"),
        ({"num_buckets": 0}, "num_buckets=0"),
        ({"num_buckets": 32, "max_distance": 16}, "max_distance=16 must exceed 16"),
    ],
)
def test_impossible_buckets_are_refused(make, parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(T5, **parameters)
