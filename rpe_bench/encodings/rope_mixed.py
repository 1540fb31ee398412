"""Rotary positions, both axes in every pair: Heo et al. 2024, "RoPE for ViT" (arXiv 2403.13298)."""

import math

import torch
from torch import Tensor, nn

from rpe_bench.encodings.axial_rope import check_pairs
from rpe_bench.encodings.base import Context, Encoding, Geometry
from rpe_bench.encodings.grid import grid_positions, layouts, of_examples
from rpe_bench.encodings.rope import turn, turns_of


class RoPEMixed(Encoding):
    """q <- R_(y,x) q, k <- R_(y,x) k: pair t of head h turns by y theta^y_ht + x theta^x_ht, which are learned.

    Axial rotations can express an offset along one axis at a time; with both in one angle, a head can be sensitive to
    diagonals. theta begins as the axial frequencies base^(-4t/K), t < K/4, along two directions at right angles, which
    each head draws at random.

    shared    one set of frequencies for all layers, or one a layer, as in the paper
    per_head  one a head, as in the paper, or one for all heads
    layout    interleaved: pair t is the features (2t, 2t+1); half: (t, t + K/2)
    """

    year = 2024
    source = "Heo et al. 2024, arXiv 2403.13298"
    learns = "K * (H if per_head else 1)"
    preserves_norm = True
    axes = 2

    def __init__(
        self,
        geometry: Geometry,
        base: float = 10.0,
        layout: str = "interleaved",
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        check_pairs(geometry, base, layout)
        self.base = base
        self.layout = layout
        self.theta_2HC = nn.Parameter(torch.empty(2, geometry.heads if per_head else 1, geometry.head_dim // 2))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        width = self.geometry.head_dim
        size_C = self.base ** -(torch.arange(0, width, 4, dtype=torch.float64) / width)
        direction_H1 = torch.empty(self.theta_2HC.shape[1], 1, dtype=torch.float64)
        direction_H1.uniform_(0, 2 * math.pi, generator=generator)
        directions = (direction_H1, direction_H1 + math.pi / 2)
        self.theta_2HC[0] = torch.cat([size_C * d.sin() for d in directions], dim=-1)
        self.theta_2HC[1] = torch.cat([size_C * d.cos() for d in directions], dim=-1)

    def turns(self, positions_UT2: Tensor) -> Tensor:
        """(U, H, T, K/2) complex128, or (U, 1, T, K/2) for all heads."""
        y, x = positions_UT2.double()[:, None, :, :, None].unbind(-2)
        theta_y, theta_x = self.theta_2HC.double()[:, :, None]
        return turns_of(y * theta_y + x * theta_x)

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        cells_UT2, which_B = layouts(grid_positions(positions), context.memo if context else {})
        exact = torch.complex128 if q_BHTK.dtype == torch.float64 else torch.complex64
        turns = of_examples(self.turns(cells_UT2).to(exact), which_B)
        return turn(q_BHTK, turns, self.layout), turn(k_BHTK, turns, self.layout)
