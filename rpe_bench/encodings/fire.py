"""FIRE: Li et al. 2023, "Functional interpolation for relative positions" (arXiv 2310.04418)."""

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, DistanceBias, Geometry, single_axis
from rpe_bench.encodings.log_mlp import once_a_distance

EPSILON = 1e-6
"""Added to the normaliser by the authors' code."""

PAIRS = 2**13
"""Of tokens, whose hidden layers are held at once outside training: few enough to stay in the cache."""


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

    def f_of_many(self, ratio: Tensor) -> Tensor:
        """f without gradients, (...) to (H, ...) or (1, ...).

        Between the least and the greatest ratio most hidden units do not bend: each of those is a straight line or
        nothing, and all of them together are one line.
        """
        weight, constant = self.into.to(ratio.dtype)
        out = self.out.to(ratio.dtype)
        ends_2W = torch.stack(ratio.aminmax())[:, None] * weight + constant
        straight, bent = (ends_2W >= 0).all(0), (ends_2W > 0).any(0) & (ends_2W < 0).any(0)
        slope, level = (weight * straight) @ out, (constant * straight) @ out
        weight, constant, out = weight[bent, None], constant[bent, None], out[bent]
        found = []
        for part in ratio.flatten().split(PAIRS):
            hidden = (weight * part).add_(constant).relu_()
            found.append(torch.addmm(level[:, None] + slope[:, None] * part, out.mT, hidden))
        return torch.cat(found, dim=1).unflatten(1, ratio.shape)

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
        # Rounded here: an argument for each pair of tokens, and `width` numbers for each, are too many for float64.
        ratio = self.ratios(context, reach, q_BHQK.dtype)
        with torch.autocast(ratio.device.type, enabled=False):
            if torch.is_grad_enabled():
                return self.f(ratio).movedim(-1, -3)
            return self.f_of_many(ratio).movedim(0, -3)

    def ratios(self, context: Context, reach: Tensor, dtype: torch.dtype) -> Tensor:
        """The arguments of f, (Q, S) or (B, Q, S)."""
        query = single_axis(context.query_positions)
        longest = torch.where(query > reach, query.double(), reach)[..., None]
        if context.positions is not None:
            offset = context.offset
            return self.normalised(single_axis(offset) if offset.dim() == 4 else offset, longest).to(dtype)
        # A logarithm once a distance: the row of a query is a window of all of them.
        start, stop, _ = context.rows.indices(context.length)
        psi_N = self.psi(torch.arange(1 - stop, context.length - start, device=reach.device)).to(dtype)
        windows = psi_N.unfold(0, context.length, 1)  # the last query's first
        return windows.flip(0) / (self.psi(longest) + EPSILON).to(dtype)

    def by_offset_alone(self, context: Context) -> bool:
        """Where every query lies within |m L|."""
        return type(self).bias is FIRE.bias and context.positions is None and context.length - 1 <= self.reach().item()
