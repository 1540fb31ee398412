"""Rotary positions: Su et al. 2021, "RoFormer" (arXiv 2104.09864).

With the part of a head that turns: GPT-J and GPT-NeoX (`rotary`), or Barbero et al. 2024, "Round and round we go! What
makes rotary positional encodings useful?" (arXiv 2410.06205; `proportion`).
"""

import torch
from torch import Tensor

from rpe_bench.encodings.base import Cache, Context, Encoding, Geometry, check_base, check_choice, single_axis
from rpe_bench.encodings.scalings import AnyScaling
from rpe_bench.encodings.scalings.base import Rotation


def turns_of(angles: Tensor) -> Tensor:
    """e^(i angle), complex, in the precision of the angles, which float64 alone has enough of for far positions."""
    return torch.polar(torch.ones_like(angles), angles)


def turn(x_BHTK: Tensor, turns: Tensor, layout: str) -> Tensor:
    """Turn the first r features of x, pair after pair, and leave the others as they are.

    Args:
        x_BHTK: queries or keys.
        turns: complex, broadcastable to (B, H, T, r/2); one of a length other than 1 stretches its pair as well.
        layout: which features make pair t: interleaved, (2t, 2t+1); half, (t, t + r/2).

    Returns:
        (B, H, T, K) in the dtype of x, rounded once from the precision of the turns.
    """
    r, K = 2 * turns.shape[-1], x_BHTK.shape[-1]
    if r < K:
        first, rest = x_BHTK.split((r, K - r), dim=-1)
        return torch.cat((turn(first, turns, layout), rest), dim=-1)
    pairs = x_BHTK.to(turns.real.dtype)
    pairs = pairs.unflatten(-1, (-1, 2)) if layout == "interleaved" else pairs.unflatten(-1, (2, -1)).mT
    # Copied, since pairs are complex numbers only where they lie side by side at even offsets; and since arithmetic on
    # queries and keys as a projection leaves them, strided, is slower than that and the copy.
    pairs = torch.view_as_complex(pairs.clone(memory_format=torch.contiguous_format))
    turned = torch.view_as_real(pairs * turns)
    turned = (turned if layout == "interleaved" else turned.mT).flatten(-2)
    return turned.to(x_BHTK.dtype)


class RoPE(Encoding):
    """q_p <- R_p q_p, k_p <- R_p k_p: R_p turns pair t of a head's features by p * theta_t, theta_t = base^(-2t/r).

    R_m^T R_n = R_(n-m), so a logit depends on positions through j - i alone, and norms stay.

    layout      interleaved: pairs (2t, 2t+1), as in the paper; half: pairs (t, t + r/2), as in GPT-NeoX and Llama's
                port. The two are equal up to a permutation of the features of both projections.
    rotary      the share of a head's features that turn, r = rotary * K, the first ones; the others carry no position
    proportion  p-RoPE: the int(p * r/2) highest frequencies stay and the others are 0. All pairs are spread over r
                features as without it, which partial rotary, with pairs over fewer features, does not do. 0 is NoPE.
    scaling     other frequencies for longer sequences: {name: yarn, factor: 4.0}, or another of encodings/scalings
    """

    year = 2021
    source = "Su et al. 2021, arXiv 2104.09864"
    neutral = {"rotary": 1.0, "proportion": 1.0, "scaling": None}
    preserves_norm = True

    def __init__(
        self,
        geometry: Geometry,
        base: float = 10_000.0,
        layout: str = "interleaved",
        rotary: float = 1.0,
        proportion: float = 1.0,
        scaling: AnyScaling | None = None,
    ) -> None:
        super().__init__(geometry)
        check_choice("layout", layout, "interleaved", "half")
        check_base(base)
        if not 0 < rotary <= 1:
            raise ValueError(f"rotary={rotary} must be more than 0 and at most 1")
        if not 0 <= proportion <= 1:
            raise ValueError(f"proportion={proportion} must lie between 0 and 1")
        width = int(rotary * geometry.head_dim)
        if width % 2 or not width:
            head = f"a head of {geometry.head_dim} (dim {geometry.dim} / heads {geometry.heads})"
            given = f"{head} is odd" if rotary == 1 else f"rotary={rotary} of {head} is {width}"
            raise ValueError(f"a rotation turns pairs of features: {given}")
        if rotary < 1:
            self.year = 2022
            self.source = "Black et al. 2022, arXiv 2204.06745"
        if proportion < 1:
            self.year = 2024
            self.source = "Barbero et al. 2024, arXiv 2410.06205"
        self.layout = layout
        self.rotation = Rotation(base, width, geometry.train_extents[0])
        self.turning = int(proportion * width // 2)
        """Pairs of a frequency above 0."""
        self.scaling = scaling
        self.amplitude = 1.0
        if scaling is not None:
            scaling.check(self.rotation)
            self.amplitude = scaling.amplitude(self.rotation)
            self.preserves_norm = not scaling.rescales()
            self.translation_invariant = self.prefix_consistent = not scaling.by_length()
        self._cache = Cache()

    def frequencies(self, positions: Tensor) -> Tensor:
        """theta_t for a sequence of these positions, (T,) or (B, T): float64, (r/2,), or (1, r/2) or (B, 1, r/2)."""
        if self.scaling is None:
            theta = self.rotation.frequencies(positions.device)
        else:
            theta = self.scaling.frequencies(self.rotation, positions.amax(dim=-1, keepdim=True) + 1)
        theta[..., self.turning :] = 0
        return theta

    def turns(self, positions: Tensor) -> Tensor:
        """e^(i p theta_t), (..., r/2) complex128: angles are never formed in less than float64."""
        return self.amplitude * turns_of(positions.double()[..., None] * self.frequencies(positions))

    def _turns(self, positions: Tensor | None, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The turns, rounded once, shaped to multiply (B, H, T, r/2)."""
        if positions is not None:
            turns = self.turns(single_axis(positions)).to(dtype)
            return turns if turns.dim() == 2 else turns[:, None]
        key = (self.rotation, self.turning, self.scaling, length, device, dtype)
        return self._cache.get(key, lambda: self.turns(torch.arange(length, device=device)).to(dtype))

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        exact = torch.complex128 if q_BHTK.dtype == torch.float64 else torch.complex64
        turns = self._turns(positions, q_BHTK.shape[2], q_BHTK.device, exact)
        return turn(q_BHTK, turns, self.layout), turn(k_BHTK, turns, self.layout)
