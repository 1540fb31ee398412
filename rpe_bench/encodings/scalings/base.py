"""What a scaling of RoPE is: other frequencies, and perhaps an amplitude, so that a model reads beyond its training."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """What a scaling changes: the frequencies theta_t = base^(-2t/r) of the r features that turn, t < r/2."""

    base: float
    width: int
    """r: of the features that turn, which may be fewer than a head has."""
    trained: int
    """Positions met in training."""

    def frequencies(self, device: torch.device, base: float | Tensor | None = None) -> Tensor:
        """(*base.shape, r/2) float64; of another base where one is given."""
        exponent = -torch.arange(0, self.width, 2, dtype=torch.float64, device=device) / self.width
        base = self.base if base is None else base
        return (base[..., None] if isinstance(base, Tensor) else base) ** exponent


@dataclass(frozen=True, kw_only=True)
class Scaling(ABC):
    """A way to stretch the positions trained on over `factor` (s) times as many.

    Where a scaling knows the length trained on (L0), `original_length` is it, in positions, and None stands for what
    the model at hand is trained on. But for those that look at the length at hand, a scaling acts in training too.
    """

    name: str
    """Tells the scalings apart in a config."""
    factor: float

    year: ClassVar[int]
    source: ClassVar[str]

    def __post_init__(self) -> None:
        """Raise ValueError for an option out of its range."""
        if self.factor < 1:
            raise ValueError(f"factor={self.factor} must be at least 1")

    def check(self, rotation: Rotation) -> None:  # noqa: B027 - most fit any
        """Raise ValueError where the scaling does not fit a rotation."""

    @abstractmethod
    def frequencies(self, rotation: Rotation, length: Tensor) -> Tensor:
        """theta'_t, float64.

        Args:
            rotation: what is scaled.
            length: of the sequence at hand, its largest position + 1: (1,), or (B, 1) for a batch.

        Returns:
            (r/2,), or (*length.shape, r/2) where the length matters.
        """

    def amplitude(self, rotation: Rotation) -> float:
        """What turned queries and keys are both multiplied by: a logit gets its square."""
        return 1.0

    # What it breaks of RoPE.

    def by_length(self) -> bool:
        """Whether the frequencies depend on the length at hand, and so logits on more than j - i."""
        return False

    def rescales(self) -> bool:
        """Whether the amplitude is another than 1."""
        return False


def check_original_length(original_length: int | None, least: int = 1) -> None:
    if original_length is not None and original_length < least:
        raise ValueError(f"original_length={original_length} must be at least {least}, or null")


def check_attention_factor(attention_factor: float | None) -> None:
    if attention_factor is not None and attention_factor <= 0:
        raise ValueError(f"attention_factor={attention_factor} must be positive, or null")
