"""Rotary positions: Su et al. 2021, "RoFormer" (arXiv 2104.09864)."""

import torch
from torch import Tensor

from rpe_bench.encodings.base import Cache, Context, Encoding, Geometry, check_choice, single_axis


class RoPE(Encoding):
    """q_p <- R_p q_p, k_p <- R_p k_p: R_p turns pair t of a head's features by p * theta_t, theta_t = base^(-2t/K).

    R_m^T R_n = R_(n-m), so a logit depends on positions through j - i alone, and norms stay.

    layout  interleaved: pairs (2t, 2t+1), as in the paper; half: pairs (t, t + K/2), as in GPT-NeoX and Llama's port.
            The two are equal up to a permutation of the features of both projections.
    """

    def __init__(self, geometry: Geometry, base: float = 10_000.0, layout: str = "interleaved") -> None:
        super().__init__(geometry)
        check_choice("layout", layout, "interleaved", "half")
        if geometry.head_dim % 2:
            raise ValueError(
                f"a rotation turns pairs of features: a head of {geometry.head_dim} "
                f"(dim {geometry.dim} / heads {geometry.heads}) is odd"
            )
        if base <= 1:
            raise ValueError(f"base={base} must be greater than 1")
        self.base = base
        self.layout = layout
        self._cache = Cache()

    def frequencies(self, device: torch.device) -> Tensor:
        """theta_t, (K/2,) float64."""
        width = self.geometry.head_dim
        return self.base ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)

    def turns(self, positions: Tensor) -> Tensor:
        """e^(i p theta_t), (..., K/2) complex128: angles are never formed in less than float64."""
        angles = positions.double()[..., None] * self.frequencies(positions.device)
        return torch.polar(torch.ones_like(angles), angles)

    def _turns(self, positions: Tensor | None, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The turns, rounded once, shaped to multiply (B, H, T, K/2)."""
        if positions is not None:
            turns = self.turns(single_axis(positions)).to(dtype)
            return turns if turns.dim() == 2 else turns[:, None]
        return self._cache.get(
            (self.base, length, device, dtype), lambda: self.turns(torch.arange(length, device=device)).to(dtype)
        )

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        exact = torch.complex128 if q_BHTK.dtype == torch.float64 else torch.complex64
        turns = self._turns(positions, q_BHTK.shape[2], q_BHTK.device, exact)
        return self._turn(q_BHTK, turns), self._turn(k_BHTK, turns)

    def _turn(self, x_BHTK: Tensor, turns: Tensor) -> Tensor:
        x = x_BHTK.to(turns.real.dtype)
        if self.layout == "interleaved":
            # Contiguous, since pairs are complex numbers only where they lie side by side at even offsets; faster, too.
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            turned = torch.view_as_real(pairs * turns).flatten(-2)
        else:
            first, second = x.chunk(2, dim=-1)
            cos, sin = turns.real, turns.imag
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return turned.to(x_BHTK.dtype)
