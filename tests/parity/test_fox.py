"""FoX beside x-transformers, whose name for it is data-dependent ALiBi."""

import math

import pytest
import torch
from torch import nn
from x_transformers.x_transformers import DataDependentAlibi

from rpe_bench import attention_logits, make_encoding

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 200), (16, 16, 64)]
SHAPES += [(1, 8, 2048)]
"""Heads, width of a head, tokens."""


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("heads", "head_dim", "length"), SHAPES)
def test_logits_of_x_transformers(heads: int, head_dim: int, length: int, causal: bool) -> None:
    """Without its cache, which its bias ignores; from gates as it draws them."""
    dim = heads * head_dim
    sizes = {"dim": dim, "heads": heads, "train_length": length, "max_length": length, "causal": causal}
    encoding = make_encoding("fox", **sizes, bias_init=5.0)
    library = DataDependentAlibi(dim, heads, causal=causal)
    linear = library.to_forget_gates[0]
    assert isinstance(linear, nn.Linear) and torch.equal(linear.bias, encoding.bias_G)
    linear.weight.copy_(encoding.weight_GD)
    given = torch.randn(2, 1, heads, length, head_dim, dtype=torch.float64)
    x = torch.randn(1, length, dim, dtype=torch.float64)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) & causal
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        q, k = given.to(dtype)
        expected = q @ k.mT / math.sqrt(head_dim) + library.to(dtype)(x.to(dtype))
        found = attention_logits(encoding.to(dtype), q, k, x=x.to(dtype))
        atol = tolerance * max(1.0, expected.masked_fill(hidden, 0).abs().max().item())
        torch.testing.assert_close(found.masked_fill(hidden, 0), expected.masked_fill(hidden, 0), rtol=0, atol=atol)
