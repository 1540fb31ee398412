import math

import pytest
import torch

from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.sliding_window import SlidingWindow


def test_a_window_of_three_keys(make, bias_matrix) -> None:
    """Itself and the two before it; two more after it where a token sees later ones."""
    seen = bias_matrix(make(SlidingWindow, window=3), 5)[0] == 0
    assert seen.tril().sum(1).tolist() == [1, 2, 3, 3, 3]
    assert seen.sum(1).tolist() == [3, 4, 5, 4, 3]
    bias = bias_matrix(make(SlidingWindow, window=3, causal=False), 5)[0]
    assert set(bias.flatten().tolist()) == {0.0, -math.inf}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 4, 23])
def test_formula(make, reference_equals_formula, causal: bool, window: int) -> None:
    encoding = make(SlidingWindow, causal=causal, window=window)
    reference_equals_formula(encoding, lambda h, i, j, q, k: q @ k / 2 if abs(i - j) < window else -math.inf)


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_of_the_whole_length_is_full_attention(make, causal: bool) -> None:
    encoding, none = make(SlidingWindow, causal=causal, window=9), make(NoPE, causal=causal)
    q = torch.randn(1, 2, 9, 4)
    assert torch.equal(attention_logits(encoding, q, q), attention_logits(none, q, q))


def test_a_window_of_one_sees_itself_alone(make) -> None:
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    torch.testing.assert_close(attend(make(SlidingWindow, window=1), q, k, v, Context(9, True)), v)


@pytest.mark.parametrize("causal", [True, False])
def test_whole_blocks_of_keys_out_of_sight_give_no_nan(make, causal: bool) -> None:
    """The fused kernel goes by blocks of keys, and softmax over a block that is all masked is 0 / 0."""
    encoding = make(SlidingWindow, causal=causal, window=2)
    q, k, v = torch.randn(3, 1, 2, 2100, 4)
    context = Context(2100, causal)
    with torch.no_grad():
        mixed = attend(encoding, q, k, v, context)
        torch.testing.assert_close(mixed, reference(encoding, q, k, v, context), rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_positions_that_leave_a_token_alone_or_repeat(make, causal: bool) -> None:
    """Each token sees at least itself, so that no row is masked as a whole."""
    encoding = make(SlidingWindow, causal=causal, window=2)
    q, k, v = (torch.randn(1, 2, 6, 4).requires_grad_() for _ in range(3))
    positions = torch.tensor([100, 7, 7, 0, 8, 100])
    mixed = attend(encoding, q, k, v, Context(6, causal, positions))
    mixed.sum().backward()
    assert mixed.isfinite().all() and all(tensor.grad.isfinite().all() for tensor in (q, k, v))
    torch.testing.assert_close(mixed[:, :, 3], v[:, :, 3])
    seen = attention_logits(encoding, q, k, positions)[0, 0] > -math.inf
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0, 1],
        [0, 1, 1, 0, 1, 0],
        [0, 1, 1, 0, 1, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 1, 1, 0, 1, 0],
        [1, 0, 0, 0, 0, 1],
    ]


def test_a_window_without_the_token_itself_is_refused(make) -> None:
    with pytest.raises(ValueError, match="window=0 must be at least 1"):
        make(SlidingWindow, window=0)
