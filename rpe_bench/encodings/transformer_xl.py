"""Transformer-XL: Dai et al. 2019, "Attentive language models beyond a fixed-length context" (arXiv 1901.02860)."""

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, Geometry, check_std
from rpe_bench.encodings.relative import RelativeBias, SinusoidTerm


class TransformerXL(RelativeBias):
    """logit_ij = ((q_i + u).k_j + (q_i + v).(W_R r(i - j))) / sqrt(K), with u, v (K) and W_R (K, D) of each head.

    r is the sinusoid of the distance, [sin(n w_0), sin(n w_1), ... | cos(n w_0), cos(n w_1), ...] with
    w_t = base^(-2t/D). It is defined for any position, fractions included. The memory of earlier segments that the
    paper feeds to attention is no matter of position, and is left out.

    base       of the sinusoid
    clamp_len  distances beyond it count as it, which the paper's code offers for evaluation; null for no end
    std        u, v and W_R are drawn from N(0, std^2)
    shared     one u, v and W_R for all layers, or each layer its own
    per_head   u, v and W_R of each head, as in the paper, or one for all heads
    """

    year = 2019
    source = "Dai et al. 2019, arXiv 1901.02860"
    learns = "(D + 2) * K * (H if per_head else 1)"
    neutral = {"per_head": True}
    causal_only = True

    def __init__(
        self,
        geometry: Geometry,
        base: float = 10_000.0,
        clamp_len: int | None = None,
        std: float = 0.02,
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        check_std(std)
        H, K = geometry.heads if per_head else 1, geometry.head_dim
        self.term = SinusoidTerm(geometry.dim, base, clamp_len)
        self.std = std
        self.u_HK = nn.Parameter(torch.empty(H, K))
        self.v_HK = nn.Parameter(torch.empty(H, K))
        self.weight_HDK = nn.Parameter(torch.empty(H, geometry.dim, K))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        for parameter in (self.u_HK, self.v_HK, self.weight_HDK):
            parameter.normal_(0, self.std, generator=generator)

    def content(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        """scale * (q + u).k, with one pass over q."""
        scale = self.scale
        if isinstance(scale, Tensor):  # a subclass's, which is no `alpha`
            return super().content(q_BHQK + self.u_HK[:, None].to(q_BHQK.dtype), k_BHSK, context)
        u = context.once((self, "u"), lambda: (scale * self.u_HK[:, None]).to(q_BHQK.dtype))
        return torch.add(u, q_BHQK, alpha=scale) @ k_BHSK.mT

    def add(self, logits_BHQS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        """The second product; the first is that of content."""
        v = self.v_HK[:, None].to(q_BHQK.dtype)
        weight = context.once((self, "weight"), lambda: self.scale * self.weight_HDK)
        return self.term.add(logits_BHQS, q_BHQK + v, weight, context)
