"""A learned table of grid cells: Dosovitskiy et al. 2020, ViT, "An image is worth 16x16 words" (arXiv 2010.11929)."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Encoding, Geometry, check_choice, check_std, whole
from rpe_bench.encodings.grid import grid_positions, layouts, of_examples, sides
from rpe_bench.encodings.sinusoidal import combine_with_tokens, position_width


class ViT(Encoding):
    """x_(y,x) <- x_(y,x) + E[y, x], or the last `width` features of x <- E[y, x] (combine=concatenate), E a table
    (rows, columns, D).

    The table has the cells of the largest training grid unless `size` says otherwise; ViT's row for a class token has
    no use here. A grid that exceeds it gets the table resized to its own rows or columns, as the paper does when it
    turns to images of higher resolution. What is at a cell then depends on how far the grid goes.

    ViT draws the table from N(0, 0.02^2); see `Learned` for why it is louder here.

    factorised  E[y, x] = F[y] + G[x], a table for each axis
    beyond      the table: resize, by bicubic interpolation; or error
    combine     add; or concatenate: the last `width` features are the position's own
    """

    year = 2020
    source = "Dosovitskiy et al. 2020, arXiv 2010.11929"
    learns = (
        "((size or geometry.train_extents)[0] * (size or geometry.train_extents)[1] if not factorised else"
        " (size or geometry.train_extents)[0] + (size or geometry.train_extents)[1])"
        " * (D if combine == 'add' else width or D // 2)"
    )
    translation_invariant = False
    axes = 2

    def __init__(
        self,
        geometry: Geometry,
        size: Sequence[int] | None = None,
        std: float = 0.3,
        factorised: bool = False,
        beyond: str = "resize",
        combine: str = "add",
        width: int | None = None,
    ) -> None:
        super().__init__(geometry)
        self.size = sides("size", size, geometry.train_extents)
        check_choice("beyond", beyond, "resize", "error")
        check_std(std)
        if beyond == "resize":
            self.prefix_consistent = False
        else:
            self.longest = max(self.size)
        self.std = std
        self.factorised = factorised
        self.combine = combine
        rows, columns = self.size
        width = position_width(geometry, combine, width)
        shapes = (rows, columns) if factorised else (rows * columns,)
        self.tables = nn.ParameterList(nn.Parameter(torch.empty(cells, width)) for cells in shapes)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        for table in self.tables:
            table.normal_(0, self.std, generator=generator)

    def at(self, y: Tensor, x: Tensor) -> Tensor:
        """E[y, x] of cells within the table."""
        if self.factorised:
            return nn.functional.embedding(y, self.tables[0]) + nn.functional.embedding(x, self.tables[1])
        return nn.functional.embedding(y * self.size[1] + x, self.tables[0])

    def resized(self, cells_UT2: Tensor) -> Tensor:
        """(U, T, D) of the table, resized for each layout on the axes on which its grid is longer, in float64."""
        (y, w_y), (x, w_x) = (
            bicubic(p_UT, side, (p_UT.amax(dim=1, keepdim=True) + 1).clamp(min=side))
            for p_UT, side in zip(cells_UT2.unbind(-1), self.size, strict=True)
        )
        parts = (
            (w_y[..., a] * w_x[..., b])[..., None] * self.at(y[..., a], x[..., b]) for a in range(4) for b in range(4)
        )
        return functools.reduce(torch.add, parts)

    def embed(self, x_BTD: Tensor, positions: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        cells_UT2, which_B = layouts(whole(grid_positions(positions)), {})
        first, last = cells_UT2.flatten(0, 1).aminmax(dim=0)
        if int(first.min()) < 0:
            raise ValueError(f"position {int(first.min())} lies before a learned table, which begins at 0")
        over = [axis for axis in (0, 1) if last[axis] >= self.size[axis]]
        if over and self.longest is not None:
            axis, name = over[0], ("rows", "columns")[over[0]]
            raise ValueError(f"position {int(last[axis])} lies beyond a learned table of {self.size[axis]} {name}")
        table = self.resized(cells_UT2) if over else self.at(*cells_UT2.unbind(-1))
        return combine_with_tokens(x_BTD, of_examples(table.to(x_BTD.dtype), which_B), self.combine)


def bicubic(p: Tensor, side: int, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Which entries of a table of `side` make up entry p of the table resized to `grid`, and by which weights.

    Both (*p.shape, 4), by cubic convolution with a = -0.75, the edge repeated. Entries are intervals of one extent:
    the middle of entry p of the grid lies at (p + 1/2) side / grid - 1/2 of the table. On a grid of `side` entries
    entry p is entry p of the table.
    """
    source = (p.double() + 0.5) * side / grid - 0.5
    first = source.floor()
    entry = first[..., None] + torch.arange(-1, 3, device=p.device)
    d = (source[..., None] - entry).abs()
    a = -0.75
    near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * (d**3 - 5 * d**2 + 8 * d - 4)
    return entry.long().clamp(0, side - 1), torch.where(d <= 1, near, far)
