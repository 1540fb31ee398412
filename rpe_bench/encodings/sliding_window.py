"""Sliding window: Beltagy et al. 2020, "Longformer" (arXiv 2004.05150), 3.1."""

import math

import torch
from torch import Tensor

from rpe_bench.encodings.base import DistanceBias, Geometry


def inside(offset: Tensor, window: int) -> Tensor:
    """0 where |j - i| < window, else minus infinity; float64, (*offset.shape, 1).

    A query of a causal model sees w keys, itself and the w - 1 before. (Some libraries count w keys beside itself.)
    """
    none = torch.zeros(offset.shape, dtype=torch.float64, device=offset.device)
    return none.masked_fill(offset.abs() >= window, -math.inf)[..., None]


def check_window(window: int) -> None:
    """Raise ValueError where a window lacks even the token itself."""
    if window < 1:
        raise ValueError(f"window={window} must be at least 1, the token itself")


class SlidingWindow(DistanceBias):
    """logit_ij = q_i.k_j / sqrt(K) where |i - j| < w, else minus infinity; nothing is learned.

    No position within the window, and none beside it: l layers together reach l (w - 1) tokens back. A bidirectional
    model sees as far to the other side.

    window  w: how many keys a query of a causal model sees, itself included
    """

    year = 2020
    source = "Beltagy et al. 2020, arXiv 2004.05150"
    decays = True

    def __init__(self, geometry: Geometry, window: int = 16) -> None:
        super().__init__(geometry)
        check_window(window)
        self.window = window

    def of_offset(self, offset: Tensor) -> Tensor:
        return inside(offset, self.window)
