"""Llama 3's scaling: Grattafiori et al. 2024, "The Llama 3 herd of models" (arXiv 2407.21783)."""

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rpe_bench.encodings.scalings.base import Rotation, Scaling, check_original_length


@dataclass(frozen=True, kw_only=True)
class Llama3(Scaling):
    """Wavelengths w_t = 2 pi / theta_t up to L0 / `high_freq_factor` stay, those from L0 / `low_freq_factor` on are
    divided by s, and in between

        theta'_t = c theta_t + (1 - c) theta_t / s
        c = (L0/w_t - low_freq_factor) / (high_freq_factor - low_freq_factor)

    It is NTK by parts with the paper's ramp and other bounds. Llama 3.1 has s = 8 and L0 = 8192; the formula is that of
    its code.
    """

    name: Literal["llama3"] = "llama3"
    original_length: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    year = 2024
    source = "Grattafiori et al. 2024, arXiv 2407.21783"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_original_length(self.original_length)
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor} must lie between 0 and "
                f"high_freq_factor={self.high_freq_factor}"
            )

    def frequencies(self, rotation: Rotation, length: Tensor) -> Tensor:
        theta = rotation.frequencies(length.device)
        L0 = self.original_length or rotation.trained
        turned = L0 * theta / (2 * math.pi)  # L0 / w_t
        c = ((turned - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return c * theta + (1 - c) * theta / self.factor
