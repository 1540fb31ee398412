"""Dynamic NTK scaling: emozilla 2023, published on the web and described in Peng et al. 2023 (arXiv 2309.00071)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rpe_bench.encodings.scalings.base import Rotation, Scaling, check_original_length
from rpe_bench.encodings.scalings.ntk import check_two_pairs


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(Scaling):
    """base' = base * a^(r/(r-2)), a = s max(T, L0)/L0 - (s - 1): plain RoPE up to L0, then the further the longer.

    With s = 1 the base grows just as the length beyond L0 asks; a larger s is ahead of it.

    T is the length at hand, the largest position + 1 of each sequence. It is looked at anew in every call: neither an
    earlier call nor a longer sequence of the same batch matters. A token therefore changes what is before it, and what
    was rotated for one length does not serve another.
    """

    name: Literal["dynamic_ntk"] = "dynamic_ntk"
    original_length: int | None = None

    year = 2023
    source = "emozilla 2023; Peng et al. 2023, arXiv 2309.00071"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_original_length(self.original_length)

    def check(self, rotation: Rotation) -> None:
        check_two_pairs(self.name, rotation)

    def by_length(self) -> bool:
        return True

    def frequencies(self, rotation: Rotation, length: Tensor) -> Tensor:
        r = rotation.width
        L0 = self.original_length or rotation.trained
        a = self.factor * length.double().clamp(min=L0) / L0 - (self.factor - 1)
        return rotation.frequencies(length.device, base=rotation.base * a ** (r / (r - 2)))
