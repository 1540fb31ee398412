"""xPos beside rotary-embedding-torch and x-transformers.

Of the former only the rotation of queries and keys together is sound: with a cache it centres the two differently. Both
are run in float64. Logits of the future grow without bound, and are no part of a causal model's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from rotary_embedding_torch import RotaryEmbedding
from torch import Tensor
from x_transformers import x_transformers

from rpe_bench import attention_logits, make_encoding

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 300), (16, 16, 64)]
SHAPES += [(1, 8, 2048)]
"""Heads, width of a head, tokens."""


@contextmanager
def in_float64() -> Iterator[None]:
    """Libraries that name float32, or take the default, compute in float64 instead."""
    single = torch.float32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(single)


def of_rotary_embedding_torch(q: Tensor, k: Tensor, scale_base: float) -> Tensor:
    embedding = RotaryEmbedding(q.shape[-1], use_xpos=True, xpos_scale_base=scale_base, cache_if_possible=False)
    q, k = embedding.rotate_queries_and_keys(q, k)
    return (q @ k.mT / q.shape[-1] ** 0.5).detach()


def of_x_transformers(q: Tensor, k: Tensor, scale_base: float) -> Tensor:
    embedding = x_transformers.RotaryEmbedding(q.shape[-1], use_xpos=True, scale_base=scale_base)
    turns, scale = embedding(torch.arange(q.shape[-2]))
    q = x_transformers.apply_rotary_pos_emb(q, turns, scale)
    k = x_transformers.apply_rotary_pos_emb(k, turns, scale**-1)
    return q @ k.mT / q.shape[-1] ** 0.5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("library", [of_rotary_embedding_torch, of_x_transformers])
@pytest.mark.parametrize("scale_base", [512.0, 100.0])
def test_logits(shape: tuple[int, int, int], library, scale_base: float) -> None:
    heads, head_dim, length = shape
    sizes = {"dim": heads * head_dim, "heads": heads, "train_length": 16, "max_length": length, "causal": True}
    encoding = make_encoding("xpos", **sizes, scale_base=scale_base)
    q, k = torch.randn(2, 1, heads, length, head_dim, dtype=torch.float64)
    with in_float64():
        exact = library(q, k, scale_base).tril()
    assert exact.dtype == torch.float64
    largest = max(1.0, exact.abs().max().item())
    for positions in (None, torch.arange(length)):
        assert (attention_logits(encoding, q, k, positions).tril() - exact).abs().max() < 1e-10 * largest
        single = attention_logits(encoding, q.float(), k.float(), positions).tril()
        assert single.dtype == torch.float32 and (single - exact).abs().max() < 1e-5 * largest
    if length <= 33:  # where theirs is exact enough in float32
        assert (single - library(q.float(), k.float(), scale_base).tril()).abs().max() < 1e-5 * largest
