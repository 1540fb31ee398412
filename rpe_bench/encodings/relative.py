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
    if _by_shift(context):
        return cast(Tensor, _AddOfQueries.apply(logits_BHQS, q_BHQK, *_shift(table, first, q_BHQK.dtype, context)))
    table = _one_if_shared(table).to(q_BHQK.dtype)
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
    if _by_shift(context):
        return cast(Tensor, _Mix.apply(weights_BHQS, v_BHSK, *_shift(table, first, weights_BHQS.dtype, context)))
    table = _one_if_shared(table).to(weights_BHQS.dtype)
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


def _shift(table: Tensor, first: int, dtype: torch.dtype, context: Context) -> tuple[Tensor, "Shift | SeenShift"]:
    """How a table is shifted, and the table as that takes it."""
    start = _start(context)
    if not context.masked:
        return _one_if_shared(table).to(dtype), Shift(first, -start)
    near = max(-first, 0)
    every = near + 1 >= context.uncut.length
    # The key is the table as it is given: a view of it would be another one with each call.
    seen = context.once((table, first, dtype), lambda: _of_seen(_one_if_shared(table).to(dtype), first, every))
    return seen, SeenShift(start, near, every)


def _of_seen(table: Tensor, first: int, every: bool) -> Tensor:
    """The vectors of the offsets up to 0; where they are not those of `every` key, as SeenShift takes them."""
    offsets = max(-first, 0) + 1
    rows = table[..., :offsets, :]
    lacking = offsets - rows.shape[-2]
    if lacking:
        rows = torch.cat((rows, rows[..., -1:, :].expand(*rows.shape[:-2], lacking, -1)), dim=-2)
    if every:
        return rows
    far, near = rows[..., :1, :], rows[..., 1:, :]
    return torch.cat((far.new_zeros(*far.shape[:-2], TILE_ROWS, far.shape[-1]), near - far, far), dim=-2)


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

    def tiles(self, logits: Tensor, table: Tensor) -> Iterator["_Tile"]:
        """Of logits or weights (..., X, Y)."""
        X, Y, M = *logits.shape[2:], table.shape[-2]
        by = self.by - self.first  # row x meets column y at the row y - x + by of the table, or at one of its ends
        for start in range(0, X, TILE_ROWS):
            stop = min(start + TILE_ROWS, X)
            # Of the columns that are of one end for every row, the last and the first count as shifted.
            begin = min(max(start - by, 0), Y - 1)
            end = min(max(stop - 1 + M - 1 - by, 0), Y - 1) + 1
            smallest, largest = begin - (stop - 1) + by, end - 1 - start + by
            low, high = min(max(smallest, 0), M - 1), min(max(largest, 0), M - 1) + 1
            left = min(max(-smallest, 0), largest - smallest)
            right = largest - smallest + 1 - left - (high - low)
            yield _Tile(slice(start, stop), begin, end, low, high, left, right)


class SeenShift(NamedTuple):
    """The same behind a causal mask, which hides the offsets above 0: their logits may be anything, and their weights
    and gradients are 0.

    The table ends with the row of the offset 0, where it has one for `every` key that is seen. Else all keys meet its
    last row, which is that of those far away. The `near` rows before it are added to that for the last keys up to the
    query; and before these are zeros, for tiles with queries that have fewer keys.
    """

    start: int
    """The first query."""
    near: int
    every: bool

    def tiles(self, logits: Tensor, table: Tensor) -> Iterator["_SeenTile"]:
        X = logits.shape[2]
        for start in range(0, X, TILE_ROWS):
            stop = min(start + TILE_ROWS, X)
            seen = self.start + stop
            near = seen if self.every or self.start + start < self.near else self.near
            yield _SeenTile(slice(start, stop), seen, near, self.every)


class _Tile(NamedTuple):
    """Rows of logits or weights, and the columns begin..end-1 of theirs that are shifted: each row meets those before
    with the first row of the table, and those after with the last.

    Shifted columns have consecutive offsets: `left` before the table rows low..high-1, then those, then `right` after.
    """

    rows: slice
    begin: int
    end: int
    low: int
    high: int
    left: int
    right: int

    def vectors(self, table: Tensor) -> Tensor:
        """The view of the rows of the table that the tile meets."""
        return table[..., self.low : self.high, :]

    def place(self, logits_HBXY: Tensor, scores_HBXN: Tensor) -> None:
        """Add the scores of these vectors to the logits of the tile's rows."""
        first, last = scores_HBXN[..., :1], scores_HBXN[..., -1:]
        if self.left or self.right:
            ends = first.expand(-1, -1, -1, self.left), last.expand(-1, -1, -1, self.right)
            scores_HBXN = torch.cat((ends[0], scores_HBXN, ends[1]), dim=-1)
        logits_HBXY[..., self.begin : self.end].add_(_by_row(scores_HBXN, self.end - self.begin))
        if self.begin:
            logits_HBXY[..., : self.begin].add_(first)
        if self.end < logits_HBXY.shape[-1]:
            logits_HBXY[..., self.end :].add_(last)

    def collect(self, weights_HBXY: Tensor) -> Tensor:
        """The sums of the rows' weights by vector, (H, B, X, N)."""
        N = self.high - self.low
        # What lies outside the view by row stays zero.
        by_offset = weights_HBXY.new_zeros(*weights_HBXY.shape[:3], self.left + N + self.right)
        _by_row(by_offset, self.end - self.begin).copy_(weights_HBXY[..., self.begin : self.end])
        left, sums, right = by_offset.split((self.left, N, self.right), dim=-1)
        if self.left:
            sums[..., 0].add_(left.sum(-1))
        if self.right:
            sums[..., -1].add_(right.sum(-1))
        if self.begin:
            sums[..., 0].add_(weights_HBXY[..., : self.begin].sum(-1))
        if self.end < weights_HBXY.shape[-1]:
            sums[..., -1].add_(weights_HBXY[..., self.end :].sum(-1))
        return sums


class _SeenTile(NamedTuple):
    """Rows behind a mask, and the columns up to `seen`, the last query's own.

    The last `near` columns of each row up to the query's own have a vector each; see SeenShift.
    """

    rows: slice
    seen: int
    near: int
    every: bool

    def vectors(self, table: Tensor) -> Tensor:
        return table[..., table.shape[-2] - self.near - (not self.every) :, :]

    def place(self, logits_HBXY: Tensor, scores_HBXN: Tensor) -> None:
        if self.near == self.seen:
            # A row of scores ends where its hidden columns begin: these have some of the next.
            logits_HBXY[..., : self.seen].add_(_by_row(scores_HBXN, self.seen))
        else:
            self._diagonal(logits_HBXY).add_(scores_HBXN[..., : self.near])
        if not self.every:
            logits_HBXY[..., : self.seen].add_(scores_HBXN[..., -1:])

    def collect(self, weights_HBXY: Tensor) -> Tensor:
        # One number more a row, or those by row would overlap; for the sum over all columns, where that is asked for.
        sums = weights_HBXY.new_empty(*weights_HBXY.shape[:3], self.near + 1)
        if self.near == self.seen:
            _by_row(sums, self.seen).copy_(weights_HBXY[..., : self.seen])
            # Nothing else lies outside the view: between two rows, hidden zeros are written.
            sums[..., 0, : sums.shape[2] - 1] = 0
        else:
            sums[..., :-1] = self._diagonal(weights_HBXY)
        if self.every:
            return sums[..., :-1]
        sums[..., -1] = weights_HBXY[..., : self.seen].sum(-1)
        return sums

    def _diagonal(self, logits_HBXY: Tensor) -> Tensor:
        """The view (H, B, X, near) of the last columns of each row up to the query's own: each one further right."""
        *outer, row, column = logits_HBXY.stride()
        begin = self.seen - logits_HBXY.shape[2] + 1 - self.near  # of the first row
        size, strides = (*logits_HBXY.shape[:-1], self.near), (*outer, row + column, column)
        return logits_HBXY.as_strided(size, strides, logits_HBXY.storage_offset() + begin * column)


def _by_row(scores_XN: Tensor, columns: int) -> Tensor:
    """Row x, column y of the view (..., X, columns) is the score y + X - 1 - x of row x: each row one further left.

    Where there are fewer scores than columns + X - 1, the last columns of the first rows are scores of the next row.
    """
    *outer, row, _ = scores_XN.stride()
    X = scores_XN.shape[-2]
    size, strides = (*scores_XN.shape[:-1], columns), (*outer, row - 1, 1)
    return scores_XN.as_strided(size, strides, scores_XN.storage_offset() + X - 1)


def _place(logits_HBXY: Tensor, x_HBXK: Tensor, table: Tensor, shift: Shift | SeenShift) -> None:
    """logits_xy += x . R[y - x + by]."""
    for tile in shift.tiles(logits_HBXY, table):
        scores = _times(x_HBXK[:, :, tile.rows], tile.vectors(table).mT)
        tile.place(logits_HBXY[:, :, tile.rows], scores)


def _times(rows_HBXM: Tensor, table: Tensor) -> Tensor:
    """Rows times a matrix (M, N) of all heads, or (H, M, N): one product a matrix, however many the examples."""
    H, B, X, M = rows_HBXM.shape
    shape = (H * B * X, M) if table.dim() == 2 else (H, B * X, M)
    return (rows_HBXM.reshape(shape) @ table).view(H, B, X, table.shape[-1])


def _of_table(sums_HBXN: Tensor, x_HBXK: Tensor, heads: bool) -> Tensor:
    """Sums^T times vectors: the gradient of rows of a table for all heads (N, K), or of each (H, N, K)."""
    last = (1, 2) if heads else (0, 2)
    return sums_HBXN.flatten(*last).mT @ x_HBXK.flatten(*last)


def _by_head(x_BHXM: Tensor, table: Tensor) -> Tensor:
    """(H, B, X, M) where each head has a table of its own, so that there is one product a head; and back again."""
    return x_BHXM.transpose(0, 1) if table.dim() == 3 else x_BHXM


class _AddOfQueries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BHXY: Tensor, x_BHXK: Tensor, table: Tensor, shift: Shift | SeenShift) -> Tensor:
        x_HBXK = _by_head(x_BHXK, table).contiguous()
        ctx.save_for_backward(x_HBXK, table)
        ctx.shift = shift
        ctx.mark_dirty(logits_BHXY)
        _place(_by_head(logits_BHXY, table), x_HBXK, table, shift)
        return logits_BHXY

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_HBXK, table = ctx.saved_tensors
        _, need_x, need_table, _ = ctx.needs_input_grad
        of_table = torch.zeros_like(table, memory_format=torch.contiguous_format) if need_table else None
        of_rows = []
        for tile in ctx.shift.tiles(gradient, table):
            sums = tile.collect(_by_head(gradient[:, :, tile.rows], table))
            if need_x:
                of_rows.append(_times(sums, tile.vectors(table)))
            if of_table is not None:
                tile.vectors(of_table).add_(_of_table(sums, x_HBXK[:, :, tile.rows], table.dim() == 3))
        of_x = torch.cat(of_rows, dim=2) if len(of_rows) > 1 else of_rows[0] if need_x else None
        return gradient, None if of_x is None else _by_head(of_x, table), of_table, None


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
    def forward(ctx: Any, weights_BHXY: Tensor, v_BHYK: Tensor, table: Tensor, shift: Shift | SeenShift) -> Tensor:
        mixed, kept = weights_BHXY @ v_BHYK, []
        for tile in shift.tiles(weights_BHXY, table):
            sums = tile.collect(_by_head(weights_BHXY[:, :, tile.rows], table))
            mixed[:, :, tile.rows].add_(_by_head(_times(sums, tile.vectors(table)), table))
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
            _place(_by_head(of_weights, table), _by_head(gradient, table), table, ctx.shift)
        if need_v:
            of_v = weights_BHXY.mT @ gradient
        if need_table:
            of_table = torch.zeros_like(table, memory_format=torch.contiguous_format)
            for tile, sums in zip(ctx.shift.tiles(weights_BHXY, table), kept, strict=True):
                mixed = _by_head(gradient[:, :, tile.rows], table)
                tile.vectors(of_table).add_(_of_table(sums, mixed, table.dim() == 3))
        return of_weights, of_v, of_table, None
