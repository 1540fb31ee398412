"""Swin's relative bias: Liu et al. 2021, "Swin transformer" (arXiv 2103.14030)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, Encoding, Geometry, check_std, whole
from rpe_bench.encodings.grid import grid_positions, kept, layouts, of_examples, sides


class Swin(Encoding):
    """logit_ij += B[(dy + M_y - 1)(2 M_x - 1) + dx + M_x - 1, h], B a table ((2 M_y - 1)(2 M_x - 1), H).

    Here (dy, dx) is the cell of query i minus that of key j, the sign of the paper's code, and M_y x M_x the window:
    the largest grid on which every offset has a row. An offset beyond it is an error. Swin attends within windows; here
    the whole grid is one, as large as the largest evaluated, and rows that training never reaches stay as drawn from
    N(0, std^2).

    Swin draws the table with a deviation of 0.02. A bias moves by no more than the learning rate a step, and a head
    that singles out one cell of many needs several nats: from so flat a start that takes thousands of steps.

    window    [rows, columns]; null: those of the largest evaluated grid
    shared    one table for all layers, or one a layer, as in the paper
    per_head  one column a head, as in the paper, or one for all heads
    """

    year = 2021
    source = "Liu et al. 2021, arXiv 2103.14030"
    learns = (
        "(2 * (window or geometry.max_extents)[0] - 1) * (2 * (window or geometry.max_extents)[1] - 1)"
        " * (H if per_head else 1)"
    )
    axes = 2

    def __init__(
        self,
        geometry: Geometry,
        window: Sequence[int] | None = None,
        std: float = 1.0,
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        self.window = sides("window", window, geometry.max_extents)
        check_std(std)
        self.longest = max(self.window)
        self.std = std
        rows = (2 * self.window[0] - 1) * (2 * self.window[1] - 1)
        self.table_NH = nn.Parameter(torch.empty(rows, geometry.heads if per_head else 1))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.table_NH.normal_(0, self.std, generator=generator)

    def row(self, offset: Tensor) -> Tensor:
        """The row of the table for offsets (..., 2), key minus query; ValueError beyond the window."""
        for axis, (name, side) in enumerate(zip(("rows", "columns"), self.window, strict=True)):
            furthest = int(offset[..., axis].abs().max())
            if furthest >= side:
                raise ValueError(
                    f"an offset of {furthest} {name} lies beyond a window of {side}: 0 to {side - 1} either way"
                )
        (dy, dx), (M_y, M_x) = (-offset).unbind(-1), self.window
        return (dy + M_y - 1) * (2 * M_x - 1) + dx + M_x - 1

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        positions = grid_positions(context.positions)
        cells_UT2, which_B = layouts(positions, context.memo)

        def rows() -> Tensor:
            return self.row(whole(context.with_(positions=cells_UT2).offset))

        # Chunks are there to save memory: theirs are not kept.
        every = context.rows == slice(None)
        row_UQS = kept(context.memo, (Swin, self.window), positions, rows) if every else rows()
        # Contiguous, since the sum with the logits of all examples is faster by more than the copy of a few layouts.
        bias_UHQS = nn.functional.embedding(row_UQS, self.table_NH).movedim(-1, 1).contiguous()
        return of_examples(bias_UHQS.to(q_BHQK.dtype), which_B)
