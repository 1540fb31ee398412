"""The sinusoid of a distance, in place of that of a position: after Vaswani et al. 2017 (arXiv 1706.03762)."""

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, DistanceBias, Geometry, check_base, check_std
from rpe_bench.encodings.relative import RelativeBias, SinusoidTerm
from rpe_bench.encodings.sinusoidal import sinusoid


class SinusoidalRelative(DistanceBias):
    """logit_ij = q_i.k_j / sqrt(K) + w_h . r(i - j), with r(n, 2t) = sin(n w_t), r(n, 2t+1) = cos(n w_t).

    w_t = base^(-2t/width). Only the vectors w_h are learned. It is Transformer-XL's term of global position, v.(W_R r),
    alone. Distances have no end; keys before and after the query differ by the sines, which are odd.

    base      of the sinusoid
    width     features of the sinusoid, null for the model's width
    std       w_h is drawn from N(0, std^2)
    shared    the same vectors in all layers, or each layer its own
    per_head  a vector for each head, or one for all heads
    """

    year = 2017
    source = "after Vaswani et al. 2017, arXiv 1706.03762"
    learns = "(width or D) * (H if per_head else 1)"

    def __init__(
        self,
        geometry: Geometry,
        base: float = 10_000.0,
        width: int | None = None,
        std: float = 0.02,
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        self.width = checked_width(geometry, width, base, std)
        self.base = base
        self.std = std
        self.weight_HD = nn.Parameter(torch.empty(geometry.heads if per_head else 1, self.width))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.weight_HD.normal_(0, self.std, generator=generator)

    def of_offset(self, offset: Tensor) -> Tensor:
        return sinusoid(-offset, self.width, self.base) @ self.weight_HD.mT.double()


class SinusoidalRelativeKey(RelativeBias):
    """logit_ij = q_i.(k_j + W_h r(i - j)) / sqrt(K), with r the sinusoid of the distance, and W_h (K, width).

    r(n) = [sin(n w_0), sin(n w_1), ... | cos(n w_0), cos(n w_1), ...], w_t = base^(-2t/width). It is Transformer-XL
    without its vectors u and v: the position of a key as content sees it, and no global position.

    base      of the sinusoid
    width     features of the sinusoid, null for the model's width
    std       W_h is drawn from N(0, std^2)
    shared    the same matrices in all layers, or each layer its own
    per_head  a matrix for each head, or one for all heads
    """

    year = 2019
    source = "after Dai et al. 2019, arXiv 1901.02860"
    learns = "(width or D) * K * (H if per_head else 1)"

    def __init__(
        self,
        geometry: Geometry,
        base: float = 10_000.0,
        width: int | None = None,
        std: float = 0.02,
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        width = checked_width(geometry, width, base, std)
        self.term = SinusoidTerm(width, base)
        self.std = std
        heads = geometry.heads if per_head else 1
        self.weight_HDK = nn.Parameter(torch.empty(heads, width, geometry.head_dim))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.weight_HDK.normal_(0, self.std, generator=generator)

    def add(self, logits_BHQS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        weight = context.once((self, "weight"), lambda: self.scale * self.weight_HDK)
        return self.term.add(logits_BHQS, q_BHQK, weight, context)


def checked_width(geometry: Geometry, width: int | None, base: float, std: float) -> int:
    """The width of the sinusoid; ValueError where it, the base or the initial values' scale cannot be."""
    if width is None:
        width = geometry.dim
    if width < 2 or width % 2:
        raise ValueError(f"width={width} must be even, since sinusoids come in pairs")
    check_base(base)
    check_std(std)
    return width
