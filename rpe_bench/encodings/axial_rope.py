"""Rotary positions, half of the pairs for each axis: Heo et al. 2024, "RoPE for ViT" (arXiv 2403.13298)."""

import torch
from torch import Tensor

from rpe_bench.encodings.base import Context, Encoding, Geometry, check_base, check_choice
from rpe_bench.encodings.grid import grid_positions, kept, layouts, of_examples
from rpe_bench.encodings.rope import turn, turns_of


def check_pairs(geometry: Geometry, base: float, layout: str) -> None:
    """Raise ValueError where a head cannot be turned by two axes, or an option is not among its choices."""
    check_choice("layout", layout, "interleaved", "half")
    if geometry.head_dim % 4:
        raise ValueError(
            f"two axes turn as many pairs of features each: a head of {geometry.head_dim} "
            f"(dim {geometry.dim} / heads {geometry.heads}) is no multiple of 4"
        )
    check_base(base)


class AxialRoPE(Encoding):
    """q <- R_(y,x) q, k <- R_(y,x) k: of a head's K/2 pairs, pair t turns by y theta_t and pair K/4 + t by x theta_t,
    theta_t = base^(-4t/K) for t < K/4.

    A logit depends on the offset (dy, dx) alone, through a sum of a part for each axis. (The authors' code has the axes
    in the other order, which is a permutation of the features of both projections.)

    base    100, since a side of a grid is short; 10000 as in text is also in use
    layout  interleaved: pair t is the features (2t, 2t+1), so that the first half of a head turns by y; half:
            (t, t + K/2)
    """

    year = 2024
    source = "Heo et al. 2024, arXiv 2403.13298"
    preserves_norm = True
    axes = 2

    def __init__(self, geometry: Geometry, base: float = 100.0, layout: str = "interleaved") -> None:
        super().__init__(geometry)
        check_pairs(geometry, base, layout)
        self.base = base
        self.layout = layout

    def turns(self, positions: Tensor) -> Tensor:
        """Cells (..., 2) to (..., K/2) complex128."""
        width = self.geometry.head_dim
        t = torch.arange(0, width, 4, dtype=torch.float64, device=positions.device)
        return turns_of(positions.double()[..., None] * self.base ** -(t / width)).flatten(-2)

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        positions = grid_positions(positions)
        memo = context.memo if context else {}
        exact = torch.complex128 if q_BHTK.dtype == torch.float64 else torch.complex64

        def build() -> Tensor:
            cells_UT2, which_B = layouts(positions, memo)
            return of_examples(self.turns(cells_UT2).to(exact), which_B)[:, None]

        turns = kept(memo, (self, exact), positions, build)
        return turn(q_BHTK, turns, self.layout), turn(k_BHTK, turns, self.layout)
