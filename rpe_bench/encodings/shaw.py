"""Relative vectors: Shaw et al. 2018, "Self-attention with relative position representations" (arXiv 1803.02155)."""

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, Geometry, check_std
from rpe_bench.encodings.relative import RelativeBias, add_query_logits, mixed_values


class Shaw(RelativeBias):
    """logit_ij = q_i.(k_j + aK[n]) / sqrt(K), and z_i = sum_j weight_ij (v_j + aV[n]), n = clamp(j - i, -k, k) + k.

    aK and aV are tables (2k + 1, K). All distances from k onwards share one row, as the paper defines it; where
    training is shorter than k, the rows that it never reaches stay as drawn from N(0, std^2). Positions that are given
    are whole numbers.

    keys      with aK
    values    with aV
    shared    the same tables in all layers, or each layer its own, as in the paper
    per_head  each head its own tables, or the same for all heads, as in the paper
    """

    year = 2018
    source = "Shaw et al. 2018, arXiv 1803.02155"
    learns = "(keys + values) * (2 * k + 1) * K * (H if per_head else 1)"

    def __init__(
        self,
        geometry: Geometry,
        k: int = 16,
        keys: bool = True,
        values: bool = True,
        std: float = 0.02,
        shared: bool = False,
        per_head: bool = False,
    ) -> None:
        super().__init__(geometry)
        if k < 1:
            raise ValueError(f"k={k} must be at least 1")
        check_std(std)
        if not keys and not values:
            raise ValueError("keys=false, values=false: at least one of them must be true")
        self.k = k
        self.std = std
        shape = (geometry.heads,) * per_head + (2 * k + 1, geometry.head_dim)
        self.keys = nn.Parameter(torch.empty(shape)) if keys else None
        self.values = nn.Parameter(torch.empty(shape)) if values else None

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        for table in (self.keys, self.values):
            if table is not None:
                table.normal_(0, self.std, generator=generator)

    def add(self, logits_BHQS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        if self.keys is None:
            return logits_BHQS
        keys = self.keys
        table = context.once((self, "keys"), lambda: keys * self.scale)
        return add_query_logits(logits_BHQS, q_BHQK, table, -self.k, context)

    def value(self, weights_BHQS: Tensor, v_BHSK: Tensor, context: Context) -> Tensor:
        if self.values is None:
            return super().value(weights_BHQS, v_BHSK, context)
        return mixed_values(weights_BHQS, v_BHSK, self.values, -self.k, context)
