"""RNoPE: Yang et al. 2025, "RoPE to NoPE and back again" (arXiv 2501.18795): layers that alternate."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from rpe_bench.encodings.base import Context, DistanceBias, Encoding, Geometry
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.rope import RoPE
from rpe_bench.encodings.sliding_window import check_window, inside


class RNoPE(DistanceBias):
    """Layers with rotations inside a window, and after every few of them one without position that sees all.

    Of each `period` layers the last has logit_ij = q_i.k_j / sqrt(K); the others

        logit_ij = (R_i q_i).(R_j k_j) / sqrt(K) where |i - j| < w, else minus infinity,

    with the rotations R of RoPE. This class is such a layer, and `build` makes both kinds; the first are the rotations,
    so that a model of fewer layers than `period` has no others. Nothing is learned. A bidirectional model sees as far
    to the other side.

    window  w: how many keys a query of a causal model sees, itself included
    period  2 alternates them one by one; 4 is the paper's final form, three windows to one that sees all
    base    of the rotations
    layout  of the rotations
    """

    year = 2025
    source = "Yang et al. 2025, arXiv 2501.18795"
    preserves_norm = True

    def __init__(
        self,
        geometry: Geometry,
        window: int = 16,
        period: int = 2,
        base: float = 10_000.0,
        layout: str = "interleaved",
    ) -> None:
        super().__init__(geometry)
        check_window(window)
        if period < 2:
            raise ValueError(f"period={period} must be at least 2: a layer of each kind")
        self.window = window
        self.period = period
        self.rope = RoPE(geometry, base=base, layout=layout)

    @classmethod
    def build(cls, geometry: Geometry, **parameters: Any) -> list[Encoding]:
        layers = [replace(geometry, layer=layer) for layer in range(geometry.layers)]
        windows = [cls(layer, **parameters) for layer in layers]
        # One a layer, of which every last of a period gives its place to no position.
        return [
            one if (layer.layer + 1) % one.period else NoPE(layer) for one, layer in zip(windows, layers, strict=True)
        ]

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.rope.rotate(q_BHTK, k_BHTK, positions, context)

    def of_offset(self, offset: Tensor) -> Tensor:
        return inside(offset, self.window)
