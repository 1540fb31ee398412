"""A device of another type than the CPU, in main memory: what a GPU refuses is refused, and numbers stay what they are.

    with simulated_gpu():
        model.to("cuda")

A tensor on it says that it is on `cuda`, and holds a tensor of the CPU, on which its operators run. One that is given
tensors of both devices is refused, as CUDA would refuse it (but for numbers without dimensions), and so is a generator
of the CPU. To torch's own C++ it is on `meta`, since a build for the CPU has no autograd for CUDA. Not simulated:
kernels that CUDA lacks, strides that they do not take, and the order in which they add.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)

aten = torch.ops.aten
AT_ONCE = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}
"""What torch otherwise leaves to the next operator, by a mark on the tensor that is not looked at down here."""


class OnGPU(Tensor):
    """A tensor of the simulated device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGPU":
        made: OnGPU = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device="meta",
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    def __init__(self, held: Tensor) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    def tolist(self) -> Any:  # which torch has for no subclass
        return self.cpu().tolist()

    def __repr__(self) -> str:
        return f"OnGPU({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    here = [leaf for leaf in leaves if isinstance(leaf, OnGPU)]
    others = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, OnGPU)]
    device = kwargs.get("device")
    target = None if device is None else torch.device(device).type
    target = "cuda" if target == "meta" else target
    moves = func in (aten._to_copy.default, aten.copy_.default)
    if here and not moves and any(other.dim() for other in others):
        shapes = [tuple(other.shape) for other in others]
        raise RuntimeError(f"{func}: Expected all tensors to be on the same device, but {shapes} are on the CPU")
    generator = next((leaf for leaf in leaves if isinstance(leaf, torch.Generator)), None)
    if generator is not None and (here or target == "cuda") and generator.device.type == "cpu":
        raise RuntimeError(f"{func}: Expected a 'cuda' device type for generator but found 'cpu'")
    on_gpu = target == "cuda" if target is not None else bool(here)
    if func is aten.copy_.default:
        on_gpu = isinstance(args[0], OnGPU)
    given, named = tree_map(lambda leaf: leaf.held if isinstance(leaf, OnGPU) else leaf, (args, kwargs))
    if target == "cuda":
        named["device"] = torch.device("cpu")
    found = AT_ONCE.get(func, func)(*given, **named)
    if not on_gpu:
        return found
    wrapped: Any = tree_map(lambda leaf: OnGPU(leaf) if isinstance(leaf, Tensor) else leaf, found)
    return wrapped if func in AT_ONCE else return_and_correct_aliasing(func, args, kwargs, wrapped)


class _Simulated(TorchDispatchMode):
    """For operators that are given no tensor of the device, but are told to make one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@contextmanager
def simulated_gpu() -> Iterator[torch.device]:
    of_data = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        return of_data(data, **options).to(device or "cpu")  # which torch does where no mode can see it

    # torch would start CUDA before the first tensor that asks for it.
    with patch.object(torch.cuda, "_lazy_init", lambda: None), patch.object(torch, "tensor", tensor), _Simulated():
        yield GPU


def back(tensor: Tensor) -> Tensor:
    """The numbers of a tensor, on the CPU."""
    return tensor.held if isinstance(tensor, OnGPU) else tensor
