"""PaTH: Yang et al. 2025, "PaTH attention: position encoding via accumulating Householder transformations"
(arXiv 2505.16381)."""

import torch
from torch import Tensor, nn

from rpe_bench.encodings.base import Context, Encoding, Geometry, layer_input

CHUNK = 32
"""Tokens whose transitions are multiplied in closed form."""


class PaTH(Encoding):
    """logit_ij = k_j^T (H_{j+1} H_{j+2} ... H_i) q_i / sqrt(K), H_t = I - beta_t w_t w_t^T, from the layer's input x:

        w_t = normalise(silu(convolution(W_up W_down x)_t)), beta_t = 2 sigmoid(w_b.x_t + b), both for each head

    Every token between a key and a query may project away, or reflect, what the one holds of the other. A beta of 0
    gives no position at all; one of 2 gives reflections, which alone keep norms.

    Transitions follow the sequence in its order: positions are not read, and a token that is left out changes nothing.
    There is none of what follows, so that a bidirectional model has no such logits. The paper's variant with a forget
    gate beside it is left out.

    rank      of the projection to w
    kernel    tokens that the convolution sees, the current one and those before it
    shared    one set of transitions for all layers, or one a layer, as in the paper
    per_head  transitions of each head, as in the paper, or the same for all heads

    The product over a chunk of C tokens, the rows of W being w and A the strictly lower part of diag(beta) W W^T, is

        H_C ... H_2 H_1 = I - W^T (I + A)^{-1} diag(beta) W

    so that keys are carried to the end of their chunk and queries to the start of theirs (`rotate`), and queries then
    further back, from chunk to chunk (`content`): for T tokens O(T^2 K), and never a product of two T x T matrices.
    """

    year = 2025
    source = "Yang et al. 2025, arXiv 2505.16381"
    learns = "rank * D + (H if per_head else 1) * (K * (rank + kernel) + D + 1)"
    causal_only = True
    pairwise = False
    axes = None

    def __init__(
        self, geometry: Geometry, rank: int = 32, kernel: int = 3, shared: bool = False, per_head: bool = True
    ) -> None:
        super().__init__(geometry)
        for name, value in (("rank", rank), ("kernel", kernel)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        heads = geometry.heads if per_head else 1
        self.down_RD = nn.Parameter(torch.empty(rank, geometry.dim))
        self.up_CR = nn.Parameter(torch.empty(heads * geometry.head_dim, rank))
        self.taps_CN = nn.Parameter(torch.empty(heads * geometry.head_dim, kernel))
        self.beta_HD = nn.Parameter(torch.empty(heads, geometry.dim))
        self.beta_bias_H = nn.Parameter(torch.empty(heads))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        for weight in (self.down_RD, self.up_CR, self.taps_CN, self.beta_HD):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
        self.beta_bias_H.zero_()

    def transitions(self, context: Context | None) -> tuple[Tensor, Tensor]:
        """w (B, H, T, K), of norm 1, and beta (B, H, T), from 0 to 2; of one head where all share them."""
        x_BTD = layer_input(context)
        down, up, taps, beta, bias = (
            weight.to(x_BTD.dtype)
            for weight in (self.down_RD, self.up_CR, self.taps_CN, self.beta_HD, self.beta_bias_H)
        )
        w_BTC = nn.functional.silu(causal_convolution(x_BTD @ down.mT @ up.mT, taps))
        w_BTHK = nn.functional.normalize(w_BTC.unflatten(-1, (len(beta), -1)), dim=-1)
        beta_BTH = 2 * nn.functional.linear(x_BTD, beta, bias).sigmoid()
        return w_BTHK.transpose(1, 2), beta_BTH.mT

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        """All that there is within chunks. Of a query: carried to the start of its chunk (K features), and its logits
        with the keys of the chunk (C). Of a key: carried to the end of its chunk (K), and two halves of the chunk's
        product (2K). Both (B, H, T, max(K + C, 3K))."""
        T = q_BHTK.shape[2]
        w, beta = self.transitions(context)
        q, k, w, beta = (_chunks(x) for x in (q_BHTK * self.scale, k_BHTK, w, beta[..., None]))
        w, beta = w.expand_as(k), beta.expand(*k.shape[:-1], 1)
        passed = (w @ k.mT).tril(-1)  # w_s.k_j for the tokens s that follow key j
        lower, right = (beta * (w @ w.mT)).tril(-1), beta * torch.cat((w, passed), dim=-1)
        solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
        to_start, to_end = solved.split((w.shape[-1], CHUNK), dim=-1)
        met = (q @ w.mT).tril()  # q_i.w_s for the tokens s up to query i
        of_query = (q - met @ to_start, (q @ k.mT - met @ to_end).tril())
        of_key = (k - to_end.mT @ w, w, to_start)
        q, k = (torch.cat(parts, dim=-1).flatten(2, 3)[:, :, :T] for parts in (of_query, of_key))
        wider = k.shape[-1] - q.shape[-1]
        return _padded(q, (0, max(0, wider))), _padded(k, (0, max(0, -wider)))

    def content(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        """The logits, (B, H, Q, S), of what `rotate` gives; of keys that follow a query nothing is said."""
        K, S, rows = self.geometry.head_dim, context.length, range(context.length)[context.rows]
        # Whole chunks, from that of the first row to that of the last. What pads them is zero and changes nothing.
        first, last = rows.start // CHUNK, -(-rows.stop // CHUNK)
        before = rows.start - first * CHUNK
        q_start, within = _chunks(q_BHQK, before)[..., : K + CHUNK].split((K, CHUNK), dim=-1)
        k_end, w, to_start = _chunks(k_BHSK[:, :, : last * CHUNK])[..., : 3 * K].split(K, dim=-1)
        product = torch.eye(K, dtype=w.dtype, device=w.device) - w.mT @ to_start

        columns: list[Tensor] = []
        carried = q_start[:, :, :0, 0]  # the queries of later chunks, carried back to the end of the chunk at hand
        for chunk in reversed(range(last)):
            logits = [carried @ k_end[:, :, chunk].mT]
            carried = carried @ product[:, :, chunk]
            if (place := chunk - first) >= 0:
                hidden = within.new_zeros(*within.shape[:2], place * CHUNK, CHUNK)
                logits = [hidden, within[:, :, place], *logits]
                carried = torch.cat((q_start[:, :, place], carried), dim=2)
            columns.append(torch.cat(logits, dim=2))
        found = torch.cat(columns[::-1], dim=-1)[:, :, before : before + len(rows), :S]
        return _padded(found, (0, S - found.shape[-1]))


def _padded(x: Tensor, zeros: tuple[int, ...]) -> Tensor:
    """As torch's own function, which copies even where there is nothing to add."""
    return nn.functional.pad(x, zeros) if any(zeros) else x


def _chunks(x_BHTK: Tensor, before: int = 0) -> Tensor:
    """(B, H, N, C, K), zeros standing for so many tokens before, and for those that the last chunk lacks."""
    after = -(x_BHTK.shape[2] + before) % CHUNK
    return _padded(x_BHTK, (0, 0, before, after)).unflatten(2, (-1, CHUNK))


def causal_convolution(x_BTC: Tensor, taps_CN: Tensor) -> Tensor:
    """Each channel's own: sum_n taps[c, n] x[t - (N - 1) + n], the last tap on the token itself, 0 before the first."""
    T, N = x_BTC.shape[1], taps_CN.shape[1]
    padded = nn.functional.pad(x_BTC, (0, 0, N - 1, 0))
    terms = [padded[:, n : n + T] * taps_CN[:, n] for n in range(N)]
    return sum(terms[1:], terms[0])
