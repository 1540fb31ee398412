"""T5's bucketed bias: Raffel et al. 2020, "Exploring the limits of transfer learning" (arXiv 1910.10683), 2.1."""

import math

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import DistanceBias, Geometry, whole


class T5(DistanceBias):
    """logit_ij = q_i.k_j + B[bucket(j - i), h], B a table (num_buckets, H), and no 1/sqrt(K).

    With n = i - j, of N buckets the first N/2 hold one distance each, the others ever more, up to max_distance:

        bucket(n) = n                                                                   for n < N/2
                    N/2 + floor(ln(n / (N/2)) / ln(max_distance / (N/2)) * (N - N/2))   else, at most N - 1

    A causal model has N = num_buckets and never looks ahead; a bidirectional one gives half of them to each direction
    (the second half to keys that follow the query).

    shared    one table for all layers, as in the paper, or one a layer
    per_head  one column a head, as in the paper, or one for all heads
    scaled    divide q.k by sqrt(K) all the same; T5 leaves that to the initialisation of its query projection
    """

    year = 2020
    source = "Raffel et al. 2020, arXiv 1910.10683"
    learns = "num_buckets * (H if per_head else 1)"

    def __init__(
        self,
        geometry: Geometry,
        num_buckets: int = 32,
        max_distance: int = 128,
        shared: bool = True,
        per_head: bool = True,
        scaled: bool = False,
    ) -> None:
        super().__init__(geometry)
        exact = (num_buckets if geometry.causal else num_buckets // 2) // 2
        if num_buckets < 4 or num_buckets % 4:
            raise ValueError(f"num_buckets={num_buckets} must be a multiple of 4, and at least 4")
        if max_distance <= exact:
            raise ValueError(f"max_distance={max_distance} must exceed {exact}, the distances that have a bucket each")
        if not scaled:
            self.scale = 1.0
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.table_NH = nn.Parameter(torch.empty(num_buckets, geometry.heads if per_head else 1))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.table_NH.normal_(0, self.geometry.dim**-0.5, generator=generator)

    def bucket(self, offset: Tensor) -> Tensor:
        """The row of the table for each offset j - i."""
        offset = whole(offset)
        if self.geometry.causal:
            buckets, n = self.num_buckets, (-offset).clamp(min=0)
        else:
            buckets, n = self.num_buckets // 2, offset.abs()
        exact = buckets // 2
        growth = torch.log(n.clamp(min=1).double() / exact) / math.log(self.max_distance / exact)
        far = exact + (growth * (buckets - exact)).long()
        bucket = torch.where(n < exact, n, far.clamp(max=buckets - 1))
        return bucket if self.geometry.causal else bucket + (offset > 0) * buckets

    def of_offset(self, offset: Tensor) -> Tensor:
        return nn.functional.embedding(self.bucket(offset), self.table_NH)
