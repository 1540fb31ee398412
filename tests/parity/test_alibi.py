"""ALiBi beside transformers (BLOOM, MPT) and x-transformers.

The libraries form slopes and biases in float32. They are run in float64 as well, and there ours is held to that.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from x_transformers.x_transformers import AlibiPositionalBias

from rpe_bench import attention_logits, make_encoding
from rpe_bench.encodings.alibi import slopes

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 300), (16, 16, 64)]
SHAPES += [(1, 8, 2048)]
"""Heads, width of a head, tokens."""

SINGLE = torch.float32

BOTH = [(*shape, causal) for shape in SHAPES for causal in (True, False)]


def setting(heads: int, head_dim: int, length: int, causal: bool, dtype: torch.dtype, **options: str):
    sizes = {"dim": heads * head_dim, "heads": heads, "train_length": length, "max_length": length, "causal": causal}
    encoding = make_encoding("alibi", **sizes, **options)
    return encoding, *torch.randn(2, 1, heads, length, head_dim, dtype=torch.float64).to(dtype)


def assert_close(found: Tensor, expected: Tensor) -> None:
    tolerance = 1e-10 if expected.dtype == torch.float64 else 1e-5
    atol = tolerance * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """In float64, libraries that name float32, or take the default, compute in it instead."""
    with pytest.MonkeyPatch.context() as patch:
        if dtype == torch.float64:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(torch, "float32", torch.float64)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(SINGLE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "head_dim", "length", "causal"), BOTH)
def test_logits_of_x_transformers(heads: int, head_dim: int, length: int, causal: bool, dtype: torch.dtype) -> None:
    with computing_in(dtype):
        bias = AlibiPositionalBias(heads)(length, length)
    assert bias.dtype == dtype
    encoding, q, k = setting(heads, head_dim, length, causal, dtype)
    assert_close(attention_logits(encoding, q, k), q @ k.mT / math.sqrt(head_dim) + bias)


def test_logits_of_x_transformers_at_given_positions() -> None:
    encoding, q, k = setting(8, 8, 5, False, torch.float64)
    for positions in (torch.tensor([5, 0, 7, 7, 300]), torch.tensor([[9, 3, 3, 1, 0]])):
        bias = AlibiPositionalBias(8).double().forward_custom_pos(positions.double())
        assert_close(attention_logits(encoding, q, k, positions), q @ k.mT / math.sqrt(8) + bias)


def bloom(heads: int, length: int) -> Tensor:
    return build_alibi_tensor(torch.ones(1, length, dtype=torch.long), heads, torch.float32).view(heads, 1, length)


@pytest.mark.parametrize("library", [bloom, build_mpt_alibi_tensor], ids=["bloom", "mpt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "head_dim", "length"), SHAPES)
def test_log_weights_of_transformers(library, heads: int, head_dim: int, length: int, dtype: torch.dtype) -> None:
    """Both add a row of keys alone, which softmax makes equal to distances under a causal mask."""
    encoding, q, k = setting(heads, head_dim, length, True, dtype)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    with computing_in(dtype):
        row = library(heads, length)
    assert row.shape == (heads, 1, length) and row.dtype == dtype
    expected = (q @ k.mT / math.sqrt(head_dim) + row).masked_fill(hidden, -math.inf).log_softmax(-1)
    found = attention_logits(encoding, q, k).masked_fill(hidden, -math.inf).log_softmax(-1)
    finite = ~hidden.expand(1, heads, -1, -1)
    assert_close(found[finite], expected[finite])
    # Without what all keys of a query share, the row is the bias itself.
    bias = attention_logits(encoding, torch.zeros_like(q), k)[0]
    assert_close(bias.masked_fill(hidden, 0), (row - row.mT).masked_fill(hidden, 0))


@pytest.mark.parametrize("library", [bloom, build_mpt_alibi_tensor], ids=["bloom", "mpt"])
def test_slopes_of_transformers(library) -> None:
    for heads in range(1, 65):
        row = library(heads, 2)[:, 0]
        assert (row[:, 1] - row[:, 0]).tolist() == pytest.approx(slopes(heads), rel=2e-6)
