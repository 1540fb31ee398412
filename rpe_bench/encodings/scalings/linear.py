"""Position interpolation: Chen et al. 2023, "Extending context window of large language models via positional
interpolation" (arXiv 2306.15595)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rpe_bench.encodings.scalings.base import Rotation, Scaling


@dataclass(frozen=True, kw_only=True)
class Linear(Scaling):
    """theta'_t = theta_t / s: position p turns as p/s did."""

    name: Literal["linear"] = "linear"

    year = 2023
    source = "Chen et al. 2023, arXiv 2306.15595"

    def frequencies(self, rotation: Rotation, length: Tensor) -> Tensor:
        return rotation.frequencies(length.device) / self.factor
