"""A grid read row after row: Dosovitskiy et al. 2020, "An image is worth 16x16 words" (arXiv 2010.11929), appendix."""

import numpy as np
import torch
from torch import Tensor

from rpe_bench.positions.base import Frame, Remap
from rpe_bench.tasks.base import Batch


class Raster(Remap):
    """p <- y W + x, so that an encoding of text serves a grid.

    width  W. Null: the grid's own number of columns, the order in which it is read; an offset (dy, dx) is then another
           distance in grids of another width. A number, no less than the widest grid's columns: one distance in all.
    """

    def __init__(self, frame: Frame, width: int | None = None) -> None:
        super().__init__(frame)
        if frame.axes != 2:
            raise ValueError(f"puts a grid in a line, but the task's positions have {frame.axes} axis already")
        columns = max(frame.train_extents[1], frame.max_extents[1])
        if width is not None and width < columns:
            raise ValueError(f"width={width} is too small: a grid of {columns} columns would give cells one position")
        self.width = width
        self.train_extents = (frame.train_extents[0] * (width or frame.train_extents[1]),)
        self.max_extents = (frame.max_extents[0] * (width or frame.max_extents[1]),)

    def training(self, batch: Batch, rng: np.random.Generator) -> Tensor | None:
        """(B, T); None where the tokens are in just that order, which is faster."""
        assert batch.positions is not None
        y_BT, x_BT = batch.positions.unbind(-1)
        W = self.width or x_BT.amax(dim=1, keepdim=True) + 1
        line_BT = y_BT * W + x_BT
        return None if bool((line_BT == torch.arange(line_BT.shape[1])).all()) else line_BT

    def evaluation(self, batch: Batch, rng: np.random.Generator) -> Tensor | None:
        return self.training(batch, rng)
