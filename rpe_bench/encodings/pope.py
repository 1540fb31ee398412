"""Polar positions (PoPE): Gopalakrishnan et al. 2025, "Decoupling the what and where with polar coordinate positional
embeddings" (arXiv 2509.10534)."""

import math

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Cache, Context, Encoding, Geometry, check_base, check_choice, single_axis


class PoPE(Encoding):
    """logit_ij = sum_c mu(q_ic) mu(k_jc) cos((i - j) theta_c - delta_hc) / sqrt(K), theta_c = base^(-c/K), mu softplus.

    A feature is a length alone, and its angle a position alone, where RoPE has both in one pair of features. All K
    features turn, each at a frequency of its own, so that q and k become 2K wide: mu cos and mu sin of i theta_c, and
    of j theta_c + delta_hc.

    The paper keeps delta within [-2 pi, 0] by clamping, and may begin it at 0, the edge, behind which no gradient comes
    back. An angle needs no bounds: here delta is free, and any value equals one of that range.

    delta_init  zero, or uniform: drawn from [-2 pi, 0)
    shared      one delta for all layers, or one a layer, as in the paper
    per_head    one delta a head and feature, as in the paper, or one a feature for all heads
    """

    year = 2025
    source = "Gopalakrishnan et al. 2025, arXiv 2509.10534"
    learns = "K * (H if per_head else 1)"

    def __init__(
        self,
        geometry: Geometry,
        base: float = 10_000.0,
        delta_init: str = "zero",
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        check_choice("delta_init", delta_init, "zero", "uniform")
        check_base(base)
        self.base = base
        self.delta_init = delta_init
        self.delta_HK = nn.Parameter(torch.empty(geometry.heads if per_head else 1, geometry.head_dim))
        self._cache = Cache()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        self.delta_HK.zero_()
        if self.delta_init == "uniform":
            self.delta_HK.uniform_(-2 * math.pi, 0, generator=generator)

    def angles(self, positions: Tensor) -> Tensor:
        """p theta_c, (..., K) float64."""
        K = self.geometry.head_dim
        theta_K = self.base ** -(torch.arange(K, dtype=torch.float64, device=positions.device) / K)
        return positions.double()[..., None] * theta_K

    def _angles(self, positions: Tensor | None, length: int, device: torch.device) -> Tensor:
        """Shaped to broadcast to (B, H, T, K)."""
        if positions is not None:
            angles = self.angles(single_axis(positions))
            return angles if angles.dim() == 2 else angles[:, None]
        return self._cache.get((self.base, length, device), lambda: self.angles(torch.arange(length, device=device)))

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        angles = self._angles(positions, q_BHTK.shape[2], q_BHTK.device)
        return polar(q_BHTK, angles), polar(k_BHTK, angles + self.delta_HK.double()[:, None])


def polar(x_BHTK: Tensor, angles: Tensor) -> Tensor:
    """softplus(x) cos and softplus(x) sin of float64 angles side by side, (B, H, T, 2K)."""
    mu = nn.functional.softplus(x_BHTK)
    return torch.cat((mu * angles.cos().to(mu.dtype), mu * angles.sin().to(mu.dtype)), dim=-1)
