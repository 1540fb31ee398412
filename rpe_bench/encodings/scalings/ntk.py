"""NTK-aware scaling: bloc97 2023, published on the web and described in Peng et al. 2023 (arXiv 2309.00071, 3.1)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rpe_bench.encodings.scalings.base import Rotation, Scaling


def check_two_pairs(name: str, rotation: Rotation) -> None:
    if rotation.width < 4:
        raise ValueError(
            f"scaling {name} stretches the slowest of several pairs: {rotation.width} rotated features are one pair"
        )


@dataclass(frozen=True, kw_only=True)
class NTK(Scaling):
    """base' = base * s^(r/(r-2)): the highest frequency stays, and the lowest is divided by exactly s.

    r is the number of features that turn, not the width of the head where the two differ.
    """

    name: Literal["ntk"] = "ntk"

    year = 2023
    source = "bloc97 2023; Peng et al. 2023, arXiv 2309.00071"

    def check(self, rotation: Rotation) -> None:
        check_two_pairs(self.name, rotation)

    def frequencies(self, rotation: Rotation, length: Tensor) -> Tensor:
        r = rotation.width
        return rotation.frequencies(length.device, base=rotation.base * self.factor ** (r / (r - 2)))
