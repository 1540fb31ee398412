"""How logits and outputs of attention are computed: a plain reference path, and fast paths that tests hold equal to it.

Attention is rotate -> scale * q.k -> + bias -> mask -> softmax -> value, for every encoding. `attend` picks the path:

    no bias                                  the fused kernel, causal or not; in training a few queries at a time
    bias of distance, fixed or not training  the fused kernel with a mask that is a view of one vector of 2T - 1 numbers
    bias of distance, learned, in training   explicit logits, the bias unfolded from one vector
    anything else, and any given positions   explicit logits, in chunks of rows where the sequence is long

Shapes as in rpe_bench.encodings.base.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rpe_bench.encodings.base import Context, DistanceBias, Encoding, check_positions

CHUNK_ELEMENTS = 2**22
"""Logits held at once by the explicit path outside training, at most: 16 MiB in float32."""

CACHED_ELEMENTS = 2**19
"""Logits that stay in the cache: of 2**16 to 2**23 the fastest to hold at once, at 2,048 tokens in half of the time of
the last or less. Of fewer than TRAINED_ROWS queries at a time more is lost than that gains."""

BLOCK_ROWS = 256
"""Queries that a causal mask is taken for at once; in long sequences a 16th of all, up to 1024. Where a block meets its
own keys, half of the work is for nothing, which favours few; the fused kernel is faster the more it is given."""

FUSED_ROWS = 64
"""Queries that the fused kernel is given at once in the training of a causal model, where there are more than twice as
many: on a CPU its own blocks take in many keys that are hidden. At 257 tokens it is 0.82 of the time, at 512 0.68."""

TRAINED_ROWS = 32
"""Queries whose logits are held at once in training: of 16, 32, 64 and all the fastest. At 128 tokens it
takes half of the time of all in a causal model, two thirds in a bidirectional one."""


def logits(encoding: Encoding, q_BHTK: Tensor, k_BHTK: Tensor, context: Context) -> Tensor:
    """scale * q.k + bias, (B, H, Q, S), of rotated q (the rows at hand) and k, before mask and softmax."""
    return encoding.biased(encoding.content(q_BHTK, k_BHTK, context), q_BHTK, k_BHTK, context)


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
    context = context.with_(masked=context.causal)
    return _explicit(encoding, *encoding.rotate(q_BHTK, k_BHTK, context.positions, context), v_BHTK, context)


def attend(encoding: Encoding, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
    """Attention by the fastest path that is equal to the reference: (B, H, T, K)."""
    context = context.with_(masked=context.causal)
    q, k = encoding.rotate(q_BHTK, k_BHTK, context.positions, context)
    scale = encoding.scale
    if isinstance(scale, Tensor):  # which the fused kernel does not take
        return _in_chunks(encoding, q, k, v_BHTK, context)
    if not set(encoding.changes()) - {"embed", "rotate"}:
        # Of q and k wider than v the kernel would make explicit logits; zeros beside v cost it next to nothing.
        wider = max(0, q.shape[-1] - v_BHTK.shape[-1])
        v = torch.nn.functional.pad(v_BHTK, (0, wider)) if wider else v_BHTK
        if _by_few_rows(q, context) and not torch.compiler.is_compiling():
            mixed = _causal_by_rows(q, k, v, scale)
        else:
            mixed = scaled_dot_product_attention(q, k, v, is_causal=context.causal, scale=scale)
        return mixed[..., : v_BHTK.shape[-1]]
    if torch.compiler.is_compiling():  # blocks and strides would be compiled anew for each length
        return _explicit(encoding, q, k, v_BHTK, context)
    if isinstance(encoding, DistanceBias) and context.positions is None and encoding.by_offset_alone(context):
        if encoding.learned and torch.is_grad_enabled():
            return _unfolded_bias(encoding, q, k, v_BHTK, context)
        return _view_of_bias(encoding, q, k, v_BHTK, context, scale)
    return _in_chunks(encoding, q, k, v_BHTK, context)


def masked_logits_by_rows(
    encoding: Encoding, q_BHTK: Tensor, k_BHTK: Tensor, context: Context, rows: int
) -> Iterator[tuple[slice, Tensor]]:
    """What softmax is given, a few queries at a time, for those who look at attention rather than use it.

    Args:
        encoding: one layer's encoding.
        q_BHTK, k_BHTK: as its projections leave them, not yet rotated.
        context: of all tokens.
        rows: queries at once. Memory grows as T times that.

    Yields:
        (the queries, their masked logits (B, H, Q, S)). S is T; in a causal model, where keys behind the last of these
        queries change nothing, it ends with that one.
    """
    context = context.with_(masked=context.causal)
    q, k = encoding.rotate(q_BHTK, k_BHTK, context.positions, context)
    T = context.length
    for start in range(0, T, rows):
        queries = slice(start, min(start + rows, T))
        part = _of_rows(encoding, context.with_(memo={}), queries)
        yield queries, _masked_logits(encoding, q[:, :, queries], k[:, :, : part.length], part)


def _of_rows(encoding: Encoding, context: Context, rows: slice) -> Context:
    """The context of these queries alone.

    Those of a causal model have no need of what follows them: they are taken as the last rows of a shorter sequence,
    unless the encoding asks how long the whole is.
    """
    by_prefix = context.causal and encoding.prefix_consistent
    return (context.prefix(rows.stop) if by_prefix else context).with_(rows=rows, parent=context)


def _masked_logits(encoding: Encoding, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
    scores = logits(encoding, q_BHQK, k_BHSK, context)
    hidden = context.hidden_QS
    if hidden is None:
        return scores
    mask_QS = torch.zeros(hidden.shape, dtype=scores.dtype, device=scores.device).masked_fill(hidden, -math.inf)
    if "bias" not in encoding.changes() or torch.compiler.is_compiling():
        return scores + mask_QS
    # A sum that nothing else has a use for. None of its columns up to that of the first query hides anything.
    first = context.rows.indices(context.length)[0] + 1
    return cast(Tensor, _Hide.apply(scores, mask_QS[:, first:], first))


class _Hide(torch.autograd.Function):
    """Add a mask to the last columns, in place: behind softmax the gradient of what it hides is 0 already."""

    @staticmethod
    def forward(ctx: Any, scores_BHQS: Tensor, mask_QS: Tensor, first: int) -> Tensor:
        ctx.mark_dirty(scores_BHQS)
        scores_BHQS[..., first:] += mask_QS
        return scores_BHQS

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, None, None


def _explicit(encoding: Encoding, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, context: Context) -> Tensor:
    weights = _masked_logits(encoding, q_BHQK, k_BHSK, context).softmax(dim=-1)
    return encoding.value(weights, v_BHSK, context)


def _in_chunks(encoding: Encoding, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
    """The explicit path a few queries at a time.

    Without gradients memory then grows as length times chunk; in training, where the graph keeps all of it anyway, few
    logits at a time stay in the cache.
    """
    B, H, T, _ = q_BHTK.shape
    by_prefix = context.causal and encoding.prefix_consistent
    rows = TRAINED_ROWS
    if not torch.is_grad_enabled():
        rows = max(1, min(CHUNK_ELEMENTS // (B * H * T), max(TRAINED_ROWS, CACHED_ELEMENTS // (B * H * T))))
    if rows >= T:
        return _explicit(encoding, q_BHTK, k_BHTK, v_BHTK, context)
    # Contiguous, or each product would copy its part of them.
    ends = [*range(rows, T, rows), T]
    parts = q_BHTK.contiguous().split(rows, dim=2)
    k, v = (_prefixes(x.contiguous(), ends if by_prefix else [T] * len(ends)) for x in (k_BHTK, v_BHTK))

    def rows_to(end: int, q_BHQK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
        part = _of_rows(encoding, context, slice(end - q_BHQK.shape[2], end))
        return _explicit(encoding, q_BHQK, k_BHSK, v_BHSK, part)

    blocks = zip(ends, parts, k, v, strict=True)
    if torch.is_grad_enabled():
        return torch.cat([rows_to(*block) for block in blocks], dim=2)
    # Into one tensor: kept one by one, they would lie between the ever larger ones that are made and freed meanwhile,
    # and the heap would grow with T^2 after all.
    mixed = v_BHTK.new_empty(v_BHTK.shape)
    for end, q, *kv in blocks:
        mixed[:, :, end - q.shape[2] : end] = rows_to(end, q, *kv)
    return mixed


class _Prefixes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BHTK: Tensor, ends: list[int]) -> tuple[Tensor, ...]:
        return tuple(x_BHTK[:, :, :end] for end in ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[-1].clone()  # which is not ours to change
        for gradient in gradients[:-1]:
            total[:, :, : gradient.shape[2]] += gradient
        return total, None


def _prefixes(x_BHTK: Tensor, ends: list[int]) -> tuple[Tensor, ...]:
    """x_BHTK[:, :, :end] for each end, the last of all: slices would each fill a whole tensor for their gradient."""
    return cast(tuple[Tensor, ...], _Prefixes.apply(x_BHTK, ends))


def _by_few_rows(q_BHTK: Tensor, context: Context) -> bool:
    """Whether the fused kernel is given FUSED_ROWS queries at a time."""
    in_training = context.causal and torch.is_grad_enabled()
    return in_training and q_BHTK.shape[2] > 2 * FUSED_ROWS and q_BHTK.device.type == "cpu"


def _causal_by_rows(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, scale: float) -> Tensor:
    """The fused kernel a few queries at a time, with the keys up to the last of them."""
    T = q_BHTK.shape[2]
    ends = [*range(FUSED_ROWS, T, FUSED_ROWS), T]
    # Of the last queries of all; that of others is its lower right corner.
    mask_QT = q_BHTK.new_full((FUSED_ROWS, T), -math.inf).triu(T - FUSED_ROWS + 1)
    blocks = []
    parts = zip(q_BHTK.split(FUSED_ROWS, dim=2), _prefixes(k_BHTK, ends), _prefixes(v_BHTK, ends), strict=True)
    for q, k, v in parts:
        mask_QS = mask_QT[-q.shape[2] :, -k.shape[2] :]
        blocks.append(scaled_dot_product_attention(q, k, v, attn_mask=mask_QS, scale=scale))
    return torch.cat(blocks, dim=2)


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
    rows = T
    if context.causal:
        rows = FUSED_ROWS if _by_few_rows(q_BHTK, context) else max(BLOCK_ROWS, min(T // 16, 1024))
    ends = [*range(rows, T, rows), T]
    blocks = []
    for end, q, k, v in zip(
        ends, q_BHTK.split(rows, dim=2), _prefixes(k_BHTK, ends), _prefixes(v_BHTK, ends), strict=True
    ):
        size = (1, H, q.shape[2], k.shape[2])
        mask = bias_HN.as_strided(size, strides, bias_HN.storage_offset() + T - end)
        if mask.device.type != "cpu":
            mask = _aligned(mask)
        blocks.append(scaled_dot_product_attention(q.flip(2), k, v, attn_mask=mask, scale=scale).flip(2))
    return torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0]


def _aligned(mask_1HQS: Tensor) -> Tensor:
    """The same numbers in memory of their own, each row at a multiple of 8: kernels of CUDA read a mask in such steps,
    and copy or refuse one whose rows begin anywhere."""
    S = mask_1HQS.shape[-1]
    rows = mask_1HQS.new_empty(*mask_1HQS.shape[:-1], -(-S // 8) * 8)
    return rows[..., :S].copy_(mask_1HQS)


def _unfold(bias_HN: Tensor) -> Tensor:
    """Biases of the offsets -(T-1)..T-1 to the matrix (H, T, T) with that of j - i at (i, j).

    T copies of the vector and one number more, each of 2T, are cut into rows of 2T - 1, so that each row begins one
    entry earlier than the one before. The gradient is then a sum over rows, which is faster and more exact than one of
    an index that repeats.
    """
    T = (bias_HN.shape[1] + 1) // 2
    repeated = torch.nn.functional.pad(bias_HN, (0, 1))[:, None].expand(-1, T, -1).flatten(1)
    return repeated[:, T - 1 :][:, : T * (2 * T - 1)].unflatten(1, (T, 2 * T - 1))[..., :T]


def _unfolded_bias(encoding: DistanceBias, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, context: Context) -> Tensor:
    """Explicit logits; the fused kernel has no gradient for its mask but on a path that is slower than this one.

    Few rows are taken at a time, whose logits stay in the cache. A causal model leaves out the keys after each block.
    """
    T = q_BHTK.shape[2]
    key = (encoding, "bias_HTT")
    if key not in context.memo:
        context.memo[key] = _unfold(encoding.of_all_offsets(T, context.causal, q_BHTK.device, q_BHTK.dtype))
    # Contiguous, or each product would copy its part of them.
    q, bias = q_BHTK.contiguous().split(TRAINED_ROWS, dim=2), context.memo[key].split(TRAINED_ROWS, dim=1)
    ends = [*range(TRAINED_ROWS, T, TRAINED_ROWS), T] if context.causal else [T] * len(q)
    k, v = (_prefixes(x.contiguous(), ends) for x in (k_BHTK, v_BHTK))
    blocks = []
    for q_BHQK, k_BHSK, v_BHSK, bias_HQT in zip(q, k, v, bias, strict=True):
        scores = encoding.content(q_BHQK, k_BHSK, context)
        scores += bias_HQT[..., : k_BHSK.shape[2]]
        blocks.append(scores.softmax(dim=-1) @ v_BHSK)
    return torch.cat(blocks, dim=2)
