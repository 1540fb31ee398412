"""Sandwich: Chi et al. 2023, "Dissecting Transformer length extrapolation" (arXiv 2212.10356)."""

import torch
from torch import Tensor

from rpe_bench.encodings.base import Cache, DistanceBias, Geometry, check_base


class Sandwich(DistanceBias):
    """logit_ij = q_i.k_j / sqrt(K) + sum_(t < w/2) cos((i - j) / base^(2t/w)) / r_h,  r_h = 8 (h+1) / H.

    The sum is the dot product of the sinusoids of i and j, of width w (the paper's d-bar). Its envelope falls like the
    logarithm of the distance, but not every step goes down: at w = 128 the first to go up is from distance 11 to 12.
    Nothing is learned, and both sides are alike.

    width   w, of the sinusoids; it has nothing to do with the width of the model
    base    of their frequencies
    """

    year = 2023
    source = "Chi et al. 2023, arXiv 2212.10356"

    def __init__(self, geometry: Geometry, width: int = 128, base: float = 10_000.0) -> None:
        super().__init__(geometry)
        if width < 2 or width % 2:
            raise ValueError(f"width={width} must be even, and at least 2")
        check_base(base)
        self.width = width
        self.base = base
        self._cache = Cache()

    def of_offset(self, offset: Tensor) -> Tensor:
        heads = self.geometry.heads
        # One frequency after the other: all at once would take width / 2 times the memory of the offsets.
        distance = offset.abs().double()
        total = torch.zeros_like(distance)
        for t in range(self.width // 2):
            total += torch.cos(distance * self.base ** (-2 * t / self.width))
        ratios_H = torch.arange(1, heads + 1, dtype=torch.float64, device=offset.device) * 8 / heads
        return total[..., None] / ratios_H

    def of_all_offsets(self, length: int, causal: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
        build = super().of_all_offsets
        key = (self.width, self.base, length, causal, device, dtype)
        return self._cache.get(key, lambda: build(length, causal, device, dtype))
