"""The feed-forward network of a block: W2 gelu(W1 x + b1) + b2."""

from collections.abc import Iterable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu
from torch.nn.modules.module import _has_any_global_hook

from rpe_bench.linear import Linear, by_onednn, dtype_by_onednn, gradients_by_onednn


class MLP(nn.Sequential):
    """Of x (..., D): its layers one after another, to rounding.

    On a CPU, `Linear`, `GELU` and `Linear` are one function, whose gradient of the hidden layer takes the place of that
    of gelu: it is the largest tensor of a step, and to write one more costs more than to compute it. Layers that have
    hooks, and others in the place of these, are called one by one.
    """

    @classmethod
    def of(cls, dim: int) -> Self:
        """Of width D, and hidden width 4 D."""
        return cls(Linear(dim, 4 * dim), nn.GELU(), Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        dtype = dtype_by_onednn(x)
        if dtype is None or tuple(map(type, self)) != (Linear, nn.GELU, Linear) or _has_hooks(self):
            return cast(Tensor, super().forward(x))
        first, _, second = cast(tuple[Linear, nn.GELU, Linear], tuple(self))
        weights = (first.weight, first.bias, second.weight, second.bias)
        if torch.is_grad_enabled():
            return cast(Tensor, _MLP.apply(x, *weights, dtype))
        # What gelu is of need not be kept, so that it is taken as the product is made.
        x, weight_1, bias_1, weight_2, bias_2 = (given.to(dtype) for given in (x, *weights))
        return by_onednn(by_onednn(x, weight_1, bias_1, "gelu"), weight_2, bias_2)


def _has_hooks(layers: Iterable[nn.Module]) -> bool:
    """Whether torch would call any on them, of theirs or of all modules."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return bool(_has_any_global_hook()) or any(getattr(layer, kind) for layer in layers for kind in kinds)


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor, dtype: torch.dtype
    ) -> Tensor:
        x, weight_1, bias_1, weight_2, bias_2 = (given.to(dtype) for given in (x, weight_1, bias_1, weight_2, bias_2))
        hidden = by_onednn(x, weight_1, bias_1)
        active = gelu(hidden)
        ctx.save_for_backward(x, weight_1, hidden, active, weight_2)
        return by_onednn(active, weight_2, bias_2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Those in bfloat16 are made float32 by autograd, as their parameters are.
        x, weight_1, hidden, active, weight_2 = ctx.saved_tensors
        of_hidden, of_weight_2, of_bias_2 = gradients_by_onednn(gradient, active, weight_2)  # of `active` yet
        torch.ops.aten.gelu_backward.grad_input(of_hidden, hidden, grad_input=of_hidden)
        of_x, of_weight_1, of_bias_1 = gradients_by_onednn(of_hidden, x, weight_1)
        return of_x, of_weight_1, of_bias_1, of_weight_2, of_bias_2, None
