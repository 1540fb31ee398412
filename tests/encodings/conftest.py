"""What the tests of single encodings share: attention as a loop over numbers, written from the definition."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rpe_bench.attention import reference
from rpe_bench.encodings.base import Context, Encoding, Geometry

Logit = Callable[[int, int, int, np.ndarray, np.ndarray], float]


def _loops(logit: Logit, q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    mixed = np.zeros_like(v)
    B, H, T, _ = q.shape
    for b in range(B):
        for h in range(H):
            for i in range(T):
                seen = range(i + 1) if causal else range(T)
                weights = [math.exp(logit(h, i, j, q[b, h, i], k[b, h, j])) for j in seen]
                mixed[b, h, i] = sum(w * v[b, h, j] for w, j in zip(weights, seen, strict=True)) / sum(weights)
    return mixed


@pytest.fixture
def reference_equals_formula() -> Callable[[Encoding, Logit], None]:
    """Assert that the reference path of an encoding, in float64, is softmax over `logit(h, i, j, q_i, k_j)`."""

    def check(encoding: Encoding, logit: Logit, tokens: int = 23, positions: Tensor | None = None) -> None:
        geometry = encoding.geometry
        generator = torch.Generator().manual_seed(0)
        shape = (2, geometry.heads, tokens, geometry.head_dim)
        q, k, v = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(3))
        mixed = reference(encoding.double(), q, k, v, Context(tokens, geometry.causal, positions))
        expected = _loops(logit, q.numpy(), k.numpy(), v.numpy(), geometry.causal)
        np.testing.assert_allclose(mixed.detach().numpy(), expected, rtol=0, atol=1e-12)

    return check


@pytest.fixture
def make() -> Callable[..., Any]:
    """Build `cls` for a model of width 4 H (heads of 4 features) unless told otherwise; its values drawn."""

    def build(cls: type[Encoding], *, heads: int = 2, causal: bool = True, head_dim: int = 4, **parameters: Any) -> Any:
        geometry = Geometry(heads * head_dim, heads, 16, max_length=64, causal=causal, axes=cls.axes or 1)
        encoding = cls(geometry, **parameters)
        encoding.reset_parameters(torch.Generator().manual_seed(0))
        return encoding

    return build


@pytest.fixture
def bias_matrix() -> Callable[[Encoding, int], Tensor]:
    """The bias (H, T, T) of an encoding whose bias needs nothing but positions, in float64."""

    def matrix(encoding: Encoding, tokens: int, positions: Tensor | None = None) -> Tensor:
        H, K = encoding.geometry.heads, encoding.geometry.head_dim
        q = torch.zeros(1, H, tokens, K, dtype=torch.float64)
        bias = encoding.bias(q, q, Context(tokens, encoding.geometry.causal, positions))
        assert bias is not None
        return bias.detach().expand(1, H, tokens, tokens)[0]

    return matrix
