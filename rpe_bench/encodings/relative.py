"""Terms of a query or a key with a vector of the offset: from one vector an offset to logits, from weights to values.

What all encodings share that give an offset a vector R_n rather than a number: Shaw et al. 2018 (arXiv 1803.02155), Dai
et al. 2019 (arXiv 1901.02860), He et al. 2020 (arXiv 2006.03654) and their kin. With no positions given, offsets run
through consecutive numbers along each row, so that a row of scores q_i . R_n (one a distinct offset) becomes a row of
logits by a shift, which is a strided view: no index, no scatter in the gradient. That is done for a few rows at a time,
and written onto the logits of content, since what costs is each pass over all of them.

Besides the shapes of rpe_bench.encodings.base:

    X  rows that have vectors: queries, or keys     Y  the others     M  rows of a table     N  consecutive offsets
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from rpe_bench.encodings.base import Cache, Context, Encoding, check_base, single_axis, whole
from rpe_bench.encodings.sinusoidal import angles

TILE_ROWS = 32
"""Rows shifted at once. They meet Y + TILE_ROWS - 1 distinct offsets, against X + Y - 1 of all rows together."""

KEY_ROWS = 16
"""Keys shifted at once, of few queries: each meets Y + KEY_ROWS - 1 offsets."""


class RelativeBias(Encoding):
    """A bias of terms with a vector of the offset: define `add`, which writes them onto the logits of content.

    `content` is then a tensor that its own gradient does not need.
    """

    @abstractmethod
    def add(self, logits_BHQS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        """The logits with the bias; they may be changed in place."""

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        return self.add(q_BHQK.new_zeros(*q_BHQK.shape[:3], context.length), q_BHQK, k_BHSK, context)

    def biased(self, content_BHQS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        if type(self).bias is not RelativeBias.bias:  # which a subclass has amended
            return super().biased(content_BHQS, q_BHQK, k_BHSK, context)
        return self.add(content_BHQS, q_BHQK, k_BHSK, context)


def add_query_logits(logits_BHQS: Tensor, q_BHQK: Tensor, table: Tensor, first: int, context: Context) -> Tensor:
    """The logits and q_i . R_n, n the row of the offset j - i; in place.

    Args:
        logits_BHQS: of anything else.
        q_BHQK: the rows at hand.
        table: R, (M, K) or (1, M, K) for all heads or (H, M, K), of the whole offsets first..first+M-1; the offsets
            beyond them take the first and the last row.
        first: offset of the table's first row.
        context: positions None, or whole numbers (T,), (B, T) or (B, T, 1).
    """
    table = _one_if_shared(table).to(q_BHQK.dtype)
    if _by_shift(context):
        shift = Shift(first, -_start(context), context.masked)
        return cast(Tensor, _AddOfQueries.apply(logits_BHQS, q_BHQK, table, shift))
    scores_BHQM = q_BHQK @ table.mT
    return logits_BHQS + scores_BHQM.gather(-1, _rows(context, table, first).expand(*q_BHQK.shape[:3], -1))


def add_key_logits(logits_BHQS: Tensor, k_BHSK: Tensor, table: Tensor, first: int, context: Context) -> Tensor:
    """The logits and k_j . R_n, n the row of i - j, the offset as a key sees it. Arguments as of `add_query_logits`."""
    table = _one_if_shared(table).to(k_BHSK.dtype)
    if _by_shift(context):
        return cast(Tensor, _AddOfKeys.apply(logits_BHQS, k_BHSK, table, _start(context) - first))
    scores_BHSM = k_BHSK @ table.mT
    rows = _rows(context, table, first, of_keys=True)
    return logits_BHQS + scores_BHSM.gather(-1, rows.mT.expand(*k_BHSK.shape[:3], -1)).mT


def mixed_values(weights_BHQS: Tensor, v_BHSK: Tensor, table: Tensor, first: int, context: Context) -> Tensor:
    """Sum over j of weight_ij (v_j + R_n) with n the row of j - i: (B, H, Q, K). Arguments as of `add_query_logits`.

    Weights are summed by row of the table first, and only then meet its vectors.
    """
    table = _one_if_shared(table).to(weights_BHQS.dtype)
    if _by_shift(context):
        shift = Shift(first, -_start(context), context.masked)
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

    def add(self, logits_BHQS: Tensor, q_BHQK: Tensor, weight_HDK: Tensor, context: Context) -> Tensor:
        """The logits and the term, of the rows at hand and one matrix W a head; at any positions, fractions included.

        Positions that are given may hold any offsets, T^2 of them. There r(i - j) is taken apart by the angles' sum:
        (W^T q_i) . r(i - j) is the product of W^T q_i, turned by the angles of i, with the sinusoid of j alone.
        """
        if _by_shift(context):
            low, high = reach(context.uncut)
            if self.clamp is not None:
                low, high = max(low, -self.clamp), min(high, self.clamp)
            table_HMK = context.once((self, low, high), lambda: self._table(low, high, q_BHQK, weight_HDK))
            return add_query_logits(logits_BHQS, q_BHQK, table_HMK, low, context)
        weight_HDK = weight_HDK.to(q_BHQK.dtype)
        along_sin, along_cos = (q_BHQK @ weight_HDK.mT).chunk(2, dim=-1)
        sin_i, cos_i = self._turns(context.query_positions, q_BHQK.dtype)
        sin_j, cos_j = self._turns(context.key_positions, q_BHQK.dtype)
        # a sin(i - j) + b cos(i - j) = (a sin i + b cos i) cos j + (b sin i - a cos i) sin j
        turned = torch.cat((along_sin * sin_i + along_cos * cos_i, along_cos * sin_i - along_sin * cos_i), dim=-1)
        found = turned @ torch.cat((cos_j, sin_j), dim=-1).mT
        if self.clamp is None:
            return logits_BHQS + found
        distance = -_offset(context)
        ends = torch.tensor([self.clamp, -self.clamp], device=q_BHQK.device)
        ends_H2K = sinusoid_blocks(ends, self.width, self.base).to(q_BHQK.dtype) @ weight_HDK
        past, future = (q_BHQK @ ends_H2K.mT).split(1, dim=-1)
        clamped = torch.where(distance > self.clamp, past, torch.where(distance < -self.clamp, future, found))
        return logits_BHQS + clamped

    def _table(self, low: int, high: int, q_BHQK: Tensor, weight_HDK: Tensor) -> Tensor:
        """W r of the offsets low..high, (H, M, K)."""
        return self._sinusoids(low, high, q_BHQK) @ weight_HDK.to(q_BHQK.dtype)

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
    """The least and the greatest offset j - i of the rows at hand; of whole numbers, where positions are given.

    Where what follows a query is masked, only the offsets up to 0, if no positions are given.
    """
    if context.positions is None:
        start, stop, _ = context.rows.indices(context.length)
        return 1 - stop, 0 if context.masked else context.length - 1 - start
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
    masked: bool
    """Whether offsets above 0 are hidden: their logits may be anything, their weights and gradients are 0."""


class _Tile(NamedTuple):
    """Rows start..stop-1 of logits or weights, and the columns begin..end-1 of theirs that are shifted: each row meets
    those before with the first row of the table, and those after, up to seen-1, with the last.

    Shifted columns have consecutive offsets: `left` before the table rows low..high-1, then those, then `right` after.
    """

    start: int
    stop: int
    begin: int
    end: int
    seen: int
    low: int
    high: int
    left: int
    right: int


def _tiles(X: int, Y: int, M: int, shift: Shift) -> Iterator[_Tile]:
    by = shift.by - shift.first  # row x meets column y at the row y - x + by of the table, or at one of its ends
    for start in range(0, X, TILE_ROWS):
        stop = min(start + TILE_ROWS, X)
        seen = min(stop - shift.by, Y) if shift.masked else Y
        # Of the columns that are of one end for every row, the last and the first count as shifted.
        begin = min(max(start - by, 0), seen - 1)
        end = min(max(stop - 1 + M - 1 - by, 0), seen - 1) + 1
        smallest, largest = begin - (stop - 1) + by, end - 1 - start + by
        if shift.masked:  # nothing is asked of offsets above 0; as many as columns are what a shift takes
            largest = min(largest, max(-shift.first, smallest + end - begin - 1))
        low, high = min(max(smallest, 0), M - 1), min(max(largest, 0), M - 1) + 1
        left = min(max(-smallest, 0), largest - smallest)
        right = largest - smallest + 1 - left - (high - low)
        yield _Tile(start, stop, begin, end, seen, low, high, left, right)


def _by_row(scores_XN: Tensor, columns: int) -> Tensor:
    """Row x, column y of the view (..., X, columns) is the score y + X - 1 - x of row x: each row one further left.

    Where there are fewer scores than columns + X - 1, the last columns of the first rows are scores of the next row.
    """
    X, N = scores_XN.shape[-2:]
    size, strides = (*scores_XN.shape[:-1], columns), (*scores_XN.stride()[:-2], N - 1, 1)
    return scores_XN.as_strided(size, strides, scores_XN.storage_offset() + X - 1)


def _place(logits_HBXY: Tensor, x_HBXK: Tensor, table: Tensor, shift: Shift) -> None:
    """logits_xy += x . R[y - x + by]."""
    X, Y = logits_HBXY.shape[2:]
    for tile in _tiles(X, Y, table.shape[-2], shift):
        rows = slice(tile.start, tile.stop)
        scores, logits = _times(x_HBXK[:, :, rows], table[..., tile.low : tile.high, :].mT), logits_HBXY[:, :, rows]
        if tile.left or tile.right:
            ends = scores[..., :1].expand(-1, -1, -1, tile.left), scores[..., -1:].expand(-1, -1, -1, tile.right)
            scores = torch.cat((ends[0], scores, ends[1]), dim=-1)
        logits[..., tile.begin : tile.end] += _by_row(scores, tile.end - tile.begin)
        if tile.begin:
            logits[..., : tile.begin] += scores[..., :1]
        if tile.end < tile.seen:
            logits[..., tile.end : tile.seen] += scores[..., -1:]


def _collect(weights_HBXY: Tensor, M: int, shift: Shift) -> Iterator[tuple[_Tile, Tensor]]:
    """The sums of weights by row of the table, tile by tile: (H, B, X, N), of the rows low..high-1."""
    X, Y = weights_HBXY.shape[2:]
    for tile in _tiles(X, Y, M, shift):
        weights, N = weights_HBXY[:, :, tile.start : tile.stop], tile.high - tile.low
        # What lies outside the view by row stays zero. One number more a row, or rows of a masked tile would overlap.
        by_offset = weights.new_zeros(*weights.shape[:3], tile.left + N + tile.right + 1)
        _by_row(by_offset, tile.end - tile.begin).copy_(weights[..., tile.begin : tile.end])
        left, sums, right = by_offset.split((tile.left, N, tile.right + 1), dim=-1)
        if tile.left:
            sums[..., 0] += left.sum(-1)
        if tile.right:
            sums[..., -1] += right.sum(-1)
        if tile.begin:
            sums[..., 0] += weights[..., : tile.begin].sum(-1)
        if tile.end < tile.seen:
            sums[..., -1] += weights[..., tile.end : tile.seen].sum(-1)
        yield tile, sums


def _times(rows_HBXM: Tensor, table: Tensor) -> Tensor:
    """Rows times a matrix (M, N) of all heads, or (H, M, N): one product a matrix, however many the examples."""
    H, B, X, _ = rows_HBXM.shape
    shape = (H * B * X, -1) if table.dim() == 2 else (H, B * X, -1)
    return (rows_HBXM.reshape(shape) @ table).view(H, B, X, -1)


def _of_table(sums_HBXN: Tensor, x_HBXK: Tensor, heads: bool) -> Tensor:
    """Sums^T times vectors: the gradient of rows of a table for all heads (N, K), or of each (H, N, K)."""
    last = (1, 2) if heads else (0, 2)
    return sums_HBXN.flatten(*last).mT @ x_HBXK.flatten(*last)


class _AddOfQueries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BHXY: Tensor, x_BHXK: Tensor, table: Tensor, shift: Shift) -> Tensor:
        ctx.save_for_backward(x_BHXK, table)
        ctx.shift = shift
        ctx.mark_dirty(logits_BHXY)
        _place(logits_BHXY.transpose(0, 1), x_BHXK.transpose(0, 1), table, shift)
        return logits_BHXY

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_BHXK, table = ctx.saved_tensors
        _, need_x, need_table, _ = ctx.needs_input_grad
        of_x = torch.empty_like(x_BHXK) if need_x else None
        of_table = torch.zeros_like(table, memory_format=torch.contiguous_format) if need_table else None
        for tile, sums in _collect(gradient.transpose(0, 1), table.shape[-2], ctx.shift):
            rows, held = slice(tile.start, tile.stop), slice(tile.low, tile.high)
            if of_x is not None:
                of_x[:, :, rows] = _times(sums, table[..., held, :]).transpose(0, 1)
            if of_table is not None:
                of_table[..., held, :] += _of_table(sums, x_BHXK[:, :, rows].transpose(0, 1), table.dim() == 3)
        return gradient, of_x, of_table, None


class _AddOfKeys(torch.autograd.Function):
    """logits_yx += k_x . R[y - x + by], of all tiles of keys at once: to each its window of the table."""

    @staticmethod
    def forward(ctx: Any, logits_BHYX: Tensor, k_BHXK: Tensor, table: Tensor, by: int) -> Tensor:
        ctx.save_for_backward(k_BHXK, table)
        ctx.by = by
        ctx.mark_dirty(logits_BHYX)
        tiles, ends = _key_tiles(k_BHXK.shape[2], logits_BHYX.shape[2], table.shape[-2], by)
        for keys, row in ends:
            logits_BHYX[..., keys] += (k_BHXK[:, :, keys] @ table[..., row, :, None]).mT
        for part in tiles:
            windows = table[..., part.windows(table, by), :]
            scores = part.of_keys(k_BHXK).flatten(2, 3) @ windows.mT
            logits = part.of_logits(logits_BHYX)
            logits += _by_row(scores.unflatten(2, (-1, part.rows)), part.Y)
        return logits_BHYX

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        k_BHXK, table = ctx.saved_tensors
        _, need_k, need_table, _ = ctx.needs_input_grad
        of_k = torch.empty_like(k_BHXK) if need_k else None
        of_table = torch.zeros_like(table, memory_format=torch.contiguous_format) if need_table else None
        heads = () if table.dim() == 2 else (1,)
        tiles, ends = _key_tiles(k_BHXK.shape[2], gradient.shape[2], table.shape[-2], ctx.by)
        for keys, row in ends:
            sums_BHX1 = gradient[..., keys].sum(2)[..., None]
            if of_k is not None:
                of_k[:, :, keys] = sums_BHX1 * table[..., row, None, :]
            if of_table is not None:
                of_table[..., row, :] += (sums_BHX1 * k_BHXK[:, :, keys]).sum([d for d in (0, 1, 2) if d not in heads])
        for part in tiles:
            placed, rows = part.of_logits(gradient), part.windows(table, ctx.by)
            by_offset = gradient.new_zeros(*placed.shape[:-1], rows.shape[1])  # outside the view it stays zero
            _by_row(by_offset, part.Y).copy_(placed)
            sums = by_offset.flatten(2, 3)
            if of_k is not None:
                part.of_keys(of_k).copy_((sums @ table[..., rows, :]).unflatten(2, (-1, part.rows)))
            if of_table is not None:
                found_HnNK = sums.mT @ part.of_keys(k_BHXK).flatten(2, 3)
                found = found_HnNK if heads else found_HnNK.sum(0)
                of_table.index_add_(-2, rows.flatten(), found.flatten(-3, -2))
        return gradient, of_k, of_table, None


class _KeyTiles(NamedTuple):
    """The keys start..stop-1, so many `rows` a tile, and Y queries. Views are of H, the tile, B, its rows, the rest."""

    start: int
    stop: int
    rows: int
    Y: int

    def of_keys(self, k_BHXK: Tensor) -> Tensor:
        return k_BHXK[:, :, self.start : self.stop].unflatten(2, (-1, self.rows)).permute(1, 2, 0, 3, 4)

    def of_logits(self, logits_BHYX: Tensor) -> Tensor:
        return logits_BHYX[..., self.start : self.stop].unflatten(-1, (-1, self.rows)).permute(1, 3, 0, 4, 2)

    def windows(self, table: Tensor, by: int) -> Tensor:
        """The rows of the table that each tile meets, y - x + by in ascending order, (tiles, Y + rows - 1)."""
        last = torch.arange(self.start, self.stop, self.rows, device=table.device) + self.rows - 1
        rows = torch.arange(self.Y + self.rows - 1, device=table.device) + (by - last)[:, None]
        return rows.clamp_(0, table.shape[-2] - 1)


def _key_tiles(X: int, Y: int, M: int, by: int) -> tuple[list[_KeyTiles], list[tuple[slice, int]]]:
    """The keys that meet different rows of the table, in whole tiles and the rest; and those that meet an end of it
    alone, with its row."""
    start = min(max(by - (M - 1) + 1, 0), X)  # before it y - x + by is M - 1 or more
    stop = min(max(Y - 1 + by, start), X)  # and from here on 0 or less
    ends = [(slice(0, start), M - 1), (slice(stop, X), 0)]
    rows = min(stop - start, Y, KEY_ROWS)
    tiles = []
    if rows:
        last = stop - (stop - start) % rows
        tiles = [_KeyTiles(start, last, rows, Y), _KeyTiles(last, stop, stop - last, Y)]
    return [part for part in tiles if part.rows], [(keys, row) for keys, row in ends if keys.start < keys.stop]


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights_BHXY: Tensor, v_BHYK: Tensor, table: Tensor, shift: Shift) -> Tensor:
        mixed, kept = weights_BHXY @ v_BHYK, []
        for tile, sums in _collect(weights_BHXY.transpose(0, 1), table.shape[-2], shift):
            of_rows = _times(sums, table[..., tile.low : tile.high, :])
            mixed[:, :, tile.start : tile.stop] += of_rows.transpose(0, 1)
            kept.append(sums)
        ctx.save_for_backward(weights_BHXY, v_BHYK, table, *kept)
        ctx.shift = shift
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights_BHXY, v_BHYK, table, *kept = ctx.saved_tensors
        need_weights, need_v, need_table, _ = ctx.needs_input_grad
        gradient = gradient.contiguous()  # or each product would copy it
        of_weights, of_v, of_table = None, None, None
        if need_weights:
            of_weights = gradient @ v_BHYK.mT
            _place(of_weights.transpose(0, 1), gradient.transpose(0, 1), table, ctx.shift)
        if need_v:
            of_v = weights_BHXY.mT @ gradient
        if need_table:
            of_table = torch.zeros_like(table, memory_format=torch.contiguous_format)
            X, Y = weights_BHXY.shape[2:]
            for tile, sums in zip(_tiles(X, Y, table.shape[-2], ctx.shift), kept, strict=True):
                mixed = gradient[:, :, tile.start : tile.stop].transpose(0, 1)
                of_table[..., tile.low : tile.high, :] += _of_table(sums, mixed, table.dim() == 3)
        return of_weights, of_v, of_table, None
