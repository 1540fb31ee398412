"""Learned absolute positions: Devlin et al. 2018, BERT (arXiv 1810.04805); Gehring et al. 2017 (arXiv 1705.03122)."""

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Encoding, Geometry, check_std, single_axis, whole
from rpe_bench.encodings.sinusoidal import combine_with_tokens, position_width


class Learned(Encoding):
    """x_p <- x_p + E[p], or the last `width` features of x_p <- E[p] (combine=concatenate), E a table (size, D).

    The table covers the longest evaluated sequence unless `size` says otherwise. Rows that training never reaches stay
    as they were drawn from N(0, std^2): that is what "learned positions do not extrapolate" means. A position beyond
    the table is an error.

    BERT draws tokens and positions alike, from N(0, 0.02^2). Beside louder tokens a table so quiet fits late, its last
    rows above all, which only the longest sequences meet.
    """

    year = 2018
    source = "Devlin et al. 2018, arXiv 1810.04805"
    learns = "(size or L) * (D if combine == 'add' else width or D // 2)"
    translation_invariant = False

    def __init__(
        self,
        geometry: Geometry,
        size: int | None = None,
        std: float = 0.3,
        combine: str = "add",
        width: int | None = None,
    ) -> None:
        super().__init__(geometry)
        if size is not None and size < 1:
            raise ValueError(f"size={size} must be at least 1")
        check_std(std)
        self.longest = geometry.max_extents[0] if size is None else size
        self.std = std
        self.combine = combine
        self.table_LD = nn.Parameter(torch.empty(self.longest, position_width(geometry, combine, width)))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.table_LD.normal_(0, self.std, generator=generator)

    def embed(self, x_BTD: Tensor, positions: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        if positions is None:
            first, last = 0, x_BTD.shape[1] - 1
        else:
            positions = single_axis(whole(positions))
            first, last = (int(value) for value in positions.aminmax())
        size = len(self.table_LD)
        if first < 0:
            raise ValueError(f"position {first} lies before a learned table, which begins at 0")
        if last >= size:
            raise ValueError(f"position {last} lies beyond a learned table of {size} rows, 0 to {size - 1}")
        rows = self.table_LD[: last + 1] if positions is None else self.table_LD[positions]
        return combine_with_tokens(x_BTD, rows.to(x_BTD.dtype), self.combine)
