"""Hard-ALiBi: Jelassi et al. 2024, "Repeat after me" (arXiv 2402.01032)."""

import torch
from torch import Tensor

from rpe_bench.encodings.base import DistanceBias, Geometry
from rpe_bench.encodings.sliding_window import check_window, inside


class HardALiBi(DistanceBias):
    """logit_ij = q_i.k_j / sqrt(K) in all heads; in some, minus infinity where |i - j| >= w_h. Nothing is learned.

    The heads with a window tell what lies side by side; the others, without position, find where it was seen before. A
    bidirectional model sees as far to the other side.

    windows  w_h of the first heads: how many keys a query of a causal model sees, itself included; the other heads see
             all. None: 1, 2, 3, ... for two of three heads, rounded down, as in the authors' code for 12 heads; or 2
             where that is one head alone, since a window of 1 tells nothing of order.
    """

    year = 2024
    source = "Jelassi et al. 2024, arXiv 2402.01032"
    decays = True

    def __init__(self, geometry: Geometry, windows: tuple[int, ...] | None = None) -> None:
        super().__init__(geometry)
        if windows is None:
            count = 2 * geometry.heads // 3
            windows = (2,) if count == 1 else tuple(range(1, count + 1))
        for window in windows:
            check_window(window)
        if len(windows) > geometry.heads:
            raise ValueError(f"windows={list(windows)} are more than the {geometry.heads} heads")
        self.windows = windows
        self.decays = bool(windows)

    def of_offset(self, offset: Tensor) -> Tensor:
        seen = torch.zeros(*offset.shape, self.geometry.heads, dtype=torch.float64, device=offset.device)
        for head, window in enumerate(self.windows):
            seen[..., head : head + 1] = inside(offset, window)
        return seen
