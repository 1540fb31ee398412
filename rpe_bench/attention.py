"""How logits and outputs of attention are computed: a plain reference path, and fast paths that tests hold equal to it.

Attention is rotate -> scale * q.k -> + bias -> mask -> softmax -> value, for every encoding. `attend` picks the path:

    no bias                                  the fused kernel, causal or not
    bias of distance, fixed or not training  the fused kernel with a mask that is a view of one vector of 2T - 1 numbers
    bias of distance, learned, in training   explicit logits, the bias unfolded from one vector
    anything else, and any given positions   explicit logits, in chunks of rows where the sequence is long

Shapes as in rpe_bench.encodings.base.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rpe_bench.encodings.base import Context, DistanceBias, Encoding, check_positions

CHUNK_ELEMENTS = 2**23
"""Logits held at once by the explicit path outside training: 32 MiB in float32."""

BLOCK_ROWS = 1024
"""Queries that a causal mask is taken for at once: twice as fast at long lengths as all of them, half being masked."""


def logits(encoding: Encoding, q_BHTK: Tensor, k_BHTK: Tensor, context: Context) -> Tensor:
    """scale * q.k + bias, (B, H, Q, S), of rotated q (the rows at hand) and k, before mask and softmax."""
    content = encoding.content(q_BHTK, k_BHTK, context)
    bias = encoding.bias(q_BHTK, k_BHTK, context.with_(content_BHQS=content))
    return content if bias is None else content + bias


def attention_logits(
    encoding: Encoding,
    q: Tensor,
    k: Tensor,
    positions: Tensor | None = None,
    *,
    x: Tensor | None = None,
    tokens: Tensor | None = None,
    project: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
) -> Tensor:
    """What softmax is given but for the mask: rotated, scaled, biased.

    Args:
        encoding: one layer's encoding.
        q, k: (B, H, T, K).
        positions: None for 0..T-1, or (T,), (B, T) or (B, T, A).
        x, tokens, project: the layer's input (B, T, D), the token ids (B, T) and the layer's projections, for encodings
            that depend on them.

    Returns:
        (B, H, T, T), rows are queries.

    Raises:
        ValueError: positions of another shape, or beyond what the encoding can represent.
    """
    B, _, T, _ = q.shape
    check_positions(positions, B, T)
    causal = encoding.geometry.causal
    context = Context(T, causal, positions, device=q.device, x_BTD=x, tokens_BT=tokens, project=project)
    return logits(encoding, *encoding.rotate(q, k, positions, context), context)


def reference(encoding: Encoding, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
    """Attention as it is defined, all logits at once: what every other path is tested against."""
    return _explicit(encoding, *encoding.rotate(q_BHTK, k_BHTK, context.positions, context), v_BHTK, context)


def attend(encoding: Encoding, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
    """Attention by the fastest path that is equal to the reference: (B, H, T, K)."""
    q, k = encoding.rotate(q_BHTK, k_BHTK, context.positions, context)
    scale = encoding.scale
    if isinstance(scale, Tensor):  # which the fused kernel does not take
        return _in_chunks(encoding, q, k, v_BHTK, context)
    if not set(encoding.changes()) - {"embed", "rotate"}:
        return scaled_dot_product_attention(q, k, v_BHTK, is_causal=context.causal, scale=scale)
    if isinstance(encoding, DistanceBias) and context.positions is None and encoding.by_offset_alone(context):
        if encoding.learned and torch.is_grad_enabled():
            return _unfolded_bias(encoding, q, k, v_BHTK, context)
        return _view_of_bias(encoding, q, k, v_BHTK, context, scale)
    return _in_chunks(encoding, q, k, v_BHTK, context)


def _explicit(encoding: Encoding, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, context: Context) -> Tensor:
    scores = logits(encoding, q_BHQK, k_BHSK, context)
    if (hidden := context.hidden_QS) is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return encoding.value(scores.softmax(dim=-1), v_BHSK, context)


def _in_chunks(encoding: Encoding, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
    """The explicit path with memory that grows as length times chunk (in training the graph keeps all of it anyway)."""
    B, H, T, _ = q_BHTK.shape
    rows = max(1, CHUNK_ELEMENTS // (B * H * T))
    if rows >= T or torch.is_grad_enabled():
        return _explicit(encoding, q_BHTK, k_BHTK, v_BHTK, context)
    chunks = [slice(start, min(start + rows, T)) for start in range(0, T, rows)]
    return torch.cat(
        [_explicit(encoding, q_BHTK[:, :, part], k_BHTK, v_BHTK, context.with_(rows=part)) for part in chunks], dim=2
    )


def _view_of_bias(
    encoding: DistanceBias, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context, scale: float
) -> Tensor:
    """The fused kernel, with a mask (H, Q, S) that takes 2T - 1 numbers a head.

    With the order of the queries reversed, row r of those before `end` is the query end-1-r, whose key c has the offset
    c + r - (end-1): the entry c + r + T - end of the vector of all offsets. Both strides are then 1 and positive, which
    a strided view can express. A causal model takes its rows in blocks, and leaves out the keys after each.
    """
    _, H, T, _ = q_BHTK.shape
    bias_HN = encoding.of_all_offsets(T, context.causal, q_BHTK.device, q_BHTK.dtype).detach()
    strides = (0, bias_HN.stride(0) if len(bias_HN) == H else 0, 1, 1)
    rows = BLOCK_ROWS if context.causal else T
    blocks = []
    for start in range(0, T, rows):
        end = min(start + rows, T)
        keys = slice(end if context.causal else T)
        mask = bias_HN.as_strided((1, H, end - start, keys.stop), strides, bias_HN.storage_offset() + T - end)
        q, k, v = q_BHTK[:, :, start:end].flip(2), k_BHTK[:, :, keys], v_BHTK[:, :, keys]
        blocks.append(scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).flip(2))
    return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]


def _unfolded_bias(encoding: DistanceBias, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
    """Explicit logits; the fused kernel has no gradient for its mask but on a path that is slower than this one."""
    T = q_BHTK.shape[2]
    key = (encoding, "bias_HTT")
    if key not in context.memo:
        bias_HN = encoding.of_all_offsets(T, context.causal, q_BHTK.device, q_BHTK.dtype)
        row = torch.arange(T, device=q_BHTK.device)
        # Entry (i, j) is the offset j - i, which stands at j - i + T - 1.
        context.memo[key] = bias_HN[:, row[None, :] - row[:, None] + T - 1]
    scores = encoding.content(q_BHTK, k_BHTK, context) + context.memo[key]
    return scores.softmax(dim=-1) @ v_BHTK
