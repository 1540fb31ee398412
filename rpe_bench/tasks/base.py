"""What a task is: a sampler of token sequences with targets, and the baselines that a score is held against.

Shapes: B examples, T tokens, A axes of position, P positions read together.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

IGNORE = -100
"""The target of a position that is not scored (the value that torch's cross-entropy skips)."""


@dataclass(frozen=True)
class Batch:
    """Examples of one size.

    tokens_BT   int64 in [0, vocabulary)
    targets_BT  int64 in [0, classes), or IGNORE where nothing is asked; the target at t is read at position t (a causal
                task has shifted it already)
    positions   None for text, that is 0..T-1; or (B, T, A) integers, one column an axis, for a grid. Remapped, they may
                also be (T,) or (B, T), and float64
    slices      name -> (B,) integers that accuracy is also reported by, such as the distance to be bridged
    readout_BP  None; or P positions an example whose logits are summed to give its one answer: targets are then (B, 1)
    """

    tokens_BT: torch.Tensor
    targets_BT: torch.Tensor
    positions: torch.Tensor | None = None
    slices: dict[str, torch.Tensor] = field(default_factory=dict)
    readout_BP: torch.Tensor | None = None

    @classmethod
    def from_numpy(
        cls, tokens: np.ndarray, targets: np.ndarray, slices: dict[str, np.ndarray] | None = None, **rest: torch.Tensor
    ) -> "Batch":
        def as_int64(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))

        return cls(
            as_int64(tokens), as_int64(targets), slices={k: as_int64(v) for k, v in (slices or {}).items()}, **rest
        )

    def __len__(self) -> int:
        return len(self.tokens_BT)

    def rows(self, part: slice | torch.Tensor) -> "Batch":
        """Some of the examples, by a slice or by their indices."""
        positions = self.positions
        if positions is not None and positions.dim() > 1:
            positions = positions[part]
        readout = None if self.readout_BP is None else self.readout_BP[part]
        slices = {name: values[part] for name, values in self.slices.items()}
        return Batch(self.tokens_BT[part], self.targets_BT[part], positions, slices, readout)

    def ending(self, length: int, scored: int) -> "Batch":
        """The last `length` tokens of each example of text, of which the last `scored` targets count."""
        targets_BT = self.targets_BT[:, -length:].clone()
        targets_BT[:, : length - scored] = IGNORE
        return Batch(self.tokens_BT[:, -length:], targets_BT, slices=self.slices)

    def to(self, device: torch.device) -> "Batch":
        positions = None if self.positions is None else self.positions.to(device)
        readout = None if self.readout_BP is None else self.readout_BP.to(device)
        return Batch(self.tokens_BT.to(device), self.targets_BT.to(device), positions, self.slices, readout)


class Task(ABC):
    """One question put to an encoding. Subclasses are built from the keys of conf/task/NAME.yaml.

    NAME is that of the module, and its file shows every option at its default; a file of another NAME is there for the
    options in which it differs. ValueError where an option is out of its range; `types` and `base` are at least 2.

    A task has a problem *size*, the number that is swept in extrapolation (tokens to copy, length of the haystack);
    `length` turns it into the number of tokens in the sequence.
    """

    isolates: ClassVar[str]
    """The property that decides success: absolute index, relative offset, content match, recency or counting."""
    default_train_length: ClassVar[int]
    """The largest size trained on where the recipe names none."""
    min_size: ClassVar[int]
    """The smallest size that can be posed."""
    axes: ClassVar[int] = 1
    """Columns of a position: 1 for text, 2 for a grid."""
    causal: ClassVar[bool | None]
    """True: needs a decoder. False: needs an encoder. None: works in both, a decoder by default."""
    neutral: ClassVar[Mapping[str, object]] = {}
    """As of an encoding: options added later, at the value that leaves all as it was."""
    digits: tuple[int, ...] = ()
    """The token ids that are digits of numbers, where it has any."""
    training_examples: int | None = None
    """The size of a finite training set, or None where every step sees fresh examples."""
    places: ClassVar[frozenset[str]] = frozenset()
    """Options that say where something lies, which others identify by what it holds."""
    last: int | None = None
    """How many targets at the end of an example evaluation scores, all sizes evaluated ending in the same tokens; None
    where each size has its own examples, and all of their targets. A size is then the number of tokens, and the end of
    an example has to be an example itself."""

    vocabulary: int
    """Number of input token types; set by __init__."""
    classes: int
    """Number of answers that the model chooses from; set by __init__."""

    @abstractmethod
    def length(self, size: int) -> int:
        """Tokens in the sequence of a problem of this size."""

    def extents(self, size: int) -> tuple[int, ...]:
        """Positions along each axis of problems of up to this size, 0 to one less."""
        return (self.length(size),)

    def sizes(self, longest: int) -> Sequence[int]:
        """All sizes up to `longest`: those that training draws from."""
        return range(self.min_size, longest + 1)

    @abstractmethod
    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples of one size; vectorised, and a function of the generator alone. ValueError of `check_size`
        where the size is too small."""

    def held_out(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples to evaluate on: as `sample`, unless some of what there is must not be trained on."""
        return self.sample(rng, examples, size)

    def ideal_loss(self, batch: Batch) -> torch.Tensor | None:
        """What the best of all predictors loses at each target, (B, T) float64 in nats; None where it is not known."""
        return None

    def pinned(self) -> dict[str, object]:
        """Options that were left to what is found, as it was found; a run records them, and is identified by them."""
        return {}

    @abstractmethod
    def chance(self, size: int) -> float:
        """Token accuracy of one who knows the rules of the task and nothing of the example."""

    def check_size(self, size: int) -> None:
        """Raise ValueError where no problem of this size exists."""
        if size < self.min_size:
            raise ValueError(f"size {size} is too small: {type(self).__name__} needs at least {self.min_size}")

    def check_evaluated(self, size: int) -> None:
        """As `check_size`, for examples to evaluate on."""
        self.check_size(size)
        self.check_last(size)

    def check_last(self, size: int) -> None:
        """Raise ValueError where examples of this size have fewer targets than are to be scored."""
        if self.last is not None and size < self.last:
            raise ValueError(f"size {size} is too small: last={self.last} targets are scored")

    @staticmethod
    def checked_last(last: int | None) -> int | None:
        """`last` as given, for a constructor; ValueError where there is no such number of targets."""
        if last is not None and last < 1:
            raise ValueError(f"last must be at least 1, or null for all, got {last}")
        return last


def read_then_written(symbols: np.ndarray, answer: np.ndarray, bos: int, sep: int) -> Batch:
    """BOS, symbols (B, n), SEP, and the answer (B, m), which is scored from SEP on, each token by the one after it."""
    examples, size = symbols.shape
    tokens = np.empty((examples, 1 + size + answer.shape[1]), dtype=np.int64)
    tokens[:, 0] = bos
    tokens[:, 1 : size + 1] = symbols
    tokens[:, size + 1] = sep
    tokens[:, size + 2 :] = answer[:, :-1]
    targets = np.full_like(tokens, IGNORE)
    targets[:, size + 1 :] = answer
    return Batch.from_numpy(tokens, targets)
