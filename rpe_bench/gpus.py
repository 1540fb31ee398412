"""The GPUs that a process may use: those that CUDA_VISIBLE_DEVICES names, where it is set."""

import os
from itertools import takewhile

import torch


def visible_gpus() -> list[str]:
    """Their names, each of which would do as CUDA_VISIBLE_DEVICES of a process that is to have this one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # of which CUDA takes no more than come before a -1, or before nothing at all
        return list(takewhile(lambda name: name[:1] not in ("", "-"), map(str.strip, visible.split(","))))
    return [str(number) for number in range(torch.cuda.device_count())]


def absent() -> str:
    """What is wrong with CUDA_VISIBLE_DEVICES, which torch would take for there being fewer GPUs, or none; "" if
    nothing is."""
    named, found = visible_gpus(), torch.cuda.device_count()
    # A process sees one part of a GPU that is divided, whatever it names.
    if len(named) <= found or (found == 1 and named[0].startswith("MIG-")):
        return ""
    value = os.environ["CUDA_VISIBLE_DEVICES"]
    count = "1 GPU" if len(named) == 1 else f"{len(named)} GPUs"
    return f"CUDA_VISIBLE_DEVICES={value} names {count}, of which torch finds {found}"
