"""A learned bias for each clipped relative distance: the simplest relative encoding, as tutorials teach it.

The clipping of distances is that of Shaw et al. 2018 (arXiv 1803.02155); the scalar added to a logit that of Raffel et
al. 2020 (arXiv 1910.10683).
"""

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import DistanceBias, Geometry, check_std, whole


class RelativeBias(DistanceBias):
    """logit_ij += B[clamp(j - i, -k, k) + k, h], B a table (2k + 1, H).

    All distances from k onwards share one row; where training is shorter than k, the rows that it never reaches stay as
    drawn from N(0, std^2). A causal model uses rows 0..k only.

    shared    one table for all layers, or one a layer
    per_head  one column a head, or one for all heads
    """

    year = 2018
    source = "Shaw et al. 2018, arXiv 1803.02155; Raffel et al. 2020, arXiv 1910.10683"
    learns = "(2 * k + 1) * (H if per_head else 1)"

    def __init__(
        self, geometry: Geometry, k: int = 16, std: float = 0.02, shared: bool = False, per_head: bool = True
    ) -> None:
        super().__init__(geometry)
        if k < 1:
            raise ValueError(f"k={k} must be at least 1")
        check_std(std)
        self.k = k
        self.std = std
        self.table_NH = nn.Parameter(torch.empty(2 * k + 1, geometry.heads if per_head else 1))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.table_NH.normal_(0, self.std, generator=generator)

    def of_offset(self, offset: Tensor) -> Tensor:
        return nn.functional.embedding(whole(offset).clamp(-self.k, self.k) + self.k, self.table_NH)
