"""What encodings can and cannot do, measured: each is built and called, and what it then does is held to a threshold.

`measured` gives the properties of one encoding, `Report` the table of several. Everything is computed in float64 from
fixed draws, so that one machine gives the same table twice. What an encoding learns is drawn far from zero: no property
holds for want of an effect.

Shapes as in rpe_bench.encodings.base.
"""

import csv
import io
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rpe_bench import attention, catalogue
from rpe_bench.components import build_encodings, load_class
from rpe_bench.encodings.base import Context, Encoding, Geometry
from rpe_bench.errors import blamed_on
from rpe_bench.model import Attention
from rpe_bench.record import write_text
from rpe_bench.seeds import torch_stream

DIM, HEADS, LAYERS = 64, 4, 2
"""The model's size: that of model=tiny."""
TRAIN, LONGEST = 32, 2048
"""The longest sequence that it is trained on, and the longest that it will be asked for, in tokens."""
THRESHOLD = 1e-9
"""Of a change of float64 logits, relative to the largest of them: below it is rounding, above it is a change."""
ROUNDING = 1e-11
"""A number below it is shown as 0: rounding that is not even the same in two calls, since it depends on how tensors
happen to lie in memory."""
SHIFTS = (1, 17, 1000)
START = 8
"""Tokens at the start of a sequence, of which a convolution over tokens makes something else than of the same later."""


@dataclass(frozen=True)
class Measurement:
    """A property of one encoding.

    verdict  yes, no, or - where there is nothing to be asked; a word where it is of another kind
    number   what was measured
    what     what the number is
    cell     both, for a reader
    """

    verdict: str
    number: float
    what: str
    cell: str


# Calling any encoding


class Probe:
    """All layers of an encoding in a setting where it can be called: text or grid, of content or of position alone.

    Args:
        options: the encoding's keys as its YAML gives them.
        causal: whether later tokens are hidden.
        axes: columns of a position.
        draw: which draw of what it learns.
    """

    def __init__(self, options: Mapping[str, Any], causal: bool, axes: int, draw: int = 0) -> None:
        self.causal = causal
        self.axes = axes
        self.geometry = Geometry(DIM, HEADS, TRAIN, LONGEST, causal, LAYERS, axes, digits=tuple(range(10)))
        self.modules = [module.double() for module in build_encodings(options, self.geometry)]
        generator = torch_stream("learned", draw)
        with torch.no_grad():
            for module in self.modules:
                module.reset_parameters(generator)
            for parameter in self.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.3)
        self.weights_qk = _normal("weights", 2, DIM, DIM) * DIM**-0.5

    @property
    def layers(self) -> range:
        return range(len(self.modules))

    def parameters(self) -> list[nn.Parameter]:
        """What is learned, once where layers share it."""
        return list(nn.ModuleList(self.modules).parameters())

    def project(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (nn.functional.linear(vectors, weight).unflatten(-1, (HEADS, -1)) for weight in self.weights_qk)
        return q, k

    def side(self, length: int) -> int:
        """Of the least square that holds so many tokens; all of them in a line of text."""
        return length if self.axes == 1 else math.ceil(round(length ** (1 / self.axes), 6))

    def cells(self, length: int, stride: int = 1) -> Tensor:
        """Positions (1, T) of tokens in a line, or (1, T, A) of the cells of a square, row by row."""
        axis = torch.arange(self.side(length)) * stride
        if self.axes == 1:
            return axis[None]
        return torch.cartesian_prod(*[axis] * self.axes)[None, :length]

    def positions(self, length: int) -> Tensor | None:
        """What a model is given: nothing for text, the cells of a grid."""
        return None if self.axes == 1 else self.cells(length)

    def logits(self, layer: int, tokens: "Tokens", positions: Tensor | None, rows: slice | None = None) -> Tensor:
        """What a layer's softmax is given but for the mask, (B, H, Q, S), of some rows or of all."""
        B, T, _ = tokens.x_BTD.shape
        if positions is not None:
            positions = positions.expand(B, *positions.shape[1:])
        x_BTD = nn.functional.layer_norm(self.modules[0].embed(tokens.x_BTD, positions, tokens.ids_BT), (DIM,))
        q, k = (heads.transpose(1, 2) for heads in self.project(x_BTD))
        context = Context(T, self.causal, positions, x_BTD=x_BTD, tokens_BT=tokens.ids_BT, project=self.project)
        module = self.modules[layer]
        q, k = module.rotate(q, k, positions, context)
        if rows is not None:
            q, context = q[:, :, rows], context.with_(rows=rows)
        return attention.logits(module, q, k, context)

    def visible(self, length: int) -> Tensor:
        """(T, T): the keys that each query may see."""
        seen = torch.ones(length, length, dtype=torch.bool)
        return seen.tril() if self.causal else seen


@dataclass(frozen=True)
class Tokens:
    """Embeddings (B, T, D) of float64, and ids (B, T)."""

    x_BTD: Tensor
    ids_BT: Tensor

    @classmethod
    def various(cls, length: int) -> "Tokens":
        ids = torch.randint(16, (1, length), generator=torch_stream("ids"))
        return cls(_normal("embeddings", 1, length, DIM), ids)

    @classmethod
    def all_same(cls, length: int, batch: int) -> "Tokens":
        """One token throughout, another in each example: what then differs is the position's."""
        x = _normal("token", batch, 1, DIM).expand(batch, length, DIM)
        return cls(x, torch.arange(batch)[:, None].expand(batch, length))

    def first(self, length: int) -> "Tokens":
        return Tokens(self.x_BTD[:, :length], self.ids_BT[:, :length])


def _normal(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch_stream(name), dtype=torch.float64)


def change(one: Tensor, other: Tensor) -> float:
    """The largest difference between logits, relative to the largest finite one; equal infinities do not differ."""
    difference = torch.where(one == other, 0, (one - other).abs().nan_to_num(math.inf, math.inf))
    finite = one[one.isfinite()]
    scale = float(finite.abs().max()) if len(finite) else 0.0
    return _rounded(float(difference.max()) / (scale or 1.0))


def _rounded(number: float) -> float:
    return 0.0 if abs(number) < ROUNDING else number


# The properties


@dataclass(frozen=True)
class Case:
    """An encoding to be measured: its YAML's keys, in a causal or a bidirectional model, on text or on a grid."""

    options: Mapping[str, Any]
    causal: bool
    axes: int

    @classmethod
    def of(cls, encoding: str | Mapping[str, Any], causal: bool = True) -> "Case":
        """By its id, or by the keys of a YAML; on a grid if it takes no text."""
        options = catalogue.read("encoding", encoding) if isinstance(encoding, str) else encoding
        return cls(options, causal, load_class("encoding", options["target"]).axes or 1)

    def probe(self, draw: int = 0, axes: int | None = None) -> Probe:
        return Probe(self.options, self.causal, self.axes if axes is None else axes, draw)


@torch.no_grad()
def measure_unique(case: Case) -> Measurement:
    """How many keys one query tells apart by position alone: all are the same token."""
    probe, length = case.probe(), 128
    # From the middle, a bidirectional model has to tell the two directions apart as well.
    query = length - 1 if case.causal else length // 2
    tokens, rows = Tokens.all_same(length, batch=8), slice(query, query + 1)
    seen = [probe.logits(layer, tokens, probe.positions(length), rows) for layer in probe.layers]
    features = torch.cat(seen, dim=1).flatten(0, 2)
    finite = features.isfinite()
    scale = features[finite].abs().max()
    # A key that is out of sight looks like no other.
    features = torch.where(finite, features, -2 * scale).mT / scale
    distances = (features[:, None] - features[None]).abs().amax(dim=-1) + torch.ones(length).diag()
    apart = int((distances.tril(-1) + torch.ones(length, length).triu() > THRESHOLD).all(dim=1).sum())
    what = f"keys of {length}, all the same token, that one query tells apart; the nearest two differ by "
    return Measurement(
        "yes" if apart == length else "no",
        apart,
        what + _short(_rounded(float(distances.min()))),
        f"{apart} of {length}",
    )


@torch.no_grad()
def measure_deterministic(case: Case) -> Measurement:
    tokens = Tokens.various(24)
    probes = case.probe(), case.probe(), case.probe(draw=1)
    found = [[probe.logits(layer, tokens, probe.positions(24)) for layer in probe.layers] for probe in probes]
    seen = probes[0].visible(24)
    number = max(
        change(first[..., seen], other[..., seen]) for f in found[1:] for first, other in zip(found[0], f, strict=True)
    )
    what = "largest change of a logit between two draws of what is learned, and between two calls"
    return _below(number, what)


@torch.no_grad()
def measure_relative(case: Case) -> Measurement:
    """Whether the offset j - i alone decides, where all tokens are the same; near the start and far from it."""
    probe, length = case.probe(), 48 + START
    tokens, seen = Tokens.all_same(length, batch=2), probe.visible(length)
    seen[:START], seen[:, :START] = False, False
    deviation, effect = 0.0, 0.0
    for stride in (1, (probe.geometry.max_extents[0] - 1) // (2 * probe.side(length))):
        positions = probe.cells(length, stride)
        p_TA = positions.reshape(length, -1)
        _, group = (p_TA[None] - p_TA[:, None])[seen].unique(dim=0, return_inverse=True)
        for layer in probe.layers:
            found = probe.logits(layer, tokens, positions)[..., seen].flatten(0, -2)
            least, most = (
                torch.zeros(len(found), int(group.max()) + 1, dtype=torch.float64).scatter_reduce(
                    1, group.expand_as(found), found, reduce, include_self=False
                )
                for reduce in ("amin", "amax")
            )
            deviation = max(deviation, change(least, most))
            effect = max(effect, change(found, found[:, :1].expand_as(found)))
    return _below(deviation, "largest difference between logits of equal j - i, all tokens being the same", effect)


@torch.no_grad()
def measure_decays(case: Case) -> Measurement:
    """How often a logit grows with distance, where all tokens are the same; under several draws of what is learned."""
    length, grows, falls, steps = 36, 0, 0, 0
    tokens = Tokens.all_same(length, batch=4)
    for draw in range(5):
        probe = case.probe(draw)
        i, near, far = _rays(probe, length)
        for layer in probe.layers:
            logits = probe.logits(layer, tokens, probe.positions(length))
            closer, farther = logits[..., i, near], logits[..., i, far]
            slope = torch.where(closer == farther, 0, farther - closer)  # both may be minus infinity
            least = THRESHOLD * float(logits[logits.isfinite()].abs().max())
            grows, falls = grows + int((slope > least).sum()), falls + int((slope < -least).sum())
            steps += slope.numel()
    verdict = "no" if grows else "yes" if falls else "-"
    what = f"steps away from a query, of {steps} past equal tokens, on which a logit grows; on {falls} it falls"
    return Measurement(verdict, grows, what, f"grows {grows / steps:.0%}" if grows else "never grows")


def _rays(probe: Probe, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries i with keys that lie on one line with them, on one side: a near one, and that one step farther."""
    p_TA = probe.cells(length).reshape(length, -1)
    offset = p_TA[None] - p_TA[:, None]
    found = []
    for axis in range(p_TA.shape[1]):
        step = torch.zeros(p_TA.shape[1], dtype=torch.int64)
        step[axis] = 1
        straight = (offset * (1 - step) == 0).all(dim=-1)
        for direction in (-1, 1):
            next_TT = (p_TA[None] == p_TA[:, None] + direction * step).all(dim=-1)
            ahead = straight & (offset[..., axis] * direction >= 0)
            found.append((ahead[:, :, None] & next_TT[None]).nonzero())
    i, near, far = torch.cat(found).unbind(dim=1)
    seen = probe.visible(length)
    both = seen[i, near] & seen[i, far]
    return i[both], near[both], far[both]


def measure_longer(case: Case) -> Measurement:
    """Whether longer input needs numbers that training never reaches, or is refused."""
    longer = 16 * TRAIN
    draws = range(8)  # in one draw, a hinge may stay shut that opens in another
    probe = case.probe()
    used = _used(case, draws, probe.side(TRAIN) ** probe.axes, None)  # whole grids, so that every cell of them is met
    try:
        more = _used(case, draws[:3], longer, slice(longer - 8, longer))
    except ValueError as error:
        reason = str(error).splitlines()[0]
        return Measurement("no", math.nan, f"refused at {longer} tokens: {reason}", "refused")
    new = sum(int((after & ~before).sum()) for before, after in zip(used, more, strict=True))
    what = f"learned numbers that decide logits at {longer} tokens and none at those of training"
    return Measurement("no" if new else "yes", new, what, f"{new} untrained" if new else "all trained")


def _used(case: Case, draws: Sequence[int], length: int, rows: slice | None) -> list[Tensor]:
    """For each parameter, which of its numbers decide logits in some draw."""
    used: list[Tensor] = []
    for draw in draws:
        probe = case.probe(draw)
        tokens, seen = Tokens.various(length), probe.visible(length)[rows or slice(None)]
        parameters = probe.parameters()
        # Nothing of each, so that all have a gradient.
        total = sum((0 * parameter.sum() for parameter in parameters), torch.zeros((), dtype=torch.float64))
        for layer in probe.layers:
            found = probe.logits(layer, tokens, probe.positions(length), rows)[..., seen]
            total = total + (found * _normal("cotangent", *found.shape)).nan_to_num(0, 0, 0).sum()
        if not parameters:
            return []
        gradients = torch.autograd.grad(total, parameters)
        here = [gradient != 0 for gradient in gradients]
        used = [one | other for one, other in zip(used, here, strict=True)] if used else here
    return used


@torch.no_grad()
def measure_axes(case: Case) -> Measurement:
    """Whether positions may have several axes, every one of which it then reads."""
    taken, read = [], []
    for axes in (1, 2, 3):
        try:
            probe = case.probe(axes=axes)
            length = 27
            tokens, positions = Tokens.all_same(length, batch=2), probe.cells(length).reshape(1, length, axes)
            seen = probe.visible(length)
            found = [probe.logits(layer, tokens, positions)[..., seen] for layer in probe.layers]
            effects = []
            for axis in range(axes):
                flat = positions.clone()
                flat[..., axis] = 0
                other = [probe.logits(layer, tokens, flat)[..., seen] for layer in probe.layers]
                effects.append(max(change(*pair) for pair in zip(found, other, strict=True)))
        except ValueError:
            continue
        taken.append(axes)
        if min(effects) > THRESHOLD:
            read.append(axes)
    most = max(read, default=0)
    verdict = "yes" if most > 1 else "-" if taken and not read else "no"
    what = f"most axes of a position that it reads, of up to 3 (it takes {', '.join(map(str, taken)) or 'none'})"
    return Measurement(verdict, most, what, f"{most} read" if read else "reads none")


@torch.no_grad()
def measure_translation_invariant(case: Case) -> Measurement:
    # Within the positions of training, beyond which some scalings first set in.
    probe, length = case.probe(), TRAIN - 8
    tokens, seen = Tokens.various(length), probe.visible(length)
    here = probe.cells(length)
    before = [probe.logits(layer, tokens, here)[..., seen] for layer in probe.layers]
    number, made = 0.0, []
    for shift in SHIFTS:
        for step in _steps(probe.axes):
            try:
                after = [probe.logits(layer, tokens, here + shift * step)[..., seen] for layer in probe.layers]
            except ValueError:  # beyond the positions that it has
                continue
            made.append(shift)
            number = max(number, *(change(*pair) for pair in zip(before, after, strict=True)))
    shifts = ", ".join(map(str, dict.fromkeys(made))) or "none that it accepts"
    return _below(number, f"largest change of a logit when all positions shift by {shifts}")


def _steps(axes: int) -> list[Tensor]:
    """One step along each axis of a grid; 1 for text."""
    return [torch.ones((), dtype=torch.int64)] if axes == 1 else list(torch.eye(axes, dtype=torch.int64))


@torch.no_grad()
def measure_prefix_consistent(case: Case) -> Measurement:
    probe, length = case.probe(), 4 * TRAIN
    tokens, number = Tokens.various(length), 0.0
    whole = [probe.logits(layer, tokens, probe.positions(length)) for layer in probe.layers]
    for cut in (1, 17, TRAIN + 5):
        seen, positions = probe.visible(cut), probe.positions(length)
        part = None if positions is None else positions[:, :cut]
        for layer in probe.layers:
            found = probe.logits(layer, tokens.first(cut), part)
            number = max(number, change(found[..., seen], whole[layer][..., :cut, :cut][..., seen]))
    return _below(number, f"largest change of a logit when {length} tokens are cut to 1, 17 or {TRAIN + 5}")


@torch.no_grad()
def measure_pairwise(case: Case) -> Measurement:
    probe, length, changed = case.probe(), 24, 11
    tokens, seen = Tokens.various(length), probe.visible(length)
    seen[changed], seen[:, changed] = False, False
    x_BTD, ids_BT = tokens.x_BTD.clone(), tokens.ids_BT.clone()
    x_BTD[:, changed] += _normal("other token", DIM)
    ids_BT[:, changed] = 15
    positions, number = probe.positions(length), 0.0
    for layer in probe.layers:
        one, other = (probe.logits(layer, given, positions)[..., seen] for given in (tokens, Tokens(x_BTD, ids_BT)))
        number = max(number, change(one, other))
    return _below(number, "largest change of a logit between two tokens when a third changes")


@torch.no_grad()
def measure_needs_tokens(case: Case) -> Measurement:
    probe, length = case.probe(), 24
    tokens, seen, positions = Tokens.various(length), probe.visible(length), probe.positions(length)
    others = Tokens(tokens.x_BTD, tokens.ids_BT.flip(-1))
    pairs = [[probe.logits(layer, given, positions)[..., seen] for given in (tokens, others)] for layer in probe.layers]
    number = max(change(*pair) for pair in pairs)
    what = "largest change of a logit when token ids change and embeddings do not"
    return Measurement("yes" if number > THRESHOLD else "no", number, what, _short(number))


@torch.no_grad()
def measure_preserves_norm(case: Case) -> Measurement:
    """Whether what it does to queries and keys, if anything, leaves their lengths alone."""
    probe, length = case.probe(), 40
    tokens, number, effect = Tokens.various(length), 0.0, 0.0
    for stride in (1, (probe.geometry.max_extents[0] - 1) // probe.side(length)):
        positions = probe.cells(length, stride)
        x_BTD = nn.functional.layer_norm(tokens.x_BTD, (DIM,))
        q, k = (heads.transpose(1, 2) for heads in probe.project(x_BTD))
        context = Context(length, case.causal, positions, x_BTD=x_BTD, tokens_BT=tokens.ids_BT, project=probe.project)
        for module in probe.modules:
            rotated = module.rotate(q, k, positions, context)
            pairs = list(zip((q, k), rotated, strict=True))
            if rotated[0].shape != q.shape:  # they hold more than a query and a key
                pairs = [_as_keys_see(module, q, context)]
            for before, after in pairs:
                number = max(number, float((after.norm(dim=-1) / before.norm(dim=-1) - 1).abs().max()))
                effect = max(effect, change(before.expand_as(after), after))
    return _below(_rounded(number), "largest relative change of the length of a query or a key", effect)


def _as_keys_see(module: Encoding, q_BHTK: Tensor, context: Context) -> tuple[Tensor, Tensor]:
    """Queries (H, T, K), and what of them each key in sight is multiplied by, (H, pairs, K): each by its query."""
    _, H, T, K = q_BHTK.shape
    units = torch.cat((torch.zeros(1, K), torch.eye(K))).to(q_BHTK)[:, None, None].expand(K + 1, H, T, K)
    several = context.with_(memo={}, x_BTD=None if context.x_BTD is None else context.x_BTD.expand(K + 1, -1, -1))
    rotated = module.rotate(q_BHTK.expand(K + 1, -1, -1, -1), units, context.positions, several)
    products = module.content(*rotated, several)
    seen = torch.ones(T, T, dtype=torch.bool).tril() if context.causal else torch.ones(T, T, dtype=torch.bool)
    by_unit = (products[1:] - products[:1])[..., seen].movedim(0, -1) * K**0.5
    return q_BHTK[0][:, seen.nonzero()[:, 0]], by_unit


def measure_parameters(case: Case) -> Measurement:
    number = sum(parameter.numel() for parameter in case.probe().parameters())
    what = f"learned by {LAYERS} layers of width {DIM}, {HEADS} heads, trained at {TRAIN} tokens, for {LONGEST}"
    return Measurement(str(number), number, what, str(number))


def measure_memory(case: Case) -> Measurement:
    """How what one layer holds in training, beyond what it holds without position, grows with the length."""
    nothing = {"name": "nope", "target": "rpe_bench.encodings.nope.NoPE"}
    lengths = (512, 1024)
    without = Case(nothing, case.causal, case.axes)
    shorter, longer = (held(case, length) - held(without, length) for length in lengths)
    what = (
        f"exponent of the length in what a layer holds in training beyond nope: {longer} bytes at {lengths[1]} tokens"
    )
    if longer <= 0:
        return Measurement("none", 0.0, what, "none")
    exponent = math.log2(longer / shorter) if shorter > 0 else math.inf
    word = "constant" if exponent < 0.5 else "linear" if exponent < 1.5 else "quadratic"
    return Measurement(word, exponent, what, f"{word} ({exponent:.1f})")


def held(case: Case, length: int) -> int:
    """Bytes that embedding and one layer's attention, of float32, hold at once in a training step's forward pass."""
    probe = case.probe()
    layer = Attention(DIM, HEADS)
    nn.init.constant_(layer.qkv.weight, DIM**-0.5)
    most = 0
    for module in probe.modules:
        module.float()
        given = Tokens.various(length)
        x_BTD = given.x_BTD.float().requires_grad_()
        positions = probe.positions(length)
        there = [
            x_BTD,
            given.ids_BT,
            *layer.parameters(),
            *probe.parameters(),
            *([] if positions is None else [positions]),
        ]
        with _Held(there) as count:
            embedded = probe.modules[0].embed(x_BTD, positions, given.ids_BT)
            out = layer(embedded, module, Context(length, case.causal, positions, tokens_BT=given.ids_BT))
        most = max(most, count.most)
        del embedded, out
    return most


class _Held(TorchDispatchMode):
    """Counts the bytes of tensors that come to be within it, and the most that are there at once."""

    def __init__(self, there: Sequence[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in there}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._enter(tensor.untyped_storage())
        return out

    def _enter(self, storage: torch.UntypedStorage) -> None:
        if (address := storage._cdata) in self._known:
            return
        self._known.add(address)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._leave, address, size)

    def _leave(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def _below(number: float, what: str, effect: float = math.inf) -> Measurement:
    """Yes where a number is no more than rounding; - where there is no effect that it could be of."""
    verdict = "-" if effect <= THRESHOLD else "yes" if number <= THRESHOLD else "no"
    return Measurement(verdict, number, what, "no effect" if verdict == "-" else _short(number))


def _short(number: float) -> str:
    return "0" if number == 0 else f"{number:.0e}".replace("e-0", "e-").replace("e+0", "e+")


MEASURES: dict[str, Callable[[Case], Measurement]] = {
    "unique": measure_unique,
    "deterministic": measure_deterministic,
    "relative": measure_relative,
    "decays": measure_decays,
    "longer_input": measure_longer,
    "more_axes": measure_axes,
    "translation_invariant": measure_translation_invariant,
    "prefix_consistent": measure_prefix_consistent,
    "pairwise": measure_pairwise,
    "preserves_norm": measure_preserves_norm,
    "needs_tokens": measure_needs_tokens,
    "parameters": measure_parameters,
    "memory": measure_memory,
}
"""By property; those that an encoding declares have the name of the declaration."""


def measured(encoding: str | Mapping[str, Any], causal: bool = True) -> dict[str, Measurement]:
    """All properties of an encoding, given by its id or by the keys of a YAML.

    Raises:
        ConfigError: an unknown id, or options that are wrong.
        ValueError: the encoding does not fit the model.
    """
    case = Case.of(encoding, causal)
    return {name: measure(case) for name, measure in MEASURES.items()}


# The table


HEADINGS = {
    "unique": "unique",
    "deterministic": "deterministic",
    "relative": "relative",
    "decays": "decays",
    "longer_input": "longer input",
    "more_axes": "more axes",
    "translation_invariant": "shift-invariant",
    "prefix_consistent": "prefix-consistent",
    "preserves_norm": "keeps norms",
    "parameters": "parameters",
    "memory": "memory",
}
"""The columns of the table; what else is measured is in the CSV alone."""

MEANINGS = f"""\
All layers of a model of {LAYERS} layers, width {DIM} and {HEADS} heads, trained at up to {TRAIN} tokens and asked for
up to {LONGEST}; grids have as many cells. Learned numbers are drawn far from zero, and all is computed in float64.
A change of at most {_short(THRESHOLD)} of the largest logit counts as none; below {_short(ROUNDING)} it is shown
as 0. A dash: nothing has an effect that could be judged.

- unique: how many of 128 keys, all the same token, one query tells apart by position
- deterministic: change of a logit between two draws of what is learned, and between two calls
- relative: difference between logits of equal j - i, where all tokens are the same; the first {START} left out
- decays: share of the steps away from a query, past equal tokens, on which a logit grows; in 5 draws of what is learned
- longer input: learned numbers that decide logits at {16 * TRAIN} tokens and none at those of training
- more axes: the most axes of a position, of up to 3, of which each is read
- shift-invariant: change of a logit when all positions shift by {", ".join(map(str, SHIFTS))}, as far as there are any
- prefix-consistent: change of a logit when {4 * TRAIN} tokens are cut to 1, 17 or {TRAIN + 5}
- keeps norms: relative change of the length of a query or a key; or of a query as keys see it, where both are wider
- parameters: learned numbers of the model's layers together
- memory: exponent of the length, from 512 to 1024 tokens, in the bytes that a layer holds in training beyond `nope`
"""


@dataclass(frozen=True)
class Report:
    """The properties of several encodings, in a causal or a bidirectional model."""

    causal: bool
    found: dict[str, dict[str, Measurement]]
    left_out: list[str]
    """Those that have no meaning where a token sees later ones."""

    @classmethod
    def of(cls, encodings: Sequence[str], causal: bool = True) -> "Report":
        """
        Raises:
            ConfigError: an unknown id, or an encoding that cannot be built or called.
        """
        found, left_out = {}, []
        for name in encodings:
            with blamed_on(f"encoding={name}"):
                options = catalogue.read("encoding", name)
                if not causal and load_class("encoding", options["target"]).causal_only:
                    left_out.append(name)
                else:
                    found[name] = measured(options, causal)
        return cls(causal, found, left_out)

    def markdown(self) -> str:
        """The table, what its numbers are, and what a rotation does."""
        rows = [["encoding", *HEADINGS.values()]]
        for name, properties in self.found.items():
            rows.append([name, *(_cell(properties[key]) for key in HEADINGS)])
        kind = "causal" if self.causal else "bidirectional"
        parts = [f"# Properties of encodings in a {kind} model", _table(rows), MEANINGS]
        if self.left_out:
            parts.append(f"Left out, since they have no meaning in such a model: {', '.join(self.left_out)}.\n")
        return "\n\n".join(part.rstrip() for part in (*parts, rotation_by_steps(), dot_products())) + "\n"

    def csv(self) -> str:
        """One row for each encoding and property: verdict, number, and what the number is."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["encoding", "property", "verdict", "number", "what"])
        for name, properties in self.found.items():
            for key, property_ in properties.items():
                writer.writerow([name, key, property_.verdict, f"{property_.number:.6g}", property_.what])
        return text.getvalue()

    def write(self, folder: Path) -> list[Path]:
        """properties.md and properties.csv, in a folder that is made where there is none."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "properties.md", folder / "properties.csv"]
        for path, text in zip(paths, (self.markdown(), self.csv()), strict=True):
            write_text(path, text)
        return paths


def _cell(found: Measurement) -> str:
    return found.cell if found.cell.startswith(found.verdict) else f"{found.verdict} ({found.cell})"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table that is aligned in plain text too."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


# What a rotation does


def _rope() -> Encoding:
    geometry = Geometry(dim=4, heads=1, train_length=TRAIN, max_length=LONGEST, causal=True)
    return build_encodings(catalogue.read("encoding", "rope"), geometry)[0]


def _turned(vector: Sequence[float], positions: Sequence[int]) -> Tensor:
    """A vector as `rope` turns it at each position, (P, 4) float64."""
    x_BHTK = torch.tensor(vector, dtype=torch.float64).expand(1, 1, len(positions), 4)
    return _rope().rotate(x_BHTK, x_BHTK, torch.tensor(positions))[0][0, 0]


def rotation_by_steps(vector: Sequence[float] = (1, 2, 3, 4), steps: int = 6) -> str:
    """A head of 4 features at positions 0, 1, 2, ...: each pair turns by its own angle, and all lengths stay."""
    x = torch.tensor(vector, dtype=torch.float64)
    rows = [["p", "angle", "features 0, 1", "norm", "angle", "features 2, 3", "norm", "norm of all"]]
    for p, turned in enumerate(_turned(vector, range(steps))):
        row = [str(p)]
        for pair, theta in enumerate((1.0, 0.01)):
            first, second = turned[2 * pair : 2 * pair + 2].tolist()
            row += [f"{p * theta:.2f}", f"({first:.6f}, {second:.6f})", f"{math.hypot(first, second):.6f}"]
        rows.append([*row, f"{turned.norm():.6f}"])
    before = ", ".join(f"{value:g}" for value in vector)
    text = f"""\
## A rotation, step by step

`rope` on a head of 4 features, x = ({before}), with norm {x.norm():.6f}. At position p it turns features 0 and 1 by the
angle p, and features 2 and 3 by p / 100: (a, b) becomes (a cos - b sin, a sin + b cos).
"""
    return f"{text}\n{_table(rows)}"


def dot_products(positions: Sequence[int] = (0, 1, 2, 3, 1000, 1001, 1002, 1003)) -> str:
    """q turned at m times k turned at n, for all m and n, and the same by m - n: nothing else decides."""
    q, k = (1, 2, 3, 4), (2, -1, 1, 3)
    products = _turned(q, positions) @ _turned(k, positions).mT
    rows = [["m \\ n", *map(str, positions)]]
    rows += [
        [str(m), *(f"{value:.6f}" for value in line)] for m, line in zip(positions, products.tolist(), strict=True)
    ]
    by_difference: dict[int, list[float]] = {}
    for row, m in enumerate(positions):
        for column, n in enumerate(positions):
            by_difference.setdefault(m - n, []).append(float(products[row, column]))
    groups = [["m - n", "pairs", "dot product", "largest less smallest"]]
    for difference, values in sorted(by_difference.items()):
        spread = _short(_rounded(max(values) - min(values)))
        groups.append([str(difference), str(len(values)), f"{values[0]:.6f}", spread])
    return f"""\
## Dot products of rotated vectors

q = {q} turned at m, times k = {k} turned at n:

{_table(rows)}

The same by m - n, on which alone they depend (a difference below {_short(ROUNDING)} is shown as 0):

{_table(groups)}"""
