import numpy as np
import pytest
import torch

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.transformer_xl import TransformerXL
from rpe_bench.encodings.xlnet import XLNet


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("clamp_len", [None, 4])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(make, reference_equals_formula, causal: bool, clamp_len: int | None, per_head: bool) -> None:
    encoding = make(XLNet, std=1.0, causal=causal, clamp_len=clamp_len, per_head=per_head)
    u, v, W = (p.detach().double().numpy() for p in (encoding.u_HK, encoding.v_HK, encoding.weight_HDK))

    def logit(h, i, j, q, k) -> float:
        distance = i - j if clamp_len is None else min(max(i - j, -clamp_len), clamp_len)
        h = h if per_head else 0
        angles = distance / 10_000 ** (np.arange(0, 8, 2) / 8)
        return ((q + u[h]) @ k + (q + v[h]) @ (np.concatenate((np.sin(angles), np.cos(angles))) @ W[h])) / 2

    reference_equals_formula(encoding, logit)


def test_the_past_has_positive_distances(make) -> None:
    """With W the first sine alone: above zero for the key before, below for the key after."""
    encoding = make(XLNet, causal=False, std=0.0)
    encoding.weight_HDK.data[:, 0] = 1
    bias = encoding.bias(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), Context(3, False))[0, 0]
    assert bias[1, 0] > 0 > bias[1, 2] and bias[1, 1] == 0
    assert bias[1, 0].item() == pytest.approx(4 * np.sin(1) / 2)


def test_a_causal_model_is_transformer_xl(make) -> None:
    q, k = torch.randn(2, 1, 2, 9, 4)
    assert torch.equal(attention_logits(make(XLNet), q, k), attention_logits(make(TransformerXL), q, k))


@pytest.mark.parametrize("causal", [True, False])
def test_all_zero_is_no_position(make, causal: bool) -> None:
    q, k = torch.randn(2, 1, 2, 9, 4)
    none = make(NoPE, causal=causal)
    assert torch.equal(attention_logits(make(XLNet, std=0.0, causal=causal), q, k), attention_logits(none, q, k))


def test_declared_for_both_directions() -> None:
    assert TransformerXL.causal_only and not XLNet.causal_only
