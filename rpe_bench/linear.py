"""Linear layers of the trunk, by oneDNN where that is faster."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Linear(nn.Linear):
    """x W^T + b of x (..., in features): torch's own layer, to rounding.

    Of float32 on a CPU torch has its products made by MKL, and oneDNN makes them in 0.8 to 0.9 of the time; it is at
    hand under a name of torch's own compiler. The gradient of the weights alone is faster by MKL.
    """

    def forward(self, x: Tensor) -> Tensor:
        in_float32 = x.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)
        if in_float32 and x.device.type == "cpu" and HAS_ONEDNN and not torch.compiler.is_compiling():
            return _Linear.apply(x, self.weight, self.bias)
        return super().forward(x)


HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether torch is built with it."""


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.is_biased = bias is not None
        return _by_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        of_bias = rows.sum(0) if ctx.is_biased else None
        return _by_onednn(gradient, weight.T), rows.T @ x.flatten(0, -2), of_bias
