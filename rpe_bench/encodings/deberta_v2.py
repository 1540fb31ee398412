"""DeBERTa v2, v3: He et al. 2021, "DeBERTaV3: improving DeBERTa using ELECTRA-style pre-training" (arXiv 2111.09543).

The paper trains the attention that the authors' code released as version 2; what follows is from that code.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rpe_bench.encodings.base import Context, Encoding, Geometry
from rpe_bench.encodings.deberta import DeBERTa, PositionTable, check_terms, projections, term_scale


class DeBERTaV2(DeBERTa):
    """logit_ij = (q_i.k_j + q_i.(W_k p) + k_j.(W_q p)) / sqrt(3K), p = LayerNorm(P)[b(i - j) + position_buckets].

    With mid = position_buckets / 2, distances up to mid have a bucket each, those beyond ever fewer:

        b(n) = n                                                                              for |n| <= mid
               sign(n) (mid + ceil(ln(|n| / mid) / ln((max_relative_positions - 1) / mid) (mid - 1)))     else

    and rows end at 0 and 2 position_buckets - 1: all distances from max_relative_positions onwards share one row, by
    definition. W_q and W_k are the projections that the layer has for its content (`Context.project`, so that
    the encoding needs a layer around it), or with share_att_key=false its own, as in version 1.

    terms, p2c_reading, std, shared: as of version 1
    """

    year = 2021
    source = "He et al. 2021, arXiv 2111.09543"
    learns = "2 * position_buckets * D + 2 * D + (0 if share_att_key else (2 if terms == 'both' else 1) * D * D)"

    def __init__(
        self,
        geometry: Geometry,
        position_buckets: int = 256,
        max_relative_positions: int = 512,
        share_att_key: bool = True,
        terms: str = "both",
        p2c_reading: str = "code",
        std: float = 0.02,
        shared: bool = True,
    ) -> None:
        Encoding.__init__(self, geometry)
        if position_buckets < 4 or position_buckets % 2:
            raise ValueError(f"position_buckets={position_buckets} must be even, and at least 4")
        if max_relative_positions <= position_buckets // 2 + 1:
            raise ValueError(
                f"max_relative_positions={max_relative_positions} must exceed {position_buckets // 2 + 1}: distances to"
                f" {position_buckets // 2} have a bucket each"
            )
        check_terms(terms, p2c_reading, std)
        self.position_buckets = position_buckets
        self.k = max_relative_positions
        self.share_att_key = share_att_key
        self.terms = terms
        self.p2c_reading = p2c_reading
        self.scale = term_scale(geometry, terms)
        self.positions = PositionTable(2 * position_buckets, geometry.dim, std, norm=True)
        self.key_HDK, self.query_HDK = (None, None) if share_att_key else projections(geometry, terms)

    @classmethod
    def build(cls, geometry: Geometry, **parameters: Any) -> list[Encoding]:
        if parameters.get("share_att_key", True) and parameters.get("shared", True):
            return [cls(geometry, **parameters)]  # the layers differ by their own projections alone
        return super().build(geometry, **parameters)

    def bucket(self, distance: Tensor) -> Tensor:
        """b(i - j), before its ends."""
        mid = self.position_buckets // 2
        growth = torch.log(distance.abs().clamp(min=mid).double() / mid) / math.log((self.k - 1) / mid)
        far = mid + (growth * (mid - 1)).ceil().long()
        return torch.where(distance.abs() <= mid, distance, distance.sign() * far)

    def row(self, distance: Tensor) -> Tensor:
        return (self.bucket(distance) + self.position_buckets).clamp(0, 2 * self.position_buckets - 1)

    def projected(self, vectors_MD: Tensor, context: Context) -> tuple[Tensor | None, Tensor | None]:
        if not self.share_att_key:
            return super().projected(vectors_MD, context)
        if context.project is None:
            raise ValueError("share_att_key=true: this encoding uses the projections of a layer, and was given none")
        query_MHK, key_MHK = context.project(vectors_MD)
        return query_MHK.transpose(0, 1), key_MHK.transpose(0, 1)
