"""Sinusoidal positions: Vaswani et al. 2017, "Attention is all you need" (arXiv 1706.03762), section 3.5."""

import torch
from torch import Tensor

from rpe_bench.encodings.base import Cache, Encoding, Geometry, check_base, check_choice, single_axis


def angles(positions: Tensor, width: int, base: float) -> Tensor:
    """p / base^(2t/width), t < width/2: (...) to (..., width/2), in float64.

    Float64 throughout: in float32 the cosine of a position near 10^6 is already off by 0.016.
    """
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    return positions.double()[..., None] * base**-exponent


def sinusoid(positions: Tensor, width: int, base: float) -> Tensor:
    """PE(p, 2t) = sin(p / base^(2t/width)), PE(p, 2t+1) = cos(same): (...) to (..., width), in float64."""
    found = angles(positions, width, base)
    return torch.stack((found.sin(), found.cos()), dim=-1).flatten(-2)


class Sinusoidal(Encoding):
    """x_p <- x_p + PE(p), or the last `width` features of x_p <- PE(p) (combine=concatenate).

    To concatenate is to let the position have features of its own in the residual stream: the token keeps the first
    D - width, so that the trunk has the same shape and the same weights under either form.
    """

    year = 2017
    source = "Vaswani et al. 2017, arXiv 1706.03762"
    translation_invariant = False

    def __init__(
        self, geometry: Geometry, base: float = 10_000.0, combine: str = "add", width: int | None = None
    ) -> None:
        super().__init__(geometry)
        self.base = base
        self.combine = combine
        self.width = position_width(geometry, combine, width)
        if self.width % 2:
            raise ValueError(f"sinusoids come in pairs: a width of {self.width} is odd")
        check_base(base)
        self._cache = Cache()

    def table(self, positions: Tensor | None, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """PE of the positions (None: 0..length-1), rounded once from float64."""
        if positions is not None:
            return sinusoid(single_axis(positions), self.width, self.base).to(dtype)
        return self._cache.get(
            (self.base, self.width, length, device, dtype),
            lambda: sinusoid(torch.arange(length, device=device), self.width, self.base).to(dtype),
        )

    def embed(self, x_BTD: Tensor, positions: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        table = self.table(positions, x_BTD.shape[1], x_BTD.device, x_BTD.dtype)
        return combine_with_tokens(x_BTD, table, self.combine)


def position_width(geometry: Geometry, combine: str, width: int | None) -> int:
    """The features that an absolute position takes: all of them when added, half by default when concatenated."""
    check_choice("combine", combine, "add", "concatenate")
    if combine == "add":
        if width not in (None, geometry.dim):
            raise ValueError(f"width={width} contradicts combine=add, where a position is as wide as the model")
        return geometry.dim
    if width is None:
        width = geometry.dim // 2
    if not 0 < width < geometry.dim:
        raise ValueError(f"width={width} must lie between 1 and {geometry.dim - 1}, the model's width less one")
    return width


def combine_with_tokens(x_BTD: Tensor, position: Tensor, combine: str) -> Tensor:
    """Add (T, D) or (B, T, D) to the embeddings, or put (..., width) in the place of their last features."""
    if combine == "add":
        return x_BTD + position
    width = position.shape[-1]
    return torch.cat((x_BTD[..., :-width], position.expand(*x_BTD.shape[:-1], width)), dim=-1)
