"""LongRoPE: Ding et al. 2024, "LongRoPE: Extending LLM context window beyond 2 million tokens" (arXiv 2402.13753)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rpe_bench.encodings.scalings.base import Rotation, Scaling, check_attention_factor, check_original_length
from rpe_bench.encodings.scalings.ntk import check_two_pairs


@dataclass(frozen=True, kw_only=True)
class LongRoPE(Scaling):
    """theta'_t = theta_t / lambda_t, lambda = `short_factor` up to L0 and `long_factor` beyond, one number a pair.

    The paper searches these numbers for a model; they are given here, and none are searched. Without any (null) short
    is 1 throughout and long rises geometrically from 1 to s, lambda_t = s^(2t/(r-2)): the NTK-aware scaling, one of
    those that the paper's search starts from.

    At every length turned queries and keys are multiplied by sqrt(1 + ln s / ln L0), or by `attention_factor` where
    given. The length at hand is the largest position + 1 of each sequence. That the paper leaves the first tokens as
    they are is not part of this.
    """

    name: Literal["longrope"] = "longrope"
    original_length: int | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    attention_factor: float | None = None

    year = 2024
    source = "Ding et al. 2024, arXiv 2402.13753"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_original_length(self.original_length, least=2)  # of which amplitude takes the logarithm
        check_attention_factor(self.attention_factor)
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if factors is not None and min(factors, default=0) <= 0:
                raise ValueError(f"{name}={list(factors)} must be positive numbers, one a pair")

    def check(self, rotation: Rotation) -> None:
        pairs = rotation.width // 2
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if factors is not None and len(factors) != pairs:
                raise ValueError(f"{name} has {len(factors)} numbers, and must have {pairs}, one a pair that turns")
        if self.long_factor is None:
            check_two_pairs(self.name, rotation)
        if self.original_length is None and rotation.trained < 2:
            raise ValueError(f"scaling {self.name} needs an original_length of at least 2, not {rotation.trained}")

    def amplitude(self, rotation: Rotation) -> float:
        L0 = self.original_length or rotation.trained
        return self.attention_factor or math.sqrt(1 + math.log(self.factor) / math.log(L0))

    def rescales(self) -> bool:
        return self.attention_factor != 1 and (self.attention_factor is not None or self.factor > 1)

    def by_length(self) -> bool:
        return self.short_factor != self.long_factor or (self.long_factor is None and self.factor > 1)

    def frequencies(self, rotation: Rotation, length: Tensor) -> Tensor:
        short, long = (
            torch.tensor(factors, dtype=torch.float64, device=length.device)
            for factors in (self._short(rotation), self._long(rotation))
        )
        beyond = length > (self.original_length or rotation.trained)
        return rotation.frequencies(length.device) / torch.where(beyond[..., None], long, short)

    def _short(self, rotation: Rotation) -> tuple[float, ...]:
        return self.short_factor or (1.0,) * (rotation.width // 2)

    def _long(self, rotation: Rotation) -> tuple[float, ...]:
        r = rotation.width
        return self.long_factor or tuple(self.factor ** (2 * t / (r - 2)) for t in range(r // 2))
