"""xPos: Sun et al. 2022, "A length-extrapolatable Transformer" (arXiv 2212.10554)."""

import math

import torch
from torch import Tensor

from rpe_bench.encodings.base import Context, Geometry, single_axis
from rpe_bench.encodings.rope import RoPE, turn


class XPos(RoPE):
    """q_p <- zeta^((p-c)/S) R_p q_p, k_p <- zeta^(-(p-c)/S) R_p k_p: RoPE with zeta_t = (2t/K + gamma) / (1 + gamma).

    Pair t of a logit is multiplied by zeta_t^((i-j)/S): it shrinks with the distance to a key of the past, the faster
    pairs first, and would grow without bound with that to a key of the future. Under the rotation the sum over pairs
    still rises and falls. c cancels in every logit; it is the middle of each sequence's positions, from which exponents
    reach least far, and the same for q and k.

    S is `scale_base`. The paper's attention in blocks at evaluation is not part of this.

    Positions may lie anywhere, but those of one sequence may span no more than `reach`.

    Raises:
        ValueError: they do; or the model is to be evaluated on more in float32.
    """

    year = 2022
    source = "Sun et al. 2022, arXiv 2212.10554"
    preserves_norm = False
    causal_only = True

    def __init__(
        self,
        geometry: Geometry,
        base: float = 10_000.0,
        layout: str = "interleaved",
        scale_base: float = 512.0,
        gamma: float = 0.4,
    ) -> None:
        super().__init__(geometry, base, layout)
        if scale_base <= 0:
            raise ValueError(f"scale_base={scale_base} must be positive")
        if gamma <= 0:
            raise ValueError(f"gamma={gamma} must be positive")
        self.scale_base = scale_base
        self.gamma = gamma
        self._check(0, geometry.max_extents[0] - 1, torch.float32)

    def reach(self, dtype: torch.dtype) -> int:
        """How many positions a sequence may span so that all of its logits, hidden ones included, are finite.

        A key is stretched by at most the 0.46th power of the largest number, and a query as well: that leaves more than
        a factor of 1000 in float32 for what they are without it.
        """
        fastest = -math.log(self.gamma / (1 + self.gamma)) / self.scale_base
        return int(2 * 0.46 * math.log(torch.finfo(dtype).max) / fastest) + 1

    def logarithms(self, device: torch.device) -> Tensor:
        """log zeta_t / S, (K/2,) float64."""
        K = self.geometry.head_dim
        t = torch.arange(K // 2, dtype=torch.float64, device=device)
        return ((2 * t / K + self.gamma) / (1 + self.gamma)).log() / self.scale_base

    def turns_of_both(self, positions: Tensor) -> Tensor:
        """Of queries and keys: (2, ..., K/2) complex128."""
        turns, p = self.turns(positions), positions.double()
        centre = (p.amin(dim=-1, keepdim=True) + p.amax(dim=-1, keepdim=True)) / 2
        exponent = (p - centre)[..., None] * self.logarithms(p.device)
        return torch.stack((turns * exponent.exp(), turns * (-exponent).exp()))

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        dtype, device, T = q_BHTK.dtype, q_BHTK.device, q_BHTK.shape[2]
        exact = torch.complex128 if dtype == torch.float64 else torch.complex64
        if positions is None:
            self._check(0, T - 1, dtype)
            key = (self.rotation, self.scale_base, self.gamma, T, device, exact)
            both = self._cache.get(key, lambda: self.turns_of_both(torch.arange(T, device=device)).to(exact))
        else:
            positions = single_axis(positions)
            first, last = (ends.flatten() for ends in positions.aminmax(dim=-1))
            widest = (last - first).argmax()
            self._check(first[widest].item(), last[widest].item(), dtype)
            both = self.turns_of_both(positions).to(exact)
            both = both if positions.dim() == 1 else both[:, :, None]
        return turn(q_BHTK, both[0], self.layout), turn(k_BHTK, both[1], self.layout)

    def _check(self, first: float, last: float, dtype: torch.dtype) -> None:
        if last - first >= self.reach(dtype):
            raise ValueError(
                f"xPos in {dtype} keeps its powers finite over {self.reach(dtype)} positions at most "
                f"(scale_base={self.scale_base}, gamma={self.gamma}), and was given {first} to {last} in one sequence"
            )
