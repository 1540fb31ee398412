"""How much of a training step is matrix products that have to be, and how fast the machine could do them.

The floor of a step is the time that its matrix products would take at the speed of one large product. What a step takes
beyond its floor is memory traffic, small products, and everything that is no product at all.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rpe_bench.config import Config
from rpe_bench.profiling.cells import Call

SIDES = {"cpu": 1024, "cuda": 8192}
"""Of the square matrices whose product is the measure of speed."""

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Work:
    """Floating point operations of a step's matrix products: two for each multiplication, three times those of the
    forward pass.

    linear      of the linear layers
    attention   of q.k and of the weights with v, for the pairs that the mask leaves
    masked      the same for the pairs that it hides, which need not be computed
    """

    linear: float
    attention: float
    masked: float

    @classmethod
    def of(cls, config: Config, length: int, examples: int) -> "Work":
        """Of the trunk: products that an encoding adds are its own cost."""
        D, layers, tokens = config.model.dim, config.model.layers, examples * length
        classes = config.build_task().classes
        products = layers * 12 * D * D + D * classes  # q, k, v, out: 4 D^2; the MLP: 8 D^2; the answers
        pairs = examples * length * length
        seen = examples * length * (length + 1) // 2 if config.model.causal else pairs
        of_pair = layers * 2 * D
        return cls(6 * tokens * products, 6 * of_pair * seen, 6 * of_pair * (pairs - seen))

    def seconds(self, speeds: dict[str, float], precision: str, masked: bool = False) -> float:
        """The floor, at speeds in operations a second."""
        operations = self.linear + self.attention + masked * self.masked
        return operations / speeds["bf16" if precision == "bf16-mixed" else "fp32"]


def large_products(device: torch.device) -> dict[str, tuple[Call, float]]:
    """Precision -> a large matrix product, and its floating point operations."""
    side = SIDES[device.type]
    found: dict[str, tuple[Call, float]] = {}
    for name, dtype in PRECISIONS.items():
        a, b = torch.randn(2, side, side, device=device).to(dtype).unbind()
        found[name] = (_product(a, b), 2.0 * side**3)
    return found


def _product(a: torch.Tensor, b: torch.Tensor) -> Callable[[], None]:
    out = torch.empty_like(a)

    def call() -> None:
        torch.mm(a, b, out=out)

    return call
