"""PaTH has no library that runs without a GPU: here beside the recurrence that it stands for, token by token."""

import pytest
import torch
from torch import Tensor

from rpe_bench import attention_logits, make_encoding
from rpe_bench.encodings.base import Context

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 200), (16, 16, 64)]
SHAPES += [(1, 8, 2048)]
"""Heads, width of a head, tokens."""


def recurrence(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Every token turns all keys before it by I - beta w w^T, and then asks them."""
    length, carried, rows = q.shape[2], torch.zeros_like(k), []
    for i in range(length):
        w_i, beta_i = w[:, :, i, :, None], beta[:, :, i, None, None]
        before = carried[:, :, :i]
        carried[:, :, :i] = before - beta_i * (before @ w_i) @ w_i.mT
        carried[:, :, i] = k[:, :, i]
        rows.append((carried @ q[:, :, i, :, None]).squeeze(-1))
    return torch.stack(rows, dim=2) / q.shape[-1] ** 0.5


@torch.no_grad()
@pytest.mark.parametrize(("heads", "head_dim", "length"), SHAPES)
def test_logits_of_the_recurrence(heads: int, head_dim: int, length: int) -> None:
    dim = heads * head_dim
    sizes = {"dim": dim, "heads": heads, "train_length": length, "max_length": length, "causal": True}
    encoding = make_encoding("path", **sizes).double()
    encoding.beta_bias_H.copy_(torch.linspace(0.0, 6.0, heads + 1)[1:])  # up to near reflections, which forget nothing
    q, k = torch.randn(2, 1, heads, length, head_dim, dtype=torch.float64)
    x = torch.randn(1, length, dim, dtype=torch.float64)
    expected = recurrence(q, k, *encoding.transitions(Context(length, causal=True, x_BTD=x)))
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        found = attention_logits(encoding.to(dtype), q.to(dtype), k.to(dtype), x=x.to(dtype)).tril()
        atol = tolerance * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=atol)
