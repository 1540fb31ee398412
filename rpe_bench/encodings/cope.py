"""Contextual positions (CoPE): Golovneva et al. 2024, "Contextual position encoding" (arXiv 2405.18719), appendix B."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, Encoding, Geometry, check_std


class CoPE(Encoding):
    """logit_ij = q_i.k_j / sqrt(K) + q_i.e[p_ij], p_ij = sum_{t=j..i} sigmoid(q_i.k_t / sqrt(K)), at most npos_max - 1.

    A query counts those tokens alone, from the key up to itself, that its own content picks out. Between whole numbers
    e, a table (npos_max, K), is interpolated: (1 - w) q_i.e[floor p] + w q_i.e[ceil p], w = p - floor p; q is not
    scaled there. Counts beyond the table share its last row: that is the paper's definition, and how it extrapolates.

    Counted are tokens of the sequence, in its order: positions are not read. There is no count of what follows, so that
    a bidirectional model has none.

    npos_max  rows of e. A gate begins at one half, so that 64 rows serve 128 tokens from the start
    std       of e as drawn; 0 in the paper
    shared    one table for all layers, or one a layer, as in the paper
    per_head  one table a head, or one for all heads, as in the paper
    """

    year = 2024
    source = "Golovneva et al. 2024, arXiv 2405.18719"
    learns = "npos_max * K * (H if per_head else 1)"
    causal_only = True
    pairwise = False
    axes = None

    def __init__(
        self,
        geometry: Geometry,
        npos_max: int = 64,
        std: float = 0.0,
        shared: bool = False,
        per_head: bool = False,
    ) -> None:
        super().__init__(geometry)
        if npos_max < 2:
            raise ValueError(f"npos_max={npos_max} must be at least 2")
        check_std(std)
        self.npos_max = npos_max
        self.std = std
        self.e_HNK = nn.Parameter(torch.empty(geometry.heads if per_head else 1, npos_max, geometry.head_dim))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.e_HNK.normal_(0, self.std, generator=generator)

    def count(self, content_BHQS: Tensor, context: Context) -> Tensor:
        """p_ij before its limit, (B, H, Q, S); 0 for keys that the mask hides."""
        return cast(Tensor, _Count.apply(content_BHQS, context.rows.indices(context.length)[0]))

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        if context.content_BHQS is None:
            raise ValueError("CoPE counts by the logits of content, and was given none")
        p = self.count(context.content_BHQS, context)
        e_HNK = self.e_HNK.to(q_BHQK.dtype)
        # The step from each row to the next. From the last there is none: that is the limit of p, and of its gradient.
        step_HNK = nn.functional.pad(e_HNK.diff(dim=-2), (0, 0, 0, 1))
        floor = p.detach().floor().clamp_(max=self.npos_max - 1)
        row = floor.long()
        of_row, step = ((q_BHQK @ table.mT).gather(-1, row) for table in (e_HNK, step_HNK))
        return torch.addcmul(of_row, p - floor, step)


class _Count(torch.autograd.Function):
    """sum_{t=j..i} sigmoid(l_it) over the last dimension, the first row being query `first`."""

    @staticmethod
    def forward(ctx: Any, content_BHQS: Tensor, first: int) -> Tensor:
        gates = content_BHQS.sigmoid()
        gates[..., first:].tril_()  # the keys after a query, whose gates have no gradient either
        ctx.save_for_backward(gates)
        # From the query backwards: as a difference of sums from the start, small counts would lose digits.
        return gates.flip(-1).cumsum_(-1).flip(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (gates,) = ctx.saved_tensors
        return torch.ops.aten.sigmoid_backward(gradient.cumsum(dim=-1), gates), None
