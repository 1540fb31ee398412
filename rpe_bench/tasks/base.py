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

    def to(self, device: torch.device) -> "Batch":
        positions = None if self.positions is None else self.positions.to(device)
        readout = None if self.readout_BP is None else self.readout_BP.to(device)
        return Batch(self.tokens_BT.to(device), self.targets_BT.to(device), positions, self.slices, readout)


class Task(ABC):
    """One question put to an encoding. Subclasses are built from the keys of conf/task/NAME.yaml.

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
        """Draw examples of one size; vectorised, and a function of the generator alone."""

    @abstractmethod
    def chance(self, size: int) -> float:
        """Token accuracy of one who knows the rules of the task and nothing of the example."""

    def check_size(self, size: int) -> None:
        """Raise ValueError where no problem of this size exists."""
        if size < self.min_size:
            raise ValueError(f"size {size} is too small: {type(self).__name__} needs at least {self.min_size}")
