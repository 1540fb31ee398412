"""KERPLE: Chi et al. 2022, "KERPLE: kernelized relative positional embedding" (arXiv 2205.09921)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from rpe_bench.encodings.base import DistanceBias, Geometry, check_choice

LEAST = 0.01
"""The authors' code keeps every parameter at least so large; initial values are, here."""


class Kerple(DistanceBias):
    """logit_ij = q_i.k_j / sqrt(K) + a conditionally positive definite kernel of the distance, learned for each head:

        log     -r1 log(1 + r2 |i - j|)     r1, r2 > 0
        power   -a |i - j|^p                a > 0, 0 < p < 2

    A head learns two numbers, the strength s and the shape t, of which r1 or a = softplus(s), r2 = softplus(t), and
    p = 2 sigmoid(t). The authors' code clamps r1, r2, a and p in place instead; this way gradients are finite and other
    than zero everywhere.

    Drawn as in the paper: r1 ~ U(0, 2), r2 ~ U(0, 1), a ~ U(0, 1), p ~ U(0, 2), but no nearer to an end of its range
    than 0.01, the edge of the authors' clamp.

    kind      log or power
    shared    the same numbers in all layers, or each layer its own, as in the paper
    per_head  each head its own numbers, as in the paper, or one pair for all heads
    """

    year = 2022
    source = "Chi et al. 2022, arXiv 2205.09921"
    learns = "2 * (H if per_head else 1)"
    decays = True

    def __init__(self, geometry: Geometry, kind: str = "log", shared: bool = False, per_head: bool = True) -> None:
        super().__init__(geometry)
        check_choice("kind", kind, "log", "power")
        self.kind = kind
        heads = geometry.heads if per_head else 1
        self.strength_H = nn.Parameter(torch.empty(heads))
        self.shape_H = nn.Parameter(torch.empty(heads))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        ends = (2.0, 1.0) if self.kind == "log" else (1.0, 2.0)
        for parameter, end in zip((self.strength_H, self.shape_H), ends, strict=True):
            parameter.uniform_(0, end, generator=generator).clamp_(LEAST, end - LEAST)
        self.strength_H.expm1_().log_()  # the inverse of softplus
        if self.kind == "log":
            self.shape_H.expm1_().log_()
        else:
            self.shape_H.div_(2).logit_()

    def values(self) -> tuple[Tensor, Tensor]:
        """r1 and r2, or a and p: (H,) or (1,) each, float64."""
        strength, shape = self.strength_H.double(), self.shape_H.double()
        return softplus(strength), softplus(shape) if self.kind == "log" else 2 * shape.sigmoid()

    def of_offset(self, offset: Tensor) -> Tensor:
        distance = offset.abs().double()[..., None]
        strength, shape = self.values()
        if self.kind == "log":
            return -strength * torch.log1p(shape * distance)
        return -strength * distance**shape
