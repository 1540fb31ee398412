"""ALiBi: Press et al. 2021, "Train short, test long: attention with linear biases" (arXiv 2108.12409)."""

import math

import torch
from torch import Tensor

from rpe_bench.encodings.base import Cache, DistanceBias, Geometry, check_choice


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

    The distance itself enters, not a row that only softmax makes equal to it under a causal mask.

    bidirectional   how a model without a causal mask uses it; both forms are the first author's, from the discussion of
                    encoders beside the published code
        symmetric   every head sees both sides, with one slope
        two_sided   the first half of the heads sees the token itself and those before it, the second half itself and
                    those after it: minus infinity elsewhere. Each half has the slopes of H/2 heads. A causal model,
                    whose second half of heads would see nothing, takes no such form.
    """

    year = 2021
    source = "Press et al. 2021, arXiv 2108.12409"
    neutral = {"bidirectional": "symmetric"}
    decays = True

    def __init__(self, geometry: Geometry, bidirectional: str = "symmetric") -> None:
        super().__init__(geometry)
        check_choice("bidirectional", bidirectional, "symmetric", "two_sided")
        if bidirectional == "two_sided":
            if geometry.causal:
                raise ValueError("bidirectional=two_sided is for a model without a causal mask, and this one has it")
            if geometry.heads % 2:
                raise ValueError(f"bidirectional=two_sided halves the heads, and heads={geometry.heads} is odd")
        self.bidirectional = bidirectional
        self.slopes = slopes(geometry.heads) if bidirectional == "symmetric" else 2 * slopes(geometry.heads // 2)
        self._cache = Cache()

    def of_offset(self, offset: Tensor) -> Tensor:
        slopes_H = torch.tensor(self.slopes, dtype=torch.float64, device=offset.device)
        bias = -offset.abs().double()[..., None] * slopes_H
        if self.bidirectional == "symmetric":
            return bias
        back, ahead = bias.chunk(2, dim=-1)
        after, before = (offset > 0)[..., None], (offset < 0)[..., None]
        return torch.cat((back.masked_fill(after, -math.inf), ahead.masked_fill(before, -math.inf)), dim=-1)

    def of_all_offsets(self, length: int, causal: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
        build = super().of_all_offsets
        key = (tuple(self.slopes), self.bidirectional, length, causal, device, dtype)
        return self._cache.get(key, lambda: build(length, causal, device, dtype))
