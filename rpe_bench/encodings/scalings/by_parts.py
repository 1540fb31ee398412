"""NTK by parts: bloc97 2023, published on the web and described in Peng et al. 2023 (arXiv 2309.00071, 3.2)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rpe_bench.encodings.base import check_choice
from rpe_bench.encodings.scalings.base import Rotation, Scaling, check_original_length


@dataclass(frozen=True, kw_only=True)
class ByParts(Scaling):
    """theta'_t = gamma_t theta_t + (1 - gamma_t) theta_t / s: pairs that turn often stay, slow ones are interpolated.

    In L0 positions pair t turns n_t = L0 theta_t / (2 pi) times; gamma_t is 1 where that is at least `beta_fast`, 0
    where it is at most `beta_slow`. In between the paper and the code that its authors released differ, by up to 44 %
    of a frequency:

    ramp=index      as the code: gamma falls linearly in t, from the pair that turns beta_fast times to that which turns
                    beta_slow times, these two taken to the next whole t outwards where `truncate`
    ramp=rotations  as the paper: gamma = (n_t - beta_slow) / (beta_fast - beta_slow)
    """

    name: Literal["by_parts"] = "by_parts"
    original_length: int | None = None
    ramp: Literal["index", "rotations"] = "index"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    year = 2023
    source = "bloc97 2023; Peng et al. 2023, arXiv 2309.00071"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_original_length(self.original_length)
        check_choice("ramp", self.ramp, "index", "rotations")
        if not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(f"beta_slow={self.beta_slow} must lie between 0 and beta_fast={self.beta_fast}")

    def frequencies(self, rotation: Rotation, length: Tensor) -> Tensor:
        theta = rotation.frequencies(length.device)
        L0 = self.original_length or rotation.trained
        gamma = self._by_rotations(theta, L0) if self.ramp == "rotations" else self._by_index(rotation, theta, L0)
        return gamma * theta + (1 - gamma) * theta / self.factor

    def _by_rotations(self, theta: Tensor, L0: int) -> Tensor:
        turned = L0 * theta / (2 * math.pi)
        return ((turned - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)

    def _by_index(self, rotation: Rotation, theta: Tensor, L0: int) -> Tensor:
        r = rotation.width

        def index(turned: float) -> float:
            """The t, not a whole one, of the pair that turns so often."""
            return r * math.log(L0 / (2 * math.pi * turned)) / (2 * math.log(rotation.base))

        low, high = index(self.beta_fast), index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # The bound r - 1 is the code's; there are r/2 pairs. The least rise keeps the ramp from dividing by zero and,
        # where not even the first pair turns beta_slow times, from running backwards.
        low, high = max(low, 0), min(high, r - 1)
        t = torch.arange(r // 2, dtype=torch.float64, device=theta.device)
        return 1 - ((t - low) / max(high - low, 0.001)).clamp(0, 1)
