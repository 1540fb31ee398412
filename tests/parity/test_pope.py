"""PoPE beside x-transformers.

It takes softplus in float32 whatever it is given, so that float32 is all that can be compared; its frequencies are
float32 as well, and replaced here by exact ones, or its angles would be off by 1e-4 at a thousand.
"""

import math

import pytest
import torch
from torch import Tensor
from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

from rpe_bench import attention_logits, make_encoding

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 200), (16, 16, 64)]
SHAPES += [(1, 8, 2048)]
"""Heads, width of a head, tokens."""


def library_of(heads: int, head_dim: int, delta_HK: Tensor) -> PolarEmbedding:
    library = PolarEmbedding(head_dim, heads)
    exact = 10_000 ** -(torch.arange(head_dim, dtype=torch.float64) / head_dim)
    torch.testing.assert_close(library.inv_freq.double(), exact, rtol=1e-6, atol=0)
    library.inv_freq = exact
    library.learned_bias.data = delta_HK.detach().double()[:, None]
    return library


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("delta_init", ["zero", "uniform"])
@pytest.mark.parametrize(("heads", "head_dim", "length"), SHAPES)
def test_logits_of_x_transformers(heads: int, head_dim: int, length: int, delta_init: str, causal: bool) -> None:
    sizes = {"dim": heads * head_dim, "heads": heads, "train_length": length, "max_length": length, "causal": causal}
    encoding = make_encoding("pope", **sizes, delta_init=delta_init)
    library = library_of(heads, head_dim, encoding.delta_HK)
    q, k = torch.randn(2, 1, heads, length, head_dim)
    for positions in (torch.arange(length), torch.randint(5000, (length,))):
        angles, delta = library(positions)
        # Doubles in, for its products with the cosines; it rounds them to floats before softplus.
        turned_q, turned_k = apply_polar_pos_emb(q.double(), angles), apply_polar_pos_emb(k.double(), angles + delta)
        expected = turned_q @ turned_k.mT / math.sqrt(head_dim)
        found = attention_logits(encoding, q, k, positions).double()
        atol = 1e-5 * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
