"""What an encoding is, and the five places at which a position can enter a Transformer.

Shapes, here and in every encoding:

    B  batch        T  tokens             D  model width     A  axes of a position (1 for text, 2 for a grid)
    H  heads        K  width of a head    Q  rows (queries)  S  columns (keys)

Signs: an *offset* is key position minus query position, j - i: the past is negative. A *distance* has no sign.
"""

import inspect
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Geometry:
    """The model that an encoding serves; everything that an encoding may size itself by."""

    dim: int
    heads: int
    train_length: int
    """The longest sequence trained on, in tokens."""
    max_length: int
    """The longest sequence that will be evaluated, in tokens."""
    causal: bool
    layers: int = 1
    axes: int = 1
    layer: int = 0
    """The layer served, where there is one module a layer."""
    train_extents: tuple[int, ...] = ()
    """Positions met in training along each axis, 0 to one less. Left out: those of `train_length` tokens in a line, or
    in the smallest square (cube) that holds them."""
    max_extents: tuple[int, ...] = ()
    """Positions met in evaluation along each axis; left out: as for training, of `max_length`."""
    digits: tuple[int, ...] = ()
    """The token ids that are digits of numbers, where the task has any."""

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "train_length", "max_length", "layers", "axes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r} must be a positive integer")
        if self.dim % self.heads:
            raise ValueError(f"heads={self.heads} must divide dim={self.dim}")
        if type(self.causal) is not bool:
            raise ValueError(f"causal={self.causal!r} must be true or false")
        for name, length in (("train_extents", self.train_length), ("max_extents", self.max_length)):
            extents = getattr(self, name) or (_side(length, self.axes),) * self.axes
            if len(extents) != self.axes or min(extents) < 1:
                raise ValueError(f"{name}={extents} must be {self.axes} positive integers, one an axis")
            object.__setattr__(self, name, tuple(extents))

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def _side(cells: int, axes: int) -> int:
    """The least side of a square (cube, ...) of at least so many cells."""
    return next(side for side in itertools.count(round(cells ** (1 / axes)) - 1) if side**axes >= cells)


@dataclass(frozen=True)
class Context:
    """The circumstances of one attention call: which rows and columns, at which positions, and what is behind q and k.

    positions   of all tokens: None, that is 0..T-1; or (T,), (B, T) or (B, T, A)
    length      T
    causal      whether later tokens are hidden; later by index, whatever the positions
    rows        the queries at hand, where a long sequence is taken in chunks of rows
    x_BTD       the layer's normalised input, for gates and rotations that depend on data
    tokens_BT   the token ids, for encodings that read them
    project     the layer's own query and key projections applied to vectors (..., D), giving two (..., H, K); for
                encodings that share them with the content
    content     the scaled logits of content (B, H, Q, S) before any bias, for encodings that count by them
    masked      whether a mask hides what follows a query, and whatever is said of it is of no account
    parent      that of all tokens, where this is that of some rows, or of the prefix up to them
    memo        what layers may share within one forward pass; never outlives it

    Positions are data: what remaps them (random draws, an offset, interpolation) does so before the model, and no
    encoding has to draw anything.
    """

    length: int
    causal: bool
    positions: Tensor | None = None
    rows: slice = field(default_factory=lambda: slice(None))  # a slice is unhashable before Python 3.12
    device: torch.device = torch.device("cpu")
    x_BTD: Tensor | None = None
    tokens_BT: Tensor | None = None
    project: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    content_BHQS: Tensor | None = None
    masked: bool = False
    parent: "Context | None" = None
    memo: dict[Any, Any] = field(default_factory=dict)

    def with_(self, **changes: Any) -> "Context":
        return replace(self, **changes)

    def prefix(self, length: int) -> "Context":
        """The same of the first tokens alone, with a memo of its own that all layers share."""
        positions = self.positions
        if positions is not None:
            positions = positions[:length] if positions.dim() == 1 else positions[:, :length]
        return self.with_(
            length=length,
            positions=positions,
            x_BTD=None if self.x_BTD is None else self.x_BTD[:, :length],
            tokens_BT=None if self.tokens_BT is None else self.tokens_BT[:, :length],
            memo=self.memo.setdefault(("prefix", length), {}),
        )

    @property
    def uncut(self) -> "Context":
        """That of all tokens."""
        return self.parent or self

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once in a forward pass for all rows and layers that have the same key."""
        memo = self.uncut.memo
        if key not in memo:
            memo[key] = make()
        return memo[key]

    @property
    def key_positions(self) -> Tensor:
        """(S,), (B, S) or (B, S, A)."""
        return torch.arange(self.length, device=self.device) if self.positions is None else self.positions

    @property
    def query_positions(self) -> Tensor:
        """(Q,), (B, Q) or (B, Q, A): the rows at hand."""
        positions = self.key_positions
        return positions[self.rows] if positions.dim() == 1 else positions[:, self.rows]

    @property
    def offset(self) -> Tensor:
        """Key position minus query position: (Q, S), (B, Q, S) or (B, Q, S, A)."""
        queries, keys = self.query_positions, self.key_positions
        if keys.dim() == 1:
            return keys[None, :] - queries[:, None]
        return keys[:, None] - queries[:, :, None]

    @property
    def hidden_QS(self) -> Tensor | None:
        """True where a key lies after the query in the sequence; None where nothing is hidden."""
        if not self.causal:
            return None
        index = torch.arange(self.length, device=self.device)
        return index[None, :] > index[self.rows, None]


def check_positions(positions: Tensor | None, batch: int, length: int) -> None:
    """Raise ValueError where positions are not None, (T,), (B, T) or (B, T, A) of B examples and T tokens."""
    if positions is not None and tuple(positions.shape[:2]) not in ((length,), (batch, length)):
        given = tuple(positions.shape)
        raise ValueError(f"positions {given} do not fit {batch} examples of {length} tokens: (T,), (B, T) or (B, T, A)")


def single_axis(positions: Tensor) -> Tensor:
    """Positions (T,), (B, T) or (B, T, 1), or offsets with one dimension more, without their axis."""
    if positions.dim() < 3:
        return positions
    if positions.shape[-1] != 1:
        raise ValueError(f"this encoding takes one axis of position, and was given {positions.shape[-1]}")
    return positions.squeeze(-1)


class Encoding(nn.Module):
    """No position at all, and the base of every encoding: override the places that the paper changes, and no others.

    `embed`    on the embeddings, once, below the first layer
    `rotate`   on queries and keys, in every layer
    `content`  the logits of content (an encoding that transports keys to queries replaces them)
    `bias`     added to the scaled logits; a term that its paper scales, scales itself
    `value`    on the mixed values
    `scale`    the softmax scale, an attribute: a number, or a tensor that multiplies q

    Softmax itself is no such place, and queries are rows of the same sequence as the keys. Subclasses declare what is
    true of them, and the tests hold them to it.
    """

    year: int | None = None
    """Of the paper."""
    source: str = ""
    """The paper: authors and arXiv number."""
    learns: ClassVar[str] = "0"
    """How many numbers one module learns, as a Python expression of D, H, K (the geometry), L (`max_extents[0]`) and
    the class's options."""

    in_effect: ClassVar[str] = ""
    """The place that the paper changes, where the class computes at others what comes to the same; left out, it is
    those that the class overrides."""

    neutral: ClassVar[Mapping[str, object]] = {}
    """Options that were added after runs had been published, at the value that leaves all as it was before. At that
    value they are left out of a run's identity, so that finished runs stay finished."""

    # What is true of it. A class declares it, and __init__ overrides it on the instance where an option changes it.

    translation_invariant: bool = True
    """Logits stay the same when every position shifts by a constant."""
    prefix_consistent: bool = True
    """The logits of a prefix do not depend on what follows it."""
    causal_only: bool = False
    """Has no meaning where a token sees later ones."""
    decays: bool = False
    """Whatever it has learned, the share of a logit that is the position's never grows with distance, and falls
    somewhere."""
    preserves_norm: bool = False
    """Changes queries and keys by rotations alone, whatever it has learned."""
    pairwise: bool = True
    """A logit depends on its two tokens and their positions alone, and not on what stands between them."""
    needs_tokens: bool = False
    """Reads token ids."""
    axes: int | None = 1
    """Columns of a position that it takes; None for any number."""

    longest: int | None = None
    """How many positions along an axis it can represent, 0 to one less; None without limit."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.scale: float | Tensor = geometry.head_dim**-0.5

    @classmethod
    def build(cls, geometry: Geometry, **parameters: Any) -> list["Encoding"]:
        """The modules of a model: one a layer where the class has a parameter `shared` that is false, else one for all.

        Override it for mixtures (layers that alternate) and for parts that layers share.
        """
        option = inspect.signature(cls).parameters.get("shared")
        if parameters.get("shared", option.default if option else True):
            return [cls(geometry, **parameters)]
        return [cls(replace(geometry, layer=layer), **parameters) for layer in range(geometry.layers)]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw the initial values of the encoding's own parameters; nothing to draw here."""

    def embed(self, x_BTD: Tensor, positions: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        return x_BTD

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        """May change the width of q and k, together."""
        return q_BHTK, k_BHTK

    def content(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        """scale * q.k, (B, H, Q, S)."""
        return (q_BHQK * self.scale) @ k_BHSK.mT

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor | None:
        """Broadcastable to (B, H, Q, S), or None."""
        return None

    def biased(self, content_BHQS: Tensor, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        """content + bias. No place of its own: a class that overrides it has a faster way to the same sum."""
        bias = self.bias(q_BHQK, k_BHSK, context.with_(content_BHQS=content_BHQS))
        return content_BHQS if bias is None else content_BHQS + bias

    def value(self, weights_BHQS: Tensor, v_BHSK: Tensor, context: Context) -> Tensor:
        """The mixed values, (B, H, Q, K)."""
        return weights_BHQS @ v_BHSK

    @classmethod
    def changes(cls) -> list[str]:
        """The places that the class overrides."""
        return [place for place in ("embed", "rotate", "content", "bias", "value") if cls._overrides(place)]

    @classmethod
    def _overrides(cls, *places: str) -> bool:
        return any(getattr(cls, place) is not getattr(Encoding, place) for place in places)


class DistanceBias(Encoding):
    """A bias that depends on the offset j - i alone: define `of_offset`, and every attention path follows."""

    @abstractmethod
    def of_offset(self, offset: Tensor) -> Tensor:
        """Offsets j - i of any shape, integers or float64, to biases (*offset.shape, H), or (..., 1) for all heads."""

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        offset = context.offset
        if offset.dim() == 4:
            offset = single_axis(offset)
        return self._of_offset(offset).movedim(-1, -3).to(q_BHQK.dtype)

    def _of_offset(self, offset: Tensor) -> Tensor:
        """`of_offset`; ValueError where its shape is another, which attention might take for that of some heads."""
        bias, heads = self.of_offset(offset), self.geometry.heads
        if bias.shape[:-1] != offset.shape or bias.shape[-1] not in (1, heads):
            asked = f"{tuple(offset.shape)} must give {(*offset.shape, heads)} or {(*offset.shape, 1)}"
            raise ValueError(f"{type(self).__name__}.of_offset: offsets {asked}, and gave {tuple(bias.shape)}")
        return bias

    def by_offset_alone(self, context: Context) -> bool:
        """Whether `of_offset` is all there is: a subclass may add to the bias, perhaps beyond some length, or change
        another place."""
        others = set(self.changes()) - {"embed", "rotate", "bias"}
        return type(self).bias is DistanceBias.bias and not others

    @property
    def learned(self) -> bool:
        """Whether the biases change in training."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def of_all_offsets(self, length: int, causal: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The biases of the offsets -(T-1)..T-1, (H, 2T-1) or (1, 2T-1); minus infinity in a causal model's future."""
        offset = torch.arange(1 - length, 1 if causal else length, device=device)
        past = self._of_offset(offset).mT.to(dtype)
        if not causal:
            return past.contiguous()
        return torch.nn.functional.pad(past, (0, length - 1), value=-math.inf)


class Cache:
    """The last tables of a module, by a key that names everything they depend on.

    A plain attribute rather than a buffer: casting or moving the module must not touch tables that were built in
    float64 and rounded once, and a module built on the meta device has nothing to initialise.
    """

    def __init__(self, entries: int = 64) -> None:
        self._entries = entries
        self._tables: dict[Any, Tensor] = {}

    def get(self, key: Any, build: Callable[[], Tensor]) -> Tensor:
        if torch.compiler.is_compiling():  # which would compile anew for each key
            return build()
        if key not in self._tables:
            if len(self._tables) >= self._entries:
                self._tables.pop(next(iter(self._tables)))
            # A table made under inference mode could not take part in a later training step.
            with torch.inference_mode(False), torch.no_grad():
                self._tables[key] = build()
        return self._tables[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._entries)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._entries,)


def layer_input(context: Context | None) -> Tensor:
    """x_BTD of the context; ValueError where there is none, and an encoding reads it."""
    if context is None or context.x_BTD is None:
        raise ValueError("this encoding depends on the layer's input, and was given none: it needs x (B, T, D)")
    return context.x_BTD


def whole(positions: Tensor) -> Tensor:
    """Positions or offsets as integers; ValueError where some are fractions, which a table has no rows for."""
    if not positions.is_floating_point():
        return positions
    if bool((positions != positions.round()).any()):
        raise ValueError("a learned table has rows for whole positions only, and was given fractions")
    return positions.long()


def check_choice(name: str, given: object, *allowed: object) -> None:
    """Raise ValueError, naming both, where an option is not among its choices."""
    if given not in allowed:
        raise ValueError(f"{name}={given} is not one of {', '.join(map(str, allowed))}")


def check_std(std: float) -> None:
    """Raise ValueError where initial values cannot be drawn from N(0, std^2)."""
    if std < 0:
        raise ValueError(f"std={std} must not be negative")


def check_base(base: float) -> None:
    """Raise ValueError where frequencies base^(-2t/width) would not fall with t."""
    if base <= 1:
        raise ValueError(f"base={base} must be greater than 1")
