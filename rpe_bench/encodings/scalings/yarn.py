"""YaRN: Peng et al. 2023, "YaRN: Efficient context window extension of large language models" (arXiv 2309.00071)."""

import math
from dataclasses import dataclass
from typing import Literal

from rpe_bench.encodings.scalings.base import Rotation, check_attention_factor
from rpe_bench.encodings.scalings.by_parts import ByParts


@dataclass(frozen=True, kw_only=True)
class YaRN(ByParts):
    """NTK by parts and a temperature: turned queries and keys are multiplied by mscale = 0.1 ln s + 1, and so logits by
    mscale^2.

    `attention_factor` replaces mscale where given. Features that do not turn (partial rotary) are not multiplied.
    """

    name: Literal["yarn"] = "yarn"  # type: ignore[assignment]
    attention_factor: float | None = None

    year = 2023
    source = "Peng et al. 2023, arXiv 2309.00071"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attention_factor(self.attention_factor)

    def amplitude(self, rotation: Rotation) -> float:
        return self.attention_factor or 0.1 * math.log(self.factor) + 1

    def rescales(self) -> bool:
        return self.attention_factor != 1 and (self.attention_factor is not None or self.factor > 1)
