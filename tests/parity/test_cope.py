"""CoPE beside x-transformers, which is given the masked logits that its own attention gives it."""

import math

import pytest
import torch
from torch import Tensor
from x_transformers.x_transformers import CoPE as Library

from rpe_bench import attention_logits, make_encoding

SHAPES = [(1, 8, 1, 64), (2, 128, 2, 64), (3, 16, 33, 4), (4, 8, 257, 64), (6, 64, 65, 4), (8, 32, 129, 64)]
SHAPES += [(12, 8, 200, 4), (16, 16, 64, 64), (1, 8, 2048, 64)]
"""Heads, width of a head, tokens, rows of the table."""


@torch.no_grad()
@pytest.mark.parametrize(("heads", "head_dim", "length", "npos_max"), SHAPES)
def test_logits_of_x_transformers(heads: int, head_dim: int, length: int, npos_max: int) -> None:
    """In float32 a count may fall on the other side of a whole number, where the two sides meet."""
    sizes = {"dim": heads * head_dim, "heads": heads, "train_length": length, "max_length": length, "causal": True}
    encoding = make_encoding("cope", **sizes, npos_max=npos_max, std=1.0)
    library = Library(head_dim, heads, npos_max)
    library.pos_emb.copy_(encoding.e_HNK[0])
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    given = torch.randn(2, 1, heads, length, head_dim, dtype=torch.float64)

    def both(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        q, k = given.to(dtype)
        content = q @ k.mT / math.sqrt(head_dim)
        expected = content + library.to(dtype)(q, content.masked_fill(hidden, -torch.finfo(dtype).max))
        found = attention_logits(encoding.to(dtype), q, k)
        return found.masked_fill(hidden, 0), expected.masked_fill(hidden, 0)

    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        found, expected = both(dtype)
        atol = tolerance * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
