"""How logits and outputs of attention are computed: a plain reference path, and fast paths that tests hold equal to it.

Attention is rotate -> scale * q.k -> + bias -> mask -> softmax -> value, for every encoding. `attend` picks the path:

    no bias                                  the fused kernel, causal or not; in training a few queries at a time
    bias of distance, fixed or not training  the fused kernel with a mask that is a view of one vector of 2T - 1 numbers
    bias of distance, learned, in training   explicit logits a few queries at a time, with a gradient of their own
    any of these, training in bfloat16       that with products in bfloat16; on a GPU without a bias, the fused kernel
    anything else, and any given positions   explicit logits, in chunks of rows where the sequence is long

Shapes as in rpe_bench.encodings.base.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
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

TRAINED_ROWS_BF16 = 64
"""The same where products are in bfloat16."""

KEPT_ELEMENTS = 2**27
"""Weights that a layer keeps for the backward pass where the fused kernel would keep none: 256 MiB in bfloat16."""


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
    """Attention by the fastest path that is equal to the reference: (B, H, T, K).

    q, k and v may be bfloat16, as projections leave them under autocast. Then the two products are made in bfloat16
    where a path has them so, and all else is in float32: rotations, terms that depend on content, softmax.
    """
    context = context.with_(masked=context.causal)
    places, scale = set(encoding.changes()), encoding.scale
    exact = torch.promote_types(v_BHTK.dtype, torch.float32)
    if "rotate" in places:
        q_BHTK, k_BHTK = q_BHTK.to(exact), k_BHTK.to(exact)
    q, k = encoding.rotate(q_BHTK, k_BHTK, context.positions, context)
    wider = max(0, q.shape[-1] - v_BHTK.shape[-1])
    # What is added to q and k beside their features may be a sum that bfloat16 is too coarse for.
    v = v_BHTK.to(exact) if wider else v_BHTK
    on_gpu, compiled = v.device.type != "cpu", torch.compiler.is_compiling()

    def qkv(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        return q.to(dtype), k.to(dtype), v.to(dtype)

    if isinstance(scale, Tensor):  # which the fused kernel does not take
        return _in_chunks(encoding, *qkv(exact), context)
    if not places - {"embed", "rotate"}:
        if not on_gpu and not compiled and _by_bfloat16(v):
            return _by_rows(q, k, v, None, scale, context)
        # The kernel of a GPU is made for bfloat16, that of a CPU is slower in it.
        q, k, v = qkv(v.dtype if on_gpu else exact)
        # Of q and k wider than v the kernel would make explicit logits; zeros beside v cost it next to nothing.
        v = torch.nn.functional.pad(v, (0, wider)) if wider else v
        if _by_few_rows(q, context) and not compiled:
            mixed = _causal_by_rows(q, k, v, scale)
        else:
            mixed = scaled_dot_product_attention(q, k, v, is_causal=context.causal, scale=scale)
        return mixed[..., : v_BHTK.shape[-1]]
    if compiled:  # blocks and strides would be compiled anew for each length
        return _explicit(encoding, *qkv(exact), context)
    if isinstance(encoding, DistanceBias) and context.positions is None and encoding.by_offset_alone(context):
        if torch.is_grad_enabled() and encoding.learned or _by_bfloat16(v) and _sees_itself(encoding, context):
            return _by_rows(q, k, v, _unfolded(encoding, context, exact), scale, context)
        return _view_of_bias(encoding, *qkv(exact), context, scale)
    return _in_chunks(encoding, *qkv(exact), context)


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
    if context.causal and "bias" in encoding.changes() and not torch.compiler.is_compiling():
        # A sum that nothing else has a use for. None of its columns up to that of the first query hides anything.
        return cast(Tensor, _Hide.apply(scores, context.rows.indices(context.length)[0] + 1))
    hidden = context.hidden_QS
    if hidden is None:
        return scores
    return scores + torch.zeros(hidden.shape, dtype=scores.dtype, device=scores.device).masked_fill(hidden, -math.inf)


class _Hide(torch.autograd.Function):
    """Mask the columns that follow the first query's, in place: behind softmax the gradient there is 0 already."""

    @staticmethod
    def forward(ctx: Any, scores_BHQS: Tensor, first: int) -> Tensor:
        ctx.mark_dirty(scores_BHQS)
        last = scores_BHQS[..., first:]
        last.add_(last.new_full(last.shape[-2:], -math.inf).triu())
        return scores_BHQS

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


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
    ends = _ends(T, rows)
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


def _ends(length: int, rows: int) -> list[int]:
    """Where each block of so many queries ends."""
    return [*range(rows, length, rows), length]


class _Prefixes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BHTK: Tensor, ends: list[int]) -> tuple[Tensor, ...]:
        return tuple(x_BHTK[:, :, :end] for end in ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[-1].clone()  # which is not ours to change
        for gradient in gradients[:-1]:
            total[:, :, : gradient.shape[2]].add_(gradient)
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
    ends = _ends(T, FUSED_ROWS)
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
    ends = _ends(T, rows)
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


def _unfolded(encoding: DistanceBias, context: Context, dtype: torch.dtype) -> Tensor:
    """The bias (H, T, T) or (1, T, T), minus infinity where a causal model hides; made once for the layers that share
    it."""

    def unfolded() -> Tensor:
        return _unfold(encoding.of_all_offsets(context.length, context.causal, context.device, dtype))

    bias_HTT: Tensor = context.once((encoding, "bias_HTT"), unfolded)
    return bias_HTT


def _by_bfloat16(v_BHTK: Tensor) -> bool:
    """Whether training makes explicit logits in bfloat16, where it could do without."""
    B, H, T, _ = v_BHTK.shape
    return torch.is_grad_enabled() and v_BHTK.dtype == torch.bfloat16 and B * H * T * T <= KEPT_ELEMENTS


def _sees_itself(encoding: DistanceBias, context: Context) -> bool:
    """Whether each query does. One that sees nothing gets zeros by the fused kernel, no numbers by explicit logits."""

    def sees_itself() -> bool:
        return not encoding.of_offset(torch.zeros(1, dtype=torch.long, device=context.device)).isneginf().any()

    found: bool = context.once((encoding, "sees itself"), sees_itself)
    return found


def _by_rows(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, bias_HTT: Tensor | None, scale: float, context: Context
) -> Tensor:
    """Explicit logits in training, without a bias or with one of distance. It is faster than to give the fused kernel
    a mask that learns, for which that has no gradient but on a slower path; and in bfloat16 than the fused kernel."""
    T = q_BHTK.shape[2]
    if bias_HTT is None and context.causal:
        bias_HTT = context.once("mask_1TT", lambda: v_BHTK.new_full((1, T, T), -math.inf).triu(1))
    return cast(Tensor, _ByRows.apply(q_BHTK, k_BHTK, v_BHTK, bias_HTT, scale, context.causal))


class _ByRows(torch.autograd.Function):
    """softmax(scale * q.k + bias) v of a few queries at a time, so that their logits stay in the cache.

    Products are of the dtype of v, and nothing else is: the sum of a product with the bias is of that of the bias. In a
    causal model, whose bias is minus infinity where the mask hides, the keys that follow a block are left out.

    Shapes: N is B * H. What a product meets that is not in one piece it copies; what two of them meet is copied once.
    """

    @staticmethod
    def forward(
        ctx: Any, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, bias_HTT: Tensor | None, scale: float, causal: bool
    ) -> Tensor:
        dtype, (B, H, T, _) = v_BHTK.dtype, q_BHTK.shape
        rows = TRAINED_ROWS_BF16 if dtype == torch.bfloat16 else TRAINED_ROWS
        if v_BHTK.device.type != "cpu":  # which has less to gain by its cache than to lose by many small calls
            rows = T
        ends = _ends(T, rows)
        k_NTK, v_NTK = (_in_one_piece(x, dtype) for x in (k_BHTK, v_BHTK))
        mixed_BTHK = v_BHTK.new_empty(B, T, H, v_BHTK.shape[3])
        blocks = []
        for end, q_BHQK in zip(ends, q_BHTK.split(rows, dim=2), strict=True):
            queries, keys = slice(end - q_BHQK.shape[2], end), slice(end if causal else T)
            q_NQK = _in_one_piece(scale * q_BHQK, dtype)
            logits_BHQS = torch.bmm(q_NQK, k_NTK[:, keys].mT).unflatten(0, (B, H))
            if bias_HTT is not None:
                logits_BHQS = logits_BHQS.to(bias_HTT.dtype)
                logits_BHQS += bias_HTT[:, queries, keys]
            weights_NQS = logits_BHQS.softmax(dim=-1).to(dtype).flatten(0, 1)
            mixed_BTHK[:, queries] = torch.bmm(weights_NQS, v_NTK[:, keys]).unflatten(0, (B, H)).transpose(1, 2)
            blocks.append((q_NQK, weights_NQS))
        ctx.save_for_backward(k_NTK, v_NTK, *itertools.chain(*blocks))
        ctx.rows, ctx.scale, ctx.bias = rows, scale, bias_HTT
        return mixed_BTHK.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BHTK: Tensor) -> tuple[Tensor | None, ...]:
        B, H, T, _ = gradient_BHTK.shape
        k_NTK, v_NTK, *blocks = ctx.saved_tensors
        of_q_NTK, of_k_NTK, of_v_NTK = torch.empty_like(k_NTK), torch.zeros_like(k_NTK), torch.zeros_like(v_NTK)
        of_bias_HTT = torch.zeros_like(ctx.bias) if ctx.needs_input_grad[3] else None
        for start, q_NQK, weights_NQS, gradient_BHQK in zip(
            range(0, T, ctx.rows), blocks[::2], blocks[1::2], gradient_BHTK.split(ctx.rows, dim=2), strict=True
        ):
            of_mixed_NQK = _in_one_piece(gradient_BHQK, v_NTK.dtype)
            queries, keys = slice(start, start + ctx.rows), slice(weights_NQS.shape[2])
            of_weights_NQS = torch.bmm(of_mixed_NQK, v_NTK[:, keys].mT)
            of_logits_NQS = torch._softmax_backward_data(of_weights_NQS, weights_NQS, -1, weights_NQS.dtype)
            of_q_NTK[:, queries] = torch.bmm(of_logits_NQS, k_NTK[:, keys])
            of_k_NTK[:, keys] += torch.bmm(of_logits_NQS.mT, q_NQK)
            of_v_NTK[:, keys] += torch.bmm(weights_NQS.mT, of_mixed_NQK)
            if of_bias_HTT is not None:
                of_heads = of_logits_NQS.unflatten(0, (B, H)).sum(0, dtype=of_bias_HTT.dtype)
                of_bias_HTT[:, queries, keys] = of_heads.sum_to_size(len(of_bias_HTT), *of_heads.shape[1:])
        of_qkv = (x.unflatten(0, (B, H)) for x in (of_q_NTK.mul_(ctx.scale), of_k_NTK, of_v_NTK))
        return *of_qkv, of_bias_HTT, None, None


def _in_one_piece(x_BHTK: Tensor, dtype: torch.dtype) -> Tensor:
    """(B * H, T, K), contiguous and of that dtype, by one pass."""
    if x_BHTK.dtype != dtype or not x_BHTK.is_contiguous():
        x_BHTK = torch.empty(x_BHTK.shape, dtype=dtype, device=x_BHTK.device).copy_(x_BHTK)
    return x_BHTK.flatten(0, 1)
