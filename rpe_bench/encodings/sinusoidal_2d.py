"""Sinusoids of two axes: Chen et al. 2021, MoCo v3 (arXiv 2104.02057); He et al. 2021, MAE (arXiv 2111.06377)."""

from torch import Tensor

from rpe_bench.encodings.base import Encoding, Geometry, check_base
from rpe_bench.encodings.grid import grid_positions, layouts, of_examples
from rpe_bench.encodings.sinusoidal import combine_with_tokens, position_width, sinusoid


class Sinusoidal2D(Encoding):
    """x_(y,x) <- x_(y,x) + [s(x), s(y)], s(p) = [sin(p w_t)]_t [cos(p w_t)]_t, w_t = base^(-4t/D) for t < D/4.

    The first half of the features belongs to the column x and the second to the row y, as in the code of both papers;
    within each, all sines come before all cosines.

    combine  add; or concatenate: the last `width` features are the position's own, with `width` for D above
    """

    year = 2021
    source = "Chen et al. 2021, arXiv 2104.02057"
    translation_invariant = False
    axes = 2

    def __init__(
        self, geometry: Geometry, base: float = 10_000.0, combine: str = "add", width: int | None = None
    ) -> None:
        super().__init__(geometry)
        self.base = base
        self.combine = combine
        self.width = position_width(geometry, combine, width)
        if self.width % 4:
            raise ValueError(
                f"two axes of sines and cosines need a multiple of 4 features, not a width of {self.width}"
            )
        check_base(base)

    def table(self, positions: Tensor) -> Tensor:
        """Cells (..., 2) to (..., width), in float64."""
        pairs = sinusoid(positions, self.width // 2, self.base).unflatten(-1, (-1, 2))
        return pairs.mT.flatten(-2).flip(-2).flatten(-2)

    def embed(self, x_BTD: Tensor, positions: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        cells_UT2, which_B = layouts(grid_positions(positions), {})
        table = of_examples(self.table(cells_UT2).to(x_BTD.dtype), which_B)
        return combine_with_tokens(x_BTD, table, self.combine)
