"""FIRE: Li et al. 2023, "Functional interpolation for relative positions" (arXiv 2310.04418)."""

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, DistanceBias, Geometry, single_axis
from rpe_bench.encodings.log_mlp import once_a_distance

EPSILON = 1e-6
"""Added to the normaliser by the authors' code."""

PAIRS = 2**16
"""Of tokens, whose hidden layers are held at once outside training."""


class FIRE(DistanceBias):
    """logit_ij = q_i.k_j / sqrt(K) + f(psi(|i - j|) / (psi(max(i, |m L|)) + 1e-6))_h,  psi(x) = ln(|c x| + 1).

    f is a network of one hidden layer, 1 -> width -> H with ReLU, whose last layer has no constant: softmax would not
    see it. c and m are learned; L is fixed, and f, c and m are all of one module. A distance is divided by the longest
    that its query has, so that f meets arguments from 0 to 1 at any length. Up to |m L| the divisor is one for all, and
    the bias a function of distance; beyond, it depends on the query's own position, not on the length.

    The paper defines it for a causal model. A bidirectional one is given the same formula: both sides are alike, and
    the argument exceeds 1 for a key that follows its query by more than that longest distance.

    width      of the hidden layer
    c          initial value
    threshold  L, in tokens; m begins at 1
    shared     one module for all layers (the paper's FIRE-S), or one a layer
    per_head   f has an output for each head, as in the paper, or one for all
    """

    year = 2023
    source = "Li et al. 2023, arXiv 2310.04418"
    learns = "2 + 2 * width + width * (H if per_head else 1)"
    translation_invariant = False

    def __init__(
        self,
        geometry: Geometry,
        width: int = 32,
        c: float = 0.1,
        threshold: float = 512.0,
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        if width < 1:
            raise ValueError(f"width={width} must be at least 1")
        if c <= 0:
            raise ValueError(f"c={c} must be positive")
        if threshold <= 0:
            raise ValueError(f"threshold={threshold} must be positive")
        self.initial_c = c
        self.threshold = threshold
        self.c = nn.Parameter(torch.empty(()))
        self.multiplier = nn.Parameter(torch.empty(()))
        self.into = nn.Parameter(torch.empty(2, width))
        """Weight and constant of each hidden unit."""
        self.out = nn.Parameter(torch.empty(width, geometry.heads if per_head else 1))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.c.fill_(self.initial_c)
        self.multiplier.fill_(1)
        self.into.uniform_(-1, 1, generator=generator)  # torch's own bound for a linear layer: inputs^(-1/2)
        bound = self.out.shape[0] ** -0.5
        self.out.uniform_(-bound, bound, generator=generator)

    def reach(self) -> Tensor:
        """|m L|: the position up to which a query's own does not enter; float64."""
        return (self.multiplier.double() * self.threshold).abs()

    def psi(self, x: Tensor) -> Tensor:
        return (self.c.double() * x).abs().log1p()

    def f(self, ratio: Tensor) -> Tensor:
        """(...) to (..., H), or to (..., 1)."""
        weight, constant = self.into.to(ratio.dtype)
        return torch.relu(ratio[..., None] * weight + constant) @ self.out.to(ratio.dtype)

    def normalised(self, offset: Tensor, reach: Tensor) -> Tensor:
        return self.psi(offset.abs()) / (self.psi(reach) + EPSILON)

    def of_offset(self, offset: Tensor) -> Tensor:
        """Of queries up to |m L|."""
        if offset.dim() > 1:
            return once_a_distance(self.of_offset, offset)
        return self.f(self.normalised(offset, self.reach()))

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        query, reach = context.query_positions, self.reach()
        far = query > reach
        if not far.any():
            return super().bias(q_BHQK, k_BHSK, context)
        offset = context.offset
        if offset.dim() == 4:
            offset, query, far = single_axis(offset), single_axis(query), single_axis(far)
        longest = torch.where(far, query.double(), reach)[..., None]
        # Rounded here: an argument for each pair of tokens, and `width` numbers for each, are too many for float64.
        ratio = self.normalised(offset, longest).to(q_BHQK.dtype)
        with torch.autocast(ratio.device.type, enabled=False):
            if torch.is_grad_enabled():
                return self.f(ratio).movedim(-1, -3)
            found = torch.cat([self.f(part) for part in ratio.flatten().split(PAIRS)])
            return found.unflatten(0, ratio.shape).movedim(-1, -3)

    def by_offset_alone(self, context: Context) -> bool:
        """Where every query lies within |m L|."""
        return type(self).bias is FIRE.bias and context.positions is None and context.length - 1 <= self.reach().item()
