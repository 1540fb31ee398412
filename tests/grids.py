"""Cells of grids, as positions."""

import torch
from torch import Tensor


def grid(H: int, W: int, examples: int = 1) -> Tensor:
    """The cells (y, x) of H rows and W columns, row after row: (examples, H W, 2)."""
    return torch.cartesian_prod(torch.arange(H), torch.arange(W)).expand(examples, H * W, 2)
