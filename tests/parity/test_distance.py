"""The network of a distance beside x-transformers' dynamic position bias."""

import math

import pytest
import torch
from x_transformers.x_transformers import DynamicPositionBias

from rpe_bench import attention_logits, make_encoding
from rpe_bench.encodings.log_mlp import LogMLP

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 300), (16, 16, 64)]
"""Heads, width of a head, tokens."""

BOTH = [(*shape, causal) for shape in SHAPES for causal in (True, False)] + [(1, 8, 2048, False)]


@torch.no_grad()
def given_weights_of(encoding: LogMLP, library: DynamicPositionBias) -> None:
    *hidden, last = library.mlp
    for weight, constant, layer in zip(encoding.weights, encoding.constants, hidden, strict=True):
        weight.copy_(layer[0].weight.mT)
        constant.copy_(layer[0].bias)
    encoding.out.copy_(last.weight.mT)


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize(("heads", "head_dim", "length", "causal"), BOTH)
@torch.no_grad()
def test_logits_of_x_transformers(heads: int, head_dim: int, length: int, log: bool, causal: bool) -> None:
    """Its distances are float32. Its last layer has a constant for each head, which softmax does not see."""
    depth = 1 + length % 3
    encoding = make_encoding(
        "log_mlp",
        dim=heads * head_dim,
        heads=heads,
        train_length=length,
        max_length=length,
        causal=causal,
        width=24,
        depth=depth,
        log=log,
    )
    library = DynamicPositionBias(24, heads=heads, depth=depth, log_distance=log)
    given_weights_of(encoding, library)
    q, k = torch.randn(2, 1, heads, length, head_dim)
    constant = library.mlp[-1].bias
    expected = q @ k.mT / math.sqrt(head_dim) + library(length, length) - constant[:, None, None]
    tolerance = 1e-5 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(attention_logits(encoding, q, k), expected, rtol=0, atol=tolerance)
