"""T5's buckets and bias beside transformers and x-transformers."""

import math

import pytest
import torch
from torch import Tensor
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers.x_transformers import RelativePositionBias

from rpe_bench import attention_logits, make_encoding
from rpe_bench.encodings.t5 import T5

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 300), (16, 16, 64)]
SHAPES += [(1, 8, 2048)]
"""Heads, width of a head, tokens."""

BOTH = [(*shape, causal) for shape in SHAPES for causal in (True, False)]

SIZES = [(32, 128), (8, 20), (64, 1000)]
"""Buckets, and the distance that the last of them begin at."""


def setting(heads: int, head_dim: int, length: int, causal: bool, dtype: torch.dtype, **options: bool):
    sizes = {"dim": heads * head_dim, "heads": heads, "train_length": length, "max_length": length, "causal": causal}
    encoding = make_encoding("t5", **sizes, **options).to(dtype)
    return encoding, *torch.randn(2, 1, heads, length, head_dim, dtype=torch.float64).to(dtype)


def transformers_t5(encoding: T5) -> T5Attention:
    geometry = encoding.geometry
    config = T5Config(
        d_model=geometry.dim,
        d_kv=geometry.head_dim,
        num_heads=geometry.heads,
        is_decoder=geometry.causal,
        relative_attention_num_buckets=encoding.num_buckets,
        relative_attention_max_distance=encoding.max_distance,
    )
    library = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    library.relative_attention_bias.weight.data = encoding.table_NH.detach()
    return library


def assert_close(found: Tensor, expected: Tensor) -> None:
    tolerance = 1e-10 if expected.dtype == torch.float64 else 1e-5
    atol = tolerance * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), SIZES)
def test_buckets(causal: bool, num_buckets: int, max_distance: int) -> None:
    """Both libraries take a float32 logarithm, which is exact enough for these."""
    geometry = setting(2, 8, 4, causal, torch.float32)[0].geometry
    found = T5(geometry, num_buckets, max_distance).bucket(offset := torch.arange(-2048, 2049))
    sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
    transformers = T5Attention._relative_position_bucket(offset, bidirectional=not causal, **sizes)
    x_transformers = RelativePositionBias._relative_position_bucket(offset, causal=causal, **sizes)
    assert torch.equal(found, transformers) and torch.equal(found, x_transformers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "head_dim", "length", "causal"), BOTH)
@torch.no_grad()
def test_logits_of_transformers(heads: int, head_dim: int, length: int, causal: bool, dtype: torch.dtype) -> None:
    encoding, q, k = setting(heads, head_dim, length, causal, dtype)
    library = transformers_t5(encoding)
    expected = library.scaling * q @ k.mT + library.compute_bias(length, length)
    assert_close(attention_logits(encoding, q, k), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "head_dim", "length", "causal"), BOTH)
@torch.no_grad()
def test_logits_of_x_transformers(heads: int, head_dim: int, length: int, causal: bool, dtype: torch.dtype) -> None:
    """It multiplies the table by sqrt(head_dim) and divides products by it: by its scale, T5's logits."""
    encoding, q, k = setting(heads, head_dim, length, causal, dtype)
    root = math.sqrt(head_dim)
    library = RelativePositionBias(scale=root, causal=causal, heads=heads)
    library.relative_attention_bias.weight.data = encoding.table_NH.detach()
    assert_close(attention_logits(encoding, q, k), q @ k.mT + library(length, length) / root)
    encoding.scale = 1 / root
    scaled = q @ k.mT / root + library(length, length) / root
    assert_close(attention_logits(encoding, q, k), scaled)
