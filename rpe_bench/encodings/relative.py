"""Terms of a query or a key with a vector of the offset: from one vector an offset to logits, from weights to values.

What all encodings share that give an offset a vector R_n rather than a number: Shaw et al. 2018 (arXiv 1803.02155), Dai
et al. 2019 (arXiv 1901.02860), He et al. 2020 (arXiv 2006.03654) and their kin. With no positions given, offsets run
through consecutive numbers along each row, so that a row of scores q_i . R_n (one a distinct offset) becomes a row of
logits by a shift, which is a strided view: no index, no scatter in the gradient. That is done for a few rows at a time.

Besides the shapes of rpe_bench.encodings.base:

    X  rows that have vectors: queries, or keys     Y  the others     M  rows of a table     N  consecutive offsets
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rpe_bench.encodings.base import Cache, Context, check_base, single_axis, whole
from rpe_bench.encodings.sinusoidal import angles

TILE_ROWS = 32
"""Rows shifted at once. They meet Y + TILE_ROWS - 1 distinct offsets, against X + Y - 1 of all rows together."""


def query_logits(q_BHQK: Tensor, table: Tensor, first: int, context: Context) -> Tensor:
    """q_i . R_n with n the row of the offset j - i: (B, H, Q, S).

    Args:
        q_BHQK: the rows at hand.
        table: R, (M, K) or (1, M, K) for all heads or (H, M, K), of the whole offsets first..first+M-1; the offsets
            beyond them take the first and the last row.
        first: offset of the table's first row.
        context: positions None, or whole numbers (T,), (B, T) or (B, T, 1).
    """
    table = _one_if_shared(table).to(q_BHQK.dtype)
    if _by_shift(context):
        return _shifted(q_BHQK, table, Shift(first, -_start(context)), context.length)
    scores_BHQM = q_BHQK @ table.mT
    return scores_BHQM.gather(-1, _rows(context, table, first).expand(*q_BHQK.shape[:3], -1))


def key_logits(k_BHSK: Tensor, table: Tensor, first: int, context: Context) -> Tensor:
    """k_j . R_n with n the row of i - j, the offset as a key sees it: (B, H, Q, S). Arguments as of `query_logits`."""
    table = _one_if_shared(table).to(k_BHSK.dtype)
    if _by_shift(context):
        start = _start(context)
        queries = len(range(context.length)[context.rows])
        return _shifted(k_BHSK, table, Shift(first, start), queries, transposed=True)
    scores_BHSM = k_BHSK @ table.mT
    rows = _rows(context, table, first, of_keys=True)
    return scores_BHSM.gather(-1, rows.mT.expand(*k_BHSK.shape[:3], -1)).mT


def mixed_values(weights_BHQS: Tensor, v_BHSK: Tensor, table: Tensor, first: int, context: Context) -> Tensor:
    """Sum over j of weight_ij (v_j + R_n) with n the row of j - i: (B, H, Q, K). Arguments as of `query_logits`.

    Weights are summed by row of the table first, and only then meet its vectors.
    """
    table = _one_if_shared(table).to(weights_BHQS.dtype)
    if _by_shift(context):
        shift = Shift(first, -_start(context))
        return cast(Tensor, _Mix.apply(weights_BHQS, v_BHSK, table, shift))
    rows = _rows(context, table, first).expand(*weights_BHQS.shape)
    sums_BHQM = weights_BHQS.new_zeros(*weights_BHQS.shape[:3], table.shape[-2]).scatter_add(-1, rows, weights_BHQS)
    return weights_BHQS @ v_BHSK + sums_BHQM @ table


def sinusoid_blocks(positions: Tensor, width: int, base: float) -> Tensor:
    """[sin(p w_0), sin(p w_1), ... | cos(p w_0), cos(p w_1), ...] with w_t = base^(-2t/width): (...) to (..., width).

    In float64; width is even.
    """
    found = angles(positions, width, base)
    return torch.cat((found.sin(), found.cos()), dim=-1)


class SinusoidTerm:
    """q_i . (W r(i - j)), with r the sinusoid of the distance in blocks.

    Args:
        width: D, of the sinusoid.
        base: of the sinusoid.
        clamp: distances beyond it count as it, on either side; None for no end.
    """

    def __init__(self, width: int, base: float, clamp: int | None = None) -> None:
        if width % 2:
            raise ValueError(f"sinusoids come in pairs: a width of {width} is odd")
        check_base(base)
        if clamp is not None and clamp < 1:
            raise ValueError(f"clamp_len={clamp} must be at least 1, or null")
        self.width = width
        self.base = base
        self.clamp = clamp
        self._cache = Cache()

    def logits(self, q_BHQK: Tensor, weight_HDK: Tensor, context: Context) -> Tensor:
        """(B, H, Q, S), of the rows at hand and one matrix W a head; at any positions, fractions included.

        Positions that are given may hold any offsets, T^2 of them. There r(i - j) is taken apart by the angles' sum:
        (W^T q_i) . r(i - j) is the product of W^T q_i, turned by the angles of i, with the sinusoid of j alone.
        """
        if _by_shift(context):
            low, high = reach(context)
            if self.clamp is not None:
                low, high = max(low, -self.clamp), min(high, self.clamp)
            table_HMK = self._sinusoids(low, high, q_BHQK) @ weight_HDK.to(q_BHQK.dtype)
            return query_logits(q_BHQK, table_HMK, low, context)
        weight_HDK = weight_HDK.to(q_BHQK.dtype)
        along_sin, along_cos = (q_BHQK @ weight_HDK.mT).chunk(2, dim=-1)
        sin_i, cos_i = self._turns(context.query_positions, q_BHQK.dtype)
        sin_j, cos_j = self._turns(context.key_positions, q_BHQK.dtype)
        # a sin(i - j) + b cos(i - j) = (a sin i + b cos i) cos j + (b sin i - a cos i) sin j
        turned = torch.cat((along_sin * sin_i + along_cos * cos_i, along_cos * sin_i - along_sin * cos_i), dim=-1)
        found = turned @ torch.cat((cos_j, sin_j), dim=-1).mT
        if self.clamp is None:
            return found
        distance = -_offset(context)
        ends = torch.tensor([self.clamp, -self.clamp], device=q_BHQK.device)
        ends_H2K = sinusoid_blocks(ends, self.width, self.base).to(q_BHQK.dtype) @ weight_HDK
        past, future = (q_BHQK @ ends_H2K.mT).split(1, dim=-1)
        return torch.where(distance > self.clamp, past, torch.where(distance < -self.clamp, future, found))

    def _sinusoids(self, low: int, high: int, like: Tensor) -> Tensor:
        """r(-offset) of the offsets low..high, (M, D), from a table whose size is a power of two."""
        size = 2 ** max(-low, high, 1).bit_length()
        table = self._cache.get(
            (self.width, self.base, size, like.device, like.dtype),
            lambda: sinusoid_blocks(torch.arange(size, -size - 1, -1, device=like.device), self.width, self.base).to(
                like.dtype
            ),
        )
        return table[low + size : high + size + 1]

    def _turns(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Sines and cosines, (T, D/2) or (B, 1, T, D/2)."""
        found = angles(single_axis(positions), self.width, self.base)
        if found.dim() == 3:
            found = found[:, None]
        return found.sin().to(dtype), found.cos().to(dtype)


def reach(context: Context) -> tuple[int, int]:
    """The least and the greatest offset j - i of the rows at hand; of whole numbers, where positions are given."""
    if context.positions is None:
        start, stop, _ = context.rows.indices(context.length)
        return 1 - stop, context.length - 1 - start
    low, high = whole(_offset(context)).aminmax()
    return int(low), int(high)


def _by_shift(context: Context) -> bool:
    """Whether rows of logits are made by a shift, whose tiles a compiler would have to compile anew for each length."""
    return context.positions is None and not torch.compiler.is_compiling()


def _one_if_shared(table: Tensor) -> Tensor:
    return table[0] if table.dim() == 3 and len(table) == 1 else table


def _start(context: Context) -> int:
    """The index of the first query at hand."""
    return context.rows.indices(context.length)[0]


def _offset(context: Context) -> Tensor:
    """Key position minus query position, (Q, S) or (B, 1, Q, S)."""
    offset = context.offset
    if offset.dim() == 4:
        offset = single_axis(offset)
    return offset[:, None] if offset.dim() == 3 else offset


def _rows(context: Context, table: Tensor, first: int, of_keys: bool = False) -> Tensor:
    """The table's row of each pair, by j - i or, of keys, by i - j: (Q, S) or (B, 1, Q, S)."""
    offset = whole(_offset(context))
    if of_keys:
        offset = -offset
    return (offset - first).clamp(0, table.shape[-2] - 1)


class Shift(NamedTuple):
    """Which row of a table goes where: that of the offset y - x + by, for row x and column y."""

    first: int
    """Offset of the table's first row."""
    by: int


class _Tile(NamedTuple):
    """Rows start..stop-1 of scores or weights, and the columns begin..end-1 of theirs that are shifted: each row meets
    those before with the first row of the table, and those after with the last.

    Shifted columns have consecutive offsets: `left` before the table rows low..high-1, then those, then `right` after.
    """

    start: int
    stop: int
    begin: int
    end: int
    low: int
    high: int
    left: int
    right: int
    clipped: bool
    """Whether the table's ends stand for anything beyond them."""

    @property
    def offsets(self) -> int:
        return self.left + self.high - self.low + self.right


def _tiles(X: int, Y: int, M: int, shift: Shift) -> Iterator[_Tile]:
    by = shift.by - shift.first  # row x meets column y at the row y - x + by of the table, or at one of its ends
    for start in range(0, X, TILE_ROWS):
        stop = min(start + TILE_ROWS, X)
        # Of the columns that are of one end for every row, the last and the first count as shifted.
        begin = min(max(start - by, 0), Y - 1)
        end = min(max(stop - 1 + M - 1 - by, 0), Y - 1) + 1
        smallest, largest = begin - (stop - 1) + by, end - 1 - start + by
        low, high = min(max(smallest, 0), M - 1), min(max(largest, 0), M - 1) + 1
        left = min(max(-smallest, 0), largest - smallest)
        right = largest - smallest + 1 - left - (high - low)
        clipped = bool(begin or left or right or end < Y)
        yield _Tile(start, stop, begin, end, low, high, left, right, clipped)


def _by_row(scores_BHXN: Tensor) -> Tensor:
    """Row x, column y of the view (B, H, X, Y) is the score y + X - 1 - x of row x: each row one further left."""
    X, N = scores_BHXN.shape[-2:]
    if X == 1:
        return scores_BHXN
    return scores_BHXN.flatten(-2)[..., X - 1 : X * N - 1].unflatten(-1, (X, N - 1))[..., : N - X + 1]


def _place(x_HBXK: Tensor, table: Tensor, shift: Shift, out_HBXY: Tensor) -> None:
    """out_xy = x . R[y - x + shift]."""
    H, B, X, _ = x_HBXK.shape
    for tile in _tiles(X, out_HBXY.shape[-1], table.shape[-2], shift):
        out = out_HBXY[:, :, tile.start : tile.stop]
        scores = _times(x_HBXK[:, :, tile.start : tile.stop], table[..., tile.low : tile.high, :].mT)
        if tile.clipped:
            first, last = scores[..., :1], scores[..., -1:]
            out[..., : tile.begin], out[..., tile.end :] = first, last
            ends = first.expand(-1, -1, -1, tile.left), last.expand(-1, -1, -1, tile.right)
            scores = torch.cat((ends[0], scores, ends[1]), dim=-1)
        out[..., tile.begin : tile.end] = _by_row(scores)


def _collect(weights_HBXY: Tensor, M: int, shift: Shift) -> Iterator[tuple[slice, slice, Tensor]]:
    """The sums of weights by row of the table, tile by tile: rows of weights, rows of the table, sums."""
    H, B, X, Y = weights_HBXY.shape
    for tile in _tiles(X, Y, M, shift):
        rows, held = slice(tile.start, tile.stop), slice(tile.low, tile.high)
        weights = weights_HBXY[:, :, rows]
        # What lies outside the view by row stays zero.
        by_offset = weights.new_zeros(H, B, tile.stop - tile.start, tile.offsets)
        _by_row(by_offset).copy_(weights[..., tile.begin : tile.end])
        if not tile.clipped:
            yield rows, held, by_offset
            continue
        left, within, right = by_offset.split((tile.left, tile.high - tile.low, tile.right), dim=-1)
        sums = within.clone(memory_format=torch.contiguous_format)
        sums[..., 0] += left.sum(-1) + weights[..., : tile.begin].sum(-1)
        sums[..., -1] += right.sum(-1) + weights[..., tile.end :].sum(-1)
        yield rows, held, sums


def _times(rows_HBXM: Tensor, table: Tensor) -> Tensor:
    """Rows times a matrix (M, N) of all heads, or (H, M, N): one product a matrix, however many the examples."""
    H, B, X, _ = rows_HBXM.shape
    shape = (H * B * X, -1) if table.dim() == 2 else (H, B * X, -1)
    return (rows_HBXM.reshape(shape) @ table).view(H, B, X, -1)


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BHXK: Tensor, table: Tensor, shift: Shift, Y: int, transposed: bool) -> Tensor:
        ctx.save_for_backward(x_BHXK, table)
        ctx.shift, ctx.transposed = shift, transposed
        B, H, X, _ = x_BHXK.shape
        out = x_BHXK.new_empty((B, H, Y, X) if transposed else (B, H, X, Y))
        by_row = out.mT if transposed else out
        _place(x_BHXK.transpose(0, 1), table, shift, by_row.transpose(0, 1))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_BHXK, table = ctx.saved_tensors
        need_x, need_table = ctx.needs_input_grad[:2]
        of_x = torch.empty_like(x_BHXK) if need_x else None
        of_table = torch.zeros_like(table, memory_format=torch.contiguous_format) if need_table else None
        by_row = gradient.mT if ctx.transposed else gradient
        for rows, held, sums in _collect(by_row.transpose(0, 1), table.shape[-2], ctx.shift):
            if of_x is not None:
                of_x[:, :, rows] = _times(sums, table[..., held, :]).transpose(0, 1)
            if of_table is not None:
                last = (0, 2) if table.dim() == 2 else (1, 2)
                x = x_BHXK[:, :, rows].transpose(0, 1).flatten(*last)
                of_table[..., held, :] += sums.flatten(*last).mT @ x
        return of_x, of_table, None, None, None


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights_BHXY: Tensor, v_BHYK: Tensor, table: Tensor, shift: Shift) -> Tensor:
        sums_BHXM = weights_BHXY.new_zeros(*weights_BHXY.shape[:3], table.shape[-2])
        for rows, held, sums in _collect(weights_BHXY.transpose(0, 1), table.shape[-2], shift):
            sums_BHXM[:, :, rows, held] = sums.transpose(0, 1)
        ctx.save_for_backward(weights_BHXY, v_BHYK, table, sums_BHXM)
        ctx.shift = shift
        mixed = weights_BHXY @ v_BHYK
        mixed += sums_BHXM @ table
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights_BHXY, v_BHYK, table, sums_BHXM = ctx.saved_tensors
        need_weights, need_v, need_table = ctx.needs_input_grad[:3]
        of_weights, of_v, of_table = None, None, None
        if need_weights:
            of_weights = torch.empty_like(weights_BHXY, memory_format=torch.contiguous_format)
            _place(gradient.transpose(0, 1), table, ctx.shift, of_weights.transpose(0, 1))
            of_weights.flatten(0, 1).baddbmm_(gradient.flatten(0, 1), v_BHYK.flatten(0, 1).mT)
        if need_v:
            of_v = weights_BHXY.mT @ gradient
        if need_table:
            last = (0, 2) if table.dim() == 2 else (1, 2)
            sums, mixed = (tensor.transpose(0, 1).flatten(*last) for tensor in (sums_BHXM, gradient))
            of_table = sums.mT @ mixed
        return of_weights, of_v, of_table, None


def _shifted(x_BHXK: Tensor, table: Tensor, shift: Shift, Y: int, transposed: bool = False) -> Tensor:
    return cast(Tensor, _Place.apply(x_BHXK, table, shift, Y, transposed))
