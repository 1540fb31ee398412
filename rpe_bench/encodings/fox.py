"""Forgetting attention (FoX): Lin et al. 2025, "Forgetting Transformer: softmax attention with a forget gate"
(arXiv 2503.02130)."""

from typing import Any

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, Encoding, Geometry, layer_input


class FoX(Encoding):
    """logit_ij = q_i.k_j / sqrt(K) + sum_{l=j+1..i} log f_lh, f_th = sigmoid(w_h.x_t + b_h), x the layer's input.

    With c_t = sum_{l<=t} log f_l the bias is c_i - c_j: 0 on the diagonal, and never greater for a key further back.
    "Data-dependent ALiBi" is another name for it: a gate that is constant gives ALiBi with the slope -log f, and one
    that is 1 no position at all.

    Gates add up along the sequence, in its order, as the causal mask has it: positions are not read, and a token that
    is left out has forgotten nothing. A bidirectional model has gates of its own for what follows (`TwoSidedFoX`).

    The fused kernel gets the bias as a product, which is why q and k, not the logits, are what this class changes:
    q'_i = [c_i, 1, q_i / sqrt(K)], k'_j = [1, -c_j, k_j]. As two float32 numbers c_i and c_j would lose digits that
    c_i - c_j has, so each is taken in float64, as a whole number and a rest, and all of it stands before q.k: the whole
    numbers cancel exactly before anything else is added.

    bias_init  b_h as drawn: 0, the authors', begins from a half-life of one token; 5 (f = 0.993), that of
               x-transformers, from hardly any position at all. w_h is drawn as the model's own projections are
    shared     one set of gates for all layers, or one a layer, as in the paper
    per_head   one gate a head, as in the paper, or one for all heads
    """

    year = 2025
    source = "Lin et al. 2025, arXiv 2503.02130"
    learns = "(1 if geometry.causal else 2) * (H if per_head else 1) * (D + 1)"
    in_effect = "bias"
    decays = True
    pairwise = False
    axes = None

    sides = 1

    def __init__(self, geometry: Geometry, bias_init: float = 0.0, shared: bool = False, per_head: bool = True) -> None:
        super().__init__(geometry)
        if self.sides != (1 if geometry.causal else 2):
            raise ValueError(f"causal={geometry.causal} does not go with {type(self).__name__}: use FoX.build")
        if geometry.causal:
            self.scale = 1.0  # `rotate` has scaled q: no multiple of a whole number may be rounded
        self.bias_init = bias_init
        gates = self.sides * (geometry.heads if per_head else 1)
        self.weight_GD = nn.Parameter(torch.empty(gates, geometry.dim))
        self.bias_G = nn.Parameter(torch.empty(gates))

    @classmethod
    def build(cls, geometry: Geometry, **parameters: Any) -> list[Encoding]:
        """As of any encoding; the class that serves both sides for a bidirectional model."""
        return super(FoX, cls if geometry.causal else TwoSidedFoX).build(geometry, **parameters)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        bound = self.geometry.dim**-0.5
        self.weight_GD.uniform_(-bound, bound, generator=generator)
        self.bias_G.fill_(self.bias_init)

    def sums(self, context: Context | None) -> Tensor:
        """c_t, (B, H, T) float64, or of one head for all; for two sides their sums one after the other, (B, 2H, T)."""
        x_BTD = layer_input(context)
        gates = nn.functional.linear(x_BTD, self.weight_GD.to(x_BTD.dtype), self.bias_G.to(x_BTD.dtype))
        return nn.functional.logsigmoid(gates).double().cumsum(dim=1).mT

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        c = self.sums(context).expand(q_BHTK.shape[:3])
        whole = c.detach().round()  # exact in float32 up to 2^24; the gradient is that of the rest
        rest, one = c - whole, torch.ones_like(whole)
        q_with = torch.stack((whole, one, rest, one), dim=-1).to(q_BHTK.dtype)
        k_with = torch.stack((one, -whole, one, -rest), dim=-1).to(k_BHTK.dtype)
        q_scaled = q_BHTK * self.geometry.head_dim**-0.5
        return torch.cat((q_with, q_scaled), dim=-1), torch.cat((k_with, k_BHTK), dim=-1)


class TwoSidedFoX(FoX):
    """FoX in a bidirectional model: a second gate f' forgets what follows, by sum_{l=i+1..j} log f'_l for j > i."""

    sides = 2
    rotate = Encoding.rotate

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        past, future = self.sums(context).chunk(2, dim=1)
        index = torch.arange(context.length, device=q_BHQK.device)
        follows = index[None, :] > index[context.rows, None]
        behind = past[:, :, context.rows, None] - past[:, :, None, :]
        ahead = future[:, :, None, :] - future[:, :, context.rows, None]
        return torch.where(follows, ahead, behind).to(q_BHQK.dtype)
