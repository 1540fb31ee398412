import math

import pytest
import torch

from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.hard_alibi import HardALiBi
from rpe_bench.encodings.nope import NoPE


def test_golden_rows(make, bias_matrix) -> None:
    """A window of 3 keys: 1, 2, 3, 3, 3 of them are visible."""
    bias = bias_matrix(make(HardALiBi, windows=(3,)), 5)
    assert (bias[0] == 0).tril().sum(1).tolist() == [1, 2, 3, 3, 3]
    assert not bias[1].any()
    assert set(bias.flatten().tolist()) == {0.0, -math.inf}


@pytest.mark.parametrize(("heads", "windows"), [(12, range(1, 9)), (4, (1, 2)), (3, (1, 2)), (2, (2,)), (1, ())])
def test_windows_grow_by_one_a_head_in_two_thirds_of_the_heads(make, heads: int, windows: range) -> None:
    encoding = make(HardALiBi, heads=heads)
    assert encoding.windows == tuple(windows)
    assert encoding.decays == bool(windows)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("windows", [None, (5,), (1, 2, 30)])
def test_formula(make, reference_equals_formula, causal: bool, windows: tuple[int, ...] | None) -> None:
    encoding = make(HardALiBi, heads=3, causal=causal, windows=windows)
    of_head = [*(windows or (1, 2)), math.inf, math.inf]
    reference_equals_formula(encoding, lambda h, i, j, q, k: q @ k / 2 if abs(i - j) < of_head[h] else -math.inf)


def test_windows_of_the_whole_length_or_none_are_no_position(make) -> None:
    none = make(NoPE)
    q = torch.randn(1, 2, 9, 4)
    for windows in ((9, 40), ()):
        encoding = make(HardALiBi, windows=windows)
        assert torch.equal(attention_logits(encoding, q, q), attention_logits(none, q, q))


def test_whole_blocks_of_keys_out_of_sight_give_no_nan(make) -> None:
    encoding = make(HardALiBi)
    q, k, v = torch.randn(3, 1, 2, 2100, 4)
    with torch.no_grad():
        mixed = attend(encoding, q, k, v, Context(2100, True))
        torch.testing.assert_close(mixed, reference(encoding, q, k, v, Context(2100, True)), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("windows", "message"),
    [((0,), "window=0 must be at least 1"), ((1, 2, 3), r"windows=\[1, 2, 3\] are more than the 2 heads")],
)
def test_impossible_windows_are_refused(make, windows: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(HardALiBi, windows=windows)
