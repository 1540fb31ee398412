"""DeBERTa: He et al. 2020, "Decoding-enhanced BERT with disentangled attention" (arXiv 2006.03654)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, Encoding, Geometry, check_choice, check_std
from rpe_bench.encodings.relative import RelativeBias, add_key_logits, add_query_logits, reach


class PositionTable(nn.Module):
    """P, a vector (D) a row, which the layers share: as a module, so that all of them still do when it is moved."""

    def __init__(self, rows: int, dim: int, std: float, norm: bool) -> None:
        super().__init__()
        self.std = std
        self.table_MD = nn.Parameter(torch.empty(rows, dim))
        self.norm = nn.LayerNorm(dim, eps=1e-7) if norm else None

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.table_MD.normal_(0, self.std, generator=generator)
        if self.norm is not None:
            self.norm.reset_parameters()

    def forward(self, rows: slice, dtype: torch.dtype) -> Tensor:
        vectors_MD = self.table_MD[rows].to(dtype)
        if self.norm is None:
            return vectors_MD
        weight, bias = self.norm.weight.to(dtype), self.norm.bias.to(dtype)
        return nn.functional.layer_norm(vectors_MD, self.norm.normalized_shape, weight, bias, self.norm.eps)


class DeBERTa(RelativeBias):
    """logit_ij = (q_i.k_j + q_i.(W_k P[d(i, j)]) + k_j.(W_q P[d(i, j)])) / sqrt(3K).

    d(i, j) = clamp(i - j, -k, k - 1) + k, P is a table (2k, D), W_k and W_q are matrices (K, D) of each head. All
    distances from k onwards share one row, as the paper defines it; rows that training never reaches stay as drawn.
    Positions that are given are whole numbers.

    k            the paper's 512; only the rows that a call reaches cost anything
    terms        c2p (content to position, with W_k), p2c (position to content, with W_q) or both; the logits are
                 divided by the root of K times one more than the number of terms
    p2c_reading  the row of P in the third product: that of d(i, j), as in the authors' code, or that of d(j, i), as
                 printed in the paper
    std          P is drawn from N(0, std^2), W_k and W_q as linear layers are
    shared       one P for all layers, as in the paper, or each layer its own; W_k and W_q are each layer's own
    per_head     W_k and W_q of each head, as in the paper, or one for all heads
    """

    year = 2020
    source = "He et al. 2020, arXiv 2006.03654"
    learns = "2 * k * D + (2 if terms == 'both' else 1) * D * K * (H if per_head else 1)"
    neutral = {"per_head": True}

    draws_positions = True
    """Whether P is this module's to draw, and not that of the first layer, with which it shares it."""

    def __init__(
        self,
        geometry: Geometry,
        k: int = 512,
        terms: str = "both",
        p2c_reading: str = "code",
        std: float = 0.02,
        shared: bool = True,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        if k < 1:
            raise ValueError(f"k={k} must be at least 1")
        check_terms(terms, p2c_reading, std)
        self.k = k
        self.terms = terms
        self.p2c_reading = p2c_reading
        self.scale = term_scale(geometry, terms)
        self.positions = PositionTable(2 * k, geometry.dim, std, norm=False)
        self.key_HDK, self.query_HDK = projections(geometry, terms, per_head)

    @classmethod
    def build(cls, geometry: Geometry, **parameters: Any) -> list[Encoding]:
        modules = [cls(replace(geometry, layer=layer), **parameters) for layer in range(geometry.layers)]
        if parameters.get("shared", True):
            for module in modules[1:]:
                module.positions = modules[0].positions
                module.draws_positions = False
        return list(modules)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        if self.draws_positions:
            self.positions.reset_parameters(generator)
        for matrix in (self.key_HDK, self.query_HDK):
            if matrix is not None:
                bound = self.geometry.dim**-0.5
                matrix.uniform_(-bound, bound, generator=generator)

    def row(self, distance: Tensor) -> Tensor:
        """The row of P of the distance i - j."""
        return distance.clamp(-self.k, self.k - 1) + self.k

    def projected(self, vectors_MD: Tensor, context: Context) -> tuple[Tensor | None, Tensor | None]:
        """W_q and W_k times rows of P, (H, M, K) or (1, M, K) for all heads, where the terms have them."""
        query, key = (
            None if W is None else vectors_MD @ W.to(vectors_MD.dtype) for W in (self.query_HDK, self.key_HDK)
        )
        return query, key

    def add(self, logits_BHQS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        # Compiled, all rows are taken: which of them a length reaches would be compiled anew for each.
        low, high = (-self.k, self.k)
        if not torch.compiler.is_compiling():
            low, high = reach(context.uncut if context.positions is None else context)
        tables = context.once(
            (self, context.project, low, high), lambda: self._tables(low, high, q_BHQK.dtype, context)
        )
        for term, table_HMK, first in tables:
            if term == "c2p":
                logits_BHQS = add_query_logits(logits_BHQS, q_BHQK, table_HMK, first, context)
            else:
                logits_BHQS = add_key_logits(logits_BHQS, k_BHSK, table_HMK, first, context)
        return logits_BHQS

    def _tables(self, low: int, high: int, dtype: torch.dtype, context: Context) -> list[tuple[str, Tensor, int]]:
        """Of each term the vectors of the offsets low..high, scaled, and the first offset as the term sees it."""
        # Distances i - j, the negative of offsets.
        nearest, farthest = self._within(-high), self._within(-low)
        query_HMK, key_HMK = self._vectors(nearest, farthest, dtype, context)
        found = []
        if self.terms != "p2c":
            assert key_HMK is not None
            found.append(("c2p", self.scale * key_HMK.flip(1), -farthest))
        if self.terms != "c2p":
            first = nearest
            if self.p2c_reading == "paper":
                last = self._within(high)
                query_HMK, first = self._vectors(self._within(low), last, dtype, context)[0], -last
                query_HMK = None if query_HMK is None else query_HMK.flip(1)
            assert query_HMK is not None
            found.append(("p2c", self.scale * query_HMK, first))
        return found

    def _within(self, distance: int) -> int:
        return min(max(distance, -self.k), self.k - 1)

    def _vectors(
        self, nearest: int, farthest: int, dtype: torch.dtype, context: Context
    ) -> tuple[Tensor | None, Tensor | None]:
        """W_q P and W_k P of the distances nearest..farthest, (H, M, K) or (1, M, K)."""
        device = self.positions.table_MD.device
        rows = self.row(torch.arange(nearest, farthest + 1, device=device))
        start, stop = 0, len(self.positions.table_MD)
        if not torch.compiler.is_compiling():
            start, stop = int(rows[0]), int(rows[-1]) + 1
        query, key = self.projected(self.positions(slice(start, stop), dtype), context)
        if stop - start == len(rows):
            return query, key
        index = rows - start  # many distances have one row
        return None if query is None else query[:, index], None if key is None else key[:, index]


def check_terms(terms: str, p2c_reading: str, std: float) -> None:
    check_choice("terms", terms, "c2p", "p2c", "both")
    check_choice("p2c_reading", p2c_reading, "code", "paper")
    check_std(std)


def term_scale(geometry: Geometry, terms: str) -> float:
    """1 / sqrt(K times the products in a logit)."""
    return float(((3 if terms == "both" else 2) * geometry.head_dim) ** -0.5)


def projections(
    geometry: Geometry, terms: str, per_head: bool = True
) -> tuple[nn.Parameter | None, nn.Parameter | None]:
    """W_k and W_q, (H, D, K) or (1, D, K) for all heads, where the terms have them."""
    shape = (geometry.heads if per_head else 1, geometry.dim, geometry.head_dim)
    key = None if terms == "p2c" else nn.Parameter(torch.empty(shape))
    return key, None if terms == "c2p" else nn.Parameter(torch.empty(shape))
