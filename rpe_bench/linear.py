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
        if dtype_by_onednn(x) == torch.float32:  # those of bfloat16 torch itself leaves to oneDNN
            return _Linear.apply(x, self.weight, self.bias)
        return super().forward(x)


HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether torch is built with it."""


def dtype_by_onednn(x: Tensor) -> torch.dtype | None:
    """In which oneDNN is asked for the products of x with weights in float32; None where it is not."""
    if x.device.type != "cpu" or x.dtype == torch.float64 or not HAS_ONEDNN or torch.compiler.is_compiling():
        return None
    if not torch.is_autocast_enabled("cpu"):
        return x.dtype if x.dtype == torch.float32 else None
    dtype = torch.get_autocast_dtype("cpu")
    return dtype if dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported() else None


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None, then: str = "none") -> Tensor:
    """x W^T + b, of one dtype; then "gelu" of it, the exact one."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "none")
    return product


def gradients_by_onednn(
    gradient: Tensor, x: Tensor, weight: Tensor, is_biased: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Those of x, W and b, given that of x W^T + b."""
    rows = gradient.flatten(0, -2)
    return by_onednn(gradient, weight.T), rows.T @ x.flatten(0, -2), rows.sum(0) if is_biased else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.is_biased = bias is not None
        return by_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        return gradients_by_onednn(gradient, x, weight, ctx.is_biased)
