"""ALiBi: Press et al. 2021, "Train short, test long: attention with linear biases" (arXiv 2108.12409)."""

import torch
from torch import Tensor

from rpe_bench.encodings.base import Cache, DistanceBias, Geometry


def slopes(heads: int) -> list[float]:
    """m_h = 2^(-8(h+1)/H) for H a power of two; else those of the power below, then every second of the power above.

    As in the authors' code: the added slopes follow unsorted.
    """

    def geometric(count: int) -> list[float]:
        return [2 ** (-8 * (head + 1) / count) for head in range(count)]

    power = 2 ** (heads.bit_length() - 1)
    return geometric(power) + geometric(2 * power)[0::2][: heads - power]


class ALiBi(DistanceBias):
    """logit_ij = q_i.k_j / sqrt(K) - m_h |i - j|, with fixed slopes m_h; nothing is learned.

    A bidirectional model uses the symmetric form, the same slope on both sides. The distance itself enters, not a row
    that only softmax makes equal to it under a causal mask.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.slopes = slopes(geometry.heads)
        self._cache = Cache()

    def of_offset(self, offset: Tensor) -> Tensor:
        slopes_H = torch.tensor(self.slopes, dtype=torch.float64, device=offset.device)
        return -offset.abs().double()[..., None] * slopes_H

    def of_all_offsets(self, length: int, causal: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
        build = super().of_all_offsets
        key = (tuple(self.slopes), length, causal, device, dtype)
        return self._cache.get(key, lambda: build(length, causal, device, dtype))
