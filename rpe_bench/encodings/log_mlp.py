"""A network of the distance: Wang et al. 2021, "CrossFormer" (arXiv 2108.00154), dynamic position bias.

Of its logarithm: Liu et al. 2021, "Swin Transformer V2" (arXiv 2111.09883), log-spaced continuous position bias. Both
are for images; here is their form for text, with one signed distance.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, silu

from rpe_bench.encodings.base import DistanceBias, Geometry


def once_a_distance(of_offset: Callable[[Tensor], Tensor], offset: Tensor) -> Tensor:
    """A costly function of offsets in one dimension, (N) to (N, H), for offsets of any shape, many of them equal."""
    distinct, index = offset.unique(return_inverse=True)
    return embedding(index, of_offset(distinct))


class LogMLP(DistanceBias):
    """logit_ij = q_i.k_j / sqrt(K) + f(sign(i - j) ln(1 + |i - j|))_h.

    f is a network 1 -> width -> ... -> H with SiLU, whose last layer has no constant: softmax would not see it.

    width     of the hidden layers
    depth     how many hidden layers there are
    log       f takes the logarithm, as in Swin V2; or the distance itself, as in CrossFormer
    shared    one network for all layers, or one a layer, as in both papers
    per_head  f has an output for each head, as in both papers, or one for all
    """

    year = 2021
    source = "Wang et al. 2021, arXiv 2108.00154; Liu et al. 2021, arXiv 2111.09883"
    learns = "2 * width + (depth - 1) * (width + 1) * width + width * (H if per_head else 1)"

    def __init__(
        self,
        geometry: Geometry,
        width: int = 32,
        depth: int = 2,
        log: bool = True,
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        if width < 1:
            raise ValueError(f"width={width} must be at least 1")
        if depth < 1:
            raise ValueError(f"depth={depth} must be at least 1")
        self.log = log
        widths = [1] + [width] * depth
        self.weights = nn.ParameterList(torch.empty(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.constants = nn.ParameterList(torch.empty(b) for b in widths[1:])
        self.out = nn.Parameter(torch.empty(width, geometry.heads if per_head else 1))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        for weight, constant in zip(self.weights, self.constants, strict=True):
            bound = weight.shape[0] ** -0.5  # torch's own for a linear layer
            weight.uniform_(-bound, bound, generator=generator)
            constant.uniform_(-bound, bound, generator=generator)
        bound = self.out.shape[0] ** -0.5
        self.out.uniform_(-bound, bound, generator=generator)

    def of_offset(self, offset: Tensor) -> Tensor:
        if offset.dim() > 1:
            return once_a_distance(self.of_offset, offset)
        distance = -offset.double()
        if self.log:
            distance = distance.sign() * distance.abs().log1p()
        # In float64 throughout: there are few distances, and autocast leaves it alone.
        x = distance[:, None]
        for weight, constant in zip(self.weights, self.constants, strict=True):
            x = silu(x @ weight.double() + constant.double())
        return x @ self.out.double()
