"""Where the heads of a trained model look, and what an offset does to their logits: at any length, rows by rows.

What is meant, here and in all that is made of it:

    offset     of a pair, where the key lies as the query sees it. In text j - i, the past being negative; on a grid
               (dy, dx). It is that of the tokens as the task lays them out, whatever positions a remap gives them.
    distance   in text |j - i|, in tokens; on a grid the greater of |dy| and |dx|, in cells (Chebyshev's).
    visible    a key that the model's own mask lets a query see. What an encoding hides, such as the keys outside a
               window, is the encoding's doing, and counts as visible.
    unseen     an offset that no training sequence was long enough to have: along some axis it reaches at least as far
               as the longest extent trained on. In text, a distance of at least as many tokens as were trained on.

Shapes as in rpe_bench.encodings.base, and: L layers, N numbered offsets, D distances from 0.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rpe_bench.attention import masked_logits_by_rows
from rpe_bench.config import Config
from rpe_bench.encodings.base import Context, Encoding
from rpe_bench.errors import ConfigError
from rpe_bench.model import Attention, Block, Transformer
from rpe_bench.positions.base import coordinates
from rpe_bench.run import examples_of, remapped
from rpe_bench.seeds import torch_stream
from rpe_bench.tasks.base import Batch, Task
from rpe_bench.trained import Trained

EXAMPLES = 32
"""Examples of each length, the first of those that the run was evaluated on."""

LOGITS_AT_ONCE = 2**19
"""Logits of a layer that are looked at together: 2 MiB in float32, some 20 times that while sums are taken of them."""

TOKENS_AT_ONCE = 2**13
"""Tokens of a forward pass. With fewer examples at once more rows of each are, and an encoding is called less often."""


@dataclass(frozen=True)
class Pairs:
    """Where queries and keys lie to one another in examples of one length.

    places   of the tokens, (B, T, A) integers from 0, or (1, T, A) where all examples have the same
    extents  A of them: all places lie before these
    trained  the longest extents trained on, A of them
    causal   whether keys after the query are hidden
    """

    places: Tensor
    extents: tuple[int, ...]
    trained: tuple[int, ...]
    causal: bool

    @classmethod
    def of(cls, batch: Batch, trained: tuple[int, ...], causal: bool) -> "Pairs":
        """Those of a batch as the task gives it: tokens in a line, or on a grid."""
        places = coordinates(batch)
        places = places[None, :, None] if places.dim() == 1 else places
        return cls(places, tuple((places.amax(dim=(0, 1)) + 1).tolist()), trained, causal)

    def rows(self, examples: slice) -> "Pairs":
        """Those of some examples, their offsets numbered as in all."""
        return self if len(self.places) == 1 else replace(self, places=self.places[examples])

    @cached_property
    def offsets_NA(self) -> Tensor:
        """All offsets that could be, by their number; zero is the one in the middle."""
        along = [torch.arange(1 - extent, extent) for extent in self.extents]
        return torch.cartesian_prod(*along).reshape(-1, len(along))

    @cached_property
    def distance_N(self) -> Tensor:
        return self.offsets_NA.abs().amax(dim=-1)

    @cached_property
    def unseen_N(self) -> Tensor:
        return (self.offsets_NA.abs() >= torch.tensor(self.trained)).any(dim=-1)

    def numbers(self, queries: slice, keys: int) -> Tensor:
        """The number of the offset of each pair of some queries with the first so many keys: (B or 1, Q, S)."""
        steps = [math.prod(2 * n - 1 for n in self.extents[axis + 1 :]) for axis in range(len(self.extents))]
        # Linear in the offset, and so a difference of one number a token.
        of_token = self.places @ torch.tensor(steps)
        return of_token[:, None, :keys] - of_token[:, queries, None] + len(self.offsets_NA) // 2

    def visible(self, queries: slice, keys: int) -> Tensor:
        """Which of those keys each query may see: (Q, S)."""
        index = torch.arange(self.places.shape[1])
        if not self.causal:
            return torch.ones(len(index[queries]), keys, dtype=torch.bool)
        return index[None, :keys] <= index[queries, None]


@dataclass(frozen=True)
class Layout:
    """What attention at one length is held against, from the pairs of its examples alone.

    queries      how many there are
    pairs_N      how many of a query and a visible key there are at each offset
    queries_D    queries that see a key at each distance: far ones are seen by ever fewer
    distance     mean attention distance, were attention spread evenly over the visible keys
    unseen       the share that would then fall on unseen offsets
    """

    queries: int
    pairs_N: Tensor
    queries_D: Tensor
    distance: float
    unseen: float

    @classmethod
    def of(cls, pairs: Pairs) -> "Layout":
        """Of places that all examples share, the numbers are those of one."""
        B, T, _ = pairs.places.shape
        pairs_N = torch.zeros(len(pairs.offsets_NA), dtype=torch.float64)
        queries_D = torch.zeros(max(pairs.extents), dtype=torch.float64)
        distance = unseen = 0.0
        for queries in slices(T, LOGITS_AT_ONCE // (B * T)):
            keys = queries.stop if pairs.causal else T
            numbers, visible = pairs.numbers(queries, keys), pairs.visible(queries, keys)
            visible_BQS = visible.expand(numbers.shape)
            pairs_N += sums_by_number(visible_BQS[:, None], numbers, len(pairs_N))[0]
            distance_BQS, unseen_BQS = pairs.distance_N[numbers], pairs.unseen_N[numbers]
            # The hidden ones are counted behind the last distance, and left out.
            met = torch.zeros(*numbers.shape[:2], len(queries_D) + 1, dtype=torch.bool)
            met.scatter_(-1, distance_BQS.masked_fill(~visible, len(queries_D)), True)
            queries_D += met[..., :-1].sum(dim=(0, 1))
            evenly = visible_BQS / visible_BQS.sum(dim=-1, keepdim=True, dtype=torch.float64)
            distance += float((evenly * distance_BQS).sum())
            unseen += float((evenly * unseen_BQS).sum())
        return cls(B * T, pairs_N, queries_D, distance / (B * T), unseen / (B * T))


def slices(length: int, at_once: int) -> Iterator[slice]:
    """0..length-1 in parts of so many, and of one at least."""
    at_once = max(1, at_once)
    for start in range(0, length, at_once):
        yield slice(start, min(start + at_once, length))


def sums_by_number(values_BHQS: Tensor, numbers: Tensor, count: int) -> Tensor:
    """Sums over the pairs of each number, (H, count) float64; numbers (B, Q, S), or (1, Q, S) for all examples."""
    if len(numbers) == 1:
        values_BHQS = values_BHQS.sum(dim=0, keepdim=True, dtype=torch.float64)
    values_HX = values_BHQS.transpose(0, 1).flatten(1).double()
    return values_HX.new_zeros(len(values_HX), count).index_add_(1, numbers.flatten(), values_HX)


@dataclass
class Kernel:
    """Sums of which the kernel of each head is made, over the pairs of shuffled content whose logit is finite.

    What is sought is what an offset does to a logit, whatever the encoding, and apart from the content that happens to
    lie there: the last query sees the first token as no other does. So the queries and the keys of a layer change
    places at random, each by themselves, and with the keys all else that the encoding may read of the tokens. No
    content then goes with any offset. To the logits l of all pairs is fitted by least squares, for each head,

        l_ij = a c_ij + f(offset),   c_ij = q_i.k_j before any position;   the kernel is f less its value at offset 0

    since softmax sees differences alone. By the rules of least squares a is the slope among pairs of one offset, pooled
    over offsets, and f(o) the mean of l - a c at offset o.

    - A bias of the offset alone is found exactly, whatever the content; a is then the softmax scale.
    - A rotation R gives mean(q)^T (R(o) - 1) mean(k), scaled, within the error of a mean over so many pairs.
    - What depends on content gives its mean over the contents at hand.
    - What changes nothing in attention gives 0, and so does a position that is added to the embeddings: what queries
      and keys know of it is content here. The mean logit of the pairs in place shows that, with all else that goes with
      distance.

    pairs_HN      at each offset, finite ones; and over them the sums of:
    logit_HN, content_HN, square_HN, product_HN     l, c, c^2 and c l
    """

    pairs_HN: Tensor
    logit_HN: Tensor
    content_HN: Tensor
    square_HN: Tensor
    product_HN: Tensor

    @classmethod
    def of_none(cls, heads: int, offsets: int) -> "Kernel":
        return cls(*(torch.zeros(heads, offsets, dtype=torch.float64) for _ in range(5)))

    def add(self, scores_BHQS: Tensor, content_BHQS: Tensor, numbers: Tensor) -> None:
        """Take in the masked logits of some queries, and their q.k."""
        finite = scores_BHQS.isfinite()
        scores = scores_BHQS.masked_fill(~finite, 0.0).double()
        content = content_BHQS.masked_fill(~finite, 0.0).double()
        values = (finite, scores, content, content.square(), content * scores)
        for total, value in zip(vars(self).values(), values, strict=True):
            total += sums_by_number(value, numbers, total.shape[1])

    def fitted_HN(self) -> Tensor:
        """The kernel; minus infinity at offsets where no logit is finite."""
        pairs = self.pairs_HN.clamp(min=1)
        square = (self.square_HN - self.content_HN.square() / pairs).sum(dim=-1, keepdim=True)
        product = (self.product_HN - self.content_HN * self.logit_HN / pairs).sum(dim=-1, keepdim=True)
        # Where q.k is the same at all pairs of an offset, a multiple of it cannot be told from f.
        varies = square > 1e-12 * self.square_HN.sum(dim=-1, keepdim=True)
        a = torch.where(varies, product / square, 0.0)
        f = mean_or_hidden(self.logit_HN - a * self.content_HN, self.pairs_HN)
        return f - f[:, [f.shape[1] // 2]]


def mean_or_hidden(sums: Tensor, pairs: Tensor) -> Tensor:
    """Means of logits; minus infinity where there are none but hidden pairs."""
    return torch.where(pairs > 0, sums / pairs, -math.inf)


@dataclass
class Heads:
    """Sums over the attention of one layer at one length.

    weight_HN    of attention weights at each offset
    entropy_H    of the entropies of queries, in nats
    share_H      of these as shares of log(number of visible keys), over the queries that see more than one
    shares       how many queries those are
    pairs_HN, logit_HN   pairs whose logit is finite, and their logits
    kernel       of shuffled content
    """

    weight_HN: Tensor
    entropy_H: Tensor
    share_H: Tensor
    shares: int
    pairs_HN: Tensor
    logit_HN: Tensor
    kernel: Kernel

    @classmethod
    def of_none(cls, heads: int, offsets: int) -> "Heads":
        """Sums over nothing yet."""
        weight, pairs, logit = torch.zeros(3, heads, offsets, dtype=torch.float64).unbind()
        entropy, share = torch.zeros(2, heads, dtype=torch.float64).unbind()
        return cls(weight, entropy, share, 0, pairs, logit, Kernel.of_none(heads, offsets))

    def add(self, scores_BHQS: Tensor, numbers: Tensor, visible_QS: Tensor) -> None:
        """Take in the masked logits of some queries."""
        N = self.weight_HN.shape[1]
        finite = scores_BHQS.isfinite()
        weights, scores = scores_BHQS.softmax(dim=-1), scores_BHQS.masked_fill(~finite, 0.0)
        # log w = l - logsumexp(l), so that no logarithm of a weight is taken.
        entropy_BHQ = (scores_BHQS.logsumexp(dim=-1) - (weights * scores).sum(dim=-1)).clamp(min=0).double()
        self.entropy_H += entropy_BHQ.sum(dim=(0, 2))
        seen_Q = visible_QS.sum(dim=-1)
        several = seen_Q > 1
        self.share_H += (entropy_BHQ[..., several] / seen_Q[several].double().log()).sum(dim=(0, 2))
        self.shares += len(scores_BHQS) * int(several.sum())
        self.weight_HN += sums_by_number(weights, numbers, N)
        self.pairs_HN += sums_by_number(finite, numbers, N)
        self.logit_HN += sums_by_number(scores, numbers, N)


@dataclass
class Maps:
    """The attention of a model on examples of one length: the sums of each layer, and what they are held against.

    examples   how many different ones
    times      how often each query of the layout is in the sums
    """

    pairs: Pairs
    layout: Layout
    layers: list[Heads]
    examples: int
    times: int

    @property
    def tokens(self) -> int:
        return self.pairs.places.shape[1]

    @property
    def weight_LHN(self) -> Tensor:
        """The mean over queries of the weight that they put on their key at each offset, 0 where they have none."""
        return torch.stack([heads.weight_HN for heads in self.layers]) / (self.times * self.layout.queries)

    @property
    def distance_LH(self) -> Tensor:
        """Mean attention distance: sum_j w_ij distance_ij, mean over queries and examples."""
        return self.weight_LHN @ self.pairs.distance_N.double()

    @property
    def unseen_LH(self) -> Tensor:
        """The share of attention on unseen offsets: sum of w_ij over those j, mean over queries and examples."""
        return self.weight_LHN @ self.pairs.unseen_N.double()

    @property
    def by_distance_LHD(self) -> Tensor:
        """The weight that a query puts on what lies at a distance, mean over the queries that see any key there; on
        both sides together, where a model sees both. NaN at distances that no query has."""
        sums = self.weight_LHN.new_zeros(*self.weight_LHN.shape[:2], len(self.layout.queries_D))
        sums.index_add_(2, self.pairs.distance_N, self.weight_LHN)
        return sums * self.layout.queries / self.layout.queries_D


@torch.no_grad()
def maps_of(
    model: Transformer,
    batch: Batch,
    trained: tuple[int, ...],
    positions: Sequence[Tensor | None] | None = None,
    rows: int | None = None,
) -> Maps:
    """The attention of a model on examples of one length.

    Args:
        model: on the CPU.
        batch: the examples, as the task gives them.
        trained: the longest extent trained on along each axis of the task's positions.
        positions: what the model is given for the batch's, each in turn; None for the batch's own.
        rows: queries looked at together, memory growing as their number times the length; None for a few tens of MiB.

    Raises:
        ValueError: a position that the encoding cannot represent.
    """
    model.eval()
    T = batch.tokens_BT.shape[1]
    pairs = Pairs.of(batch, trained, model.causal)
    blocks = [cast(Block, block).attention for block in model.blocks]
    layers = [Heads.of_none(block.heads, len(pairs.offsets_NA)) for block in blocks]
    draws = [batch.positions] if positions is None else positions
    shuffler = torch_stream("shuffled content", T)
    for given in draws:
        for examples in slices(len(batch), TOKENS_AT_ONCE // T):
            part = replace(batch, positions=given).rows(examples)
            look = partial(_look, pairs=pairs.rows(examples), rows=rows, shuffler=shuffler)
            hooks = [
                block.register_forward_pre_hook(partial(look, heads=heads))
                for block, heads in zip(blocks, layers, strict=True)
            ]
            try:
                model(part.tokens_BT, part.positions)
            finally:
                for hook in hooks:
                    hook.remove()
    times = len(draws) * len(batch) // len(pairs.places)
    return Maps(pairs, Layout.of(pairs), layers, len(batch), times)


def _look(
    block: Attention,
    arguments: tuple[Tensor, Encoding, Context],
    heads: Heads,
    pairs: Pairs,
    rows: int | None,
    shuffler: torch.Generator,
) -> None:
    """Take in the attention of a layer that is about to be called with these arguments."""
    x_BTD, encoding, context = arguments
    q, k, _ = block.heads_of(x_BTD)
    context = context.with_(x_BTD=x_BTD, project=block.project)
    B, H, T, _ = q.shape
    at_once = max(1, LOGITS_AT_ONCE // (B * H * T)) if rows is None else rows
    for queries, scores in masked_logits_by_rows(encoding, q, k, context, at_once):
        keys = scores.shape[-1]
        heads.add(scores, pairs.numbers(queries, keys), pairs.visible(queries, keys))

    of_queries, of_keys = torch.rand(2, B, T, generator=shuffler).argsort(dim=-1)
    q = q.gather(2, of_queries[:, None, :, None].expand_as(q))
    k = k.gather(2, of_keys[:, None, :, None].expand_as(k))
    x_BTD = x_BTD.gather(1, of_keys[..., None].expand_as(x_BTD))
    assert context.tokens_BT is not None  # the model gives them
    context = context.with_(x_BTD=x_BTD, tokens_BT=context.tokens_BT.gather(1, of_keys))
    for queries, scores in masked_logits_by_rows(encoding, q, k, context, at_once):
        keys = scores.shape[-1]
        heads.kernel.add(scores, q[:, :, queries] @ k[:, :, :keys].mT, pairs.numbers(queries, keys))


@dataclass(frozen=True)
class Tables:
    """What `rpe-bench attention` writes, each a tidy DataFrame with the columns length, layer and head, from 0.

    heads        split, tokens, examples; distance_mean; distance_uniform; entropy; entropy_share; unseen_share;
                 unseen_uniform: uniform is what attention spread evenly over the visible keys would have
    by_distance  distance, unseen, queries, weight
    kernel       offset, or offset_y and offset_x on a grid; unseen, pairs; logit, the mean of the pairs in place; and
                 kernel, of shuffled content (class `Kernel`)

    `split` is that of eval.csv; queries and pairs are those behind a mean, in all examples and draws.
    """

    heads: pd.DataFrame
    by_distance: pd.DataFrame
    kernel: pd.DataFrame

    def frames(self) -> dict[str, pd.DataFrame]:
        """By the names that `rpe-bench attention` writes them under."""
        return {"attention": self.heads, "by_distance": self.by_distance, "kernel": self.kernel}


def tables(trained: Trained, lengths: Sequence[int] | None = None, examples: int | None = None) -> Tables:
    """The attention of a finished run.

    Args:
        lengths: problem sizes; None for those that the run was evaluated at.
        examples: of each length, the first of those that it was evaluated on; None for EXAMPLES, or all if fewer. At
            positions that are drawn, all means are over the draws of the evaluation too.

    Raises:
        ConfigError: an unusable run, a length that is no size of the task or beyond what its encoding can represent, or
            more examples than there are.
    """
    found = sorted(_maps(trained, lengths, examples), key=lambda pair: pair[0])
    longest = trained.config.recipe.train_length
    assert longest is not None  # resolved

    def rows(frame: Callable[[Maps], pd.DataFrame]) -> pd.DataFrame:
        return pd.concat([_with_length(size, frame(maps)) for size, maps in found], ignore_index=True)

    heads = rows(_heads_frame)
    split = heads["length"].map(lambda size: "train_lengths" if size <= longest else "extrapolation")
    heads.insert(1, "split", split)
    return Tables(heads, rows(_by_distance_frame), rows(_kernel_frame))


def unseen_share(trained: Trained, lengths: Sequence[int] | None = None, examples: int | None = None) -> pd.DataFrame:
    """The share of attention that falls on offsets never seen in training: length, layer, head, unseen_share.

    Arguments and errors as of `tables`. In text an offset is unseen whose distance is at least the tokens of the
    longest sequence trained on; the share is 0 up to that length.
    """
    return tables(trained, lengths, examples).heads[["length", "layer", "head", "unseen_share"]]


def _maps(trained: Trained, lengths: Sequence[int] | None, examples: int | None) -> Iterator[tuple[int, Maps]]:
    """Each length and its maps. The longest comes first: what cannot be represented is refused before the work."""
    model, task = trained.model(), trained.config.build_task()
    config = _evaluated_at(trained.config, task, lengths)
    there = config.evaluation.examples
    if examples is not None and not 1 <= examples <= there:
        raise ConfigError(f"--examples={examples}: must be from 1 to {there}, those that the run was evaluated on")
    some = slice(min(EXAMPLES, there) if examples is None else examples)
    for size in sorted(set(lengths or trained.config.evaluation.lengths or ()), reverse=True):
        try:
            batch = examples_of(config, task, size)
            positions = [
                given.rows(some).positions for given in remapped(config, config.build_positions(), batch, size)
            ]
            yield size, maps_of(model, batch.rows(some), trained.config.frame.train_extents, positions)
        except ValueError as error:
            raise ConfigError(f"--lengths={size}: {error}") from error


def _evaluated_at(config: Config, task: Task, lengths: Sequence[int] | None) -> Config:
    """The config as if the run had been evaluated at these lengths as well.

    ConfigError where one is no size of the task.
    """
    for size in lengths or ():
        try:
            task.check_evaluated(size)
        except ValueError as error:
            raise ConfigError(f"--lengths={size}: {error}") from error
    known = config.evaluation.lengths or []
    evaluation = config.evaluation.model_copy(update={"lengths": sorted({*known, *(lengths or ())})})
    return config.model_copy(update={"evaluation": evaluation})


def _with_length(size: int, frame: pd.DataFrame) -> pd.DataFrame:
    frame.insert(0, "length", size)
    return frame


def _long(maps: Maps, chosen: Tensor, about: dict[str, Tensor], values: dict[str, Tensor]) -> pd.DataFrame:
    """One row for each layer, head and chosen place of the last dimension: `about` of places, values (L, H, places)."""
    L, H = len(maps.layers), len(maps.layers[0].entropy_H)
    places = int(chosen.sum())
    layer, head = np.divmod(np.arange(L * H), H)
    columns = {"layer": layer.repeat(places), "head": head.repeat(places)}
    columns |= {name: np.tile(column[chosen].numpy(), L * H) for name, column in about.items()}
    columns |= {name: column[..., chosen].flatten().numpy() for name, column in values.items()}
    return pd.DataFrame(columns)


def _heads_frame(maps: Maps) -> pd.DataFrame:
    entropy, shares, seeing = (
        torch.stack([torch.as_tensor(getattr(heads, name)) for heads in maps.layers])
        for name in ("entropy_H", "share_H", "shares")
    )
    layout, like = maps.layout, torch.ones_like(entropy)
    values = {
        "distance_mean": maps.distance_LH,
        "distance_uniform": layout.distance * like,
        "entropy": entropy / (maps.times * layout.queries),
        "entropy_share": shares / seeing[:, None],
        "unseen_share": maps.unseen_LH,
        "unseen_uniform": layout.unseen * like,
    }
    frame = _long(maps, torch.tensor([True]), {}, {name: value[..., None] for name, value in values.items()})
    frame.insert(0, "tokens", maps.tokens)
    frame.insert(1, "examples", maps.examples)
    return frame


def _by_distance_frame(maps: Maps) -> pd.DataFrame:
    queries_D = maps.layout.queries_D
    distance_D = torch.arange(len(queries_D))
    # Offsets of one distance are all unseen, or some are seen: then the distance is not new.
    seen_D = torch.zeros(len(queries_D), dtype=torch.bool)
    seen_D[maps.pairs.distance_N[~maps.pairs.unseen_N]] = True
    about = {"distance": distance_D, "unseen": ~seen_D, "queries": (maps.times * queries_D).long()}
    return _long(maps, queries_D > 0, about, {"weight": maps.by_distance_LHD})


def _kernel_frame(maps: Maps) -> pd.DataFrame:
    pairs = maps.pairs
    axes = pairs.offsets_NA.shape[1]
    names = ["offset"] if axes == 1 else ["offset_y", "offset_x"]
    about = dict(zip(names, pairs.offsets_NA.unbind(-1), strict=True))
    about |= {"unseen": pairs.unseen_N, "pairs": (maps.times * maps.layout.pairs_N).long()}
    values = {
        "logit": torch.stack([mean_or_hidden(heads.logit_HN, heads.pairs_HN) for heads in maps.layers]),
        "kernel": torch.stack([heads.kernel.fitted_HN() for heads in maps.layers]),
    }
    return _long(maps, maps.layout.pairs_N > 0, about, values)
