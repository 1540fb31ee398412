"""Selective RoPE: Movahedi et al. 2025, "Selective rotary position embedding" (arXiv 2511.17388)."""

import math

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, Encoding, Geometry, check_base, check_choice, layer_input
from rpe_bench.encodings.path import causal_convolution
from rpe_bench.encodings.rope import turn, turns_of


class SelectiveRoPE(Encoding):
    """q_t <- R_t q_t, k_t <- R_t k_t: R_t turns pair c by theta_c sum_{u<=t} omega_uc, theta_c = base^(-2c/K).

        omega_t = convolution(W_up W_down x^)_t (+ exp(b)), x^ the layer's input, each of its H parts of norm 1

    Like a RoPE whose steps the tokens choose: a logit depends on the angle that is gathered from the key to the query,
    in either direction, and norms stay. Steps follow the sequence in its order: positions are not read, and a token
    that is left out turns nothing. Angles are gathered in float64.

    rank      of the projection to omega
    kernel    tokens that the convolution sees, the current one and those before it
    layout    which features make pair c: half, (c, c + K/2), as in the authors' code; interleaved, (2c, 2c+1)
    drift     add exp(b), b learned, 0 as drawn: where omega is zero otherwise, this is RoPE of that base
    shared    one set of steps for all layers, or one a layer, as in the paper
    per_head  steps of each head, as in the paper, or the same for all heads

    The gate on omega that the paper also tries is left out.
    """

    year = 2025
    source = "Movahedi et al. 2025, arXiv 2511.17388"
    learns = "rank * D + (H if per_head else 1) * K // 2 * (rank + kernel + (1 if drift else 0))"
    preserves_norm = True
    pairwise = False
    axes = None

    def __init__(
        self,
        geometry: Geometry,
        base: float = 500_000.0,
        rank: int = 32,
        kernel: int = 4,
        layout: str = "half",
        drift: bool = False,
        shared: bool = False,
        per_head: bool = True,
    ) -> None:
        super().__init__(geometry)
        check_choice("layout", layout, "interleaved", "half")
        if geometry.head_dim % 2:
            raise ValueError(
                f"a rotation turns pairs of features: a head of {geometry.head_dim} "
                f"(dim {geometry.dim} / heads {geometry.heads}) is odd"
            )
        check_base(base)
        for name, value in (("rank", rank), ("kernel", kernel)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        self.base = base
        self.layout = layout
        channels = (geometry.heads if per_head else 1) * geometry.head_dim // 2
        self.down_RD = nn.Parameter(torch.empty(rank, geometry.dim))
        self.up_CR = nn.Parameter(torch.empty(channels, rank))
        self.taps_CN = nn.Parameter(torch.empty(channels, kernel))
        self.b_C = nn.Parameter(torch.empty(channels)) if drift else None

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        for weight in (self.down_RD, self.up_CR, self.taps_CN):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
        if self.b_C is not None:
            self.b_C.zero_()

    def angles(self, context: Context | None) -> Tensor:
        """The angles gathered up to each token, (B, H, T, K/2) float64; of one head where all share them."""
        x_BTD = layer_input(context)
        down, up, taps = (weight.to(x_BTD.dtype) for weight in (self.down_RD, self.up_CR, self.taps_CN))
        parts = nn.functional.normalize(x_BTD.unflatten(-1, (self.geometry.heads, -1)), dim=-1).flatten(-2)
        omega_BTC = causal_convolution(parts @ down.mT @ up.mT, taps).double()
        if self.b_C is not None:
            omega_BTC = omega_BTC + self.b_C.double().exp()
        K = self.geometry.head_dim
        theta = self.base ** -(torch.arange(0, K, 2, dtype=torch.float64, device=x_BTD.device) / K)
        return theta * omega_BTC.cumsum(dim=1).unflatten(-1, (-1, K // 2)).transpose(1, 2)

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        angles = self.angles(context)
        # Whole turns taken off in float64, an angle is precise in less as well, whose cosine takes a tenth of the time.
        angles = angles - (angles.detach() / (2 * math.pi)).round() * (2 * math.pi)
        turns = turns_of(angles.to(torch.promote_types(q_BHTK.dtype, torch.float32)))
        return turn(q_BHTK, turns, self.layout), turn(k_BHTK, turns, self.layout)
