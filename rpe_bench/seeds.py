"""Every random choice comes from a generator made here; nothing in the package touches a global one.

A stream is named by a key: ``stream("train", seed, step)`` is the data of one training step, whatever the encoding,
the number of workers or the steps that ran before it. Streams of different keys are independent (NumPy's SeedSequence).
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _sequence(key: tuple[str | int, ...]) -> np.random.SeedSequence:
    # crc32 rather than hash(): the latter is salted anew in every process.
    return np.random.SeedSequence([zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key])


def stream(*key: str | int) -> np.random.Generator:
    """The NumPy generator of a key of names and non-negative integers."""
    return np.random.Generator(np.random.PCG64(_sequence(key)))


def torch_stream(*key: str | int) -> torch.Generator:
    """The torch generator (on the CPU, so that every device starts from the same weights) of a key."""
    import torch  # here, since reports draw numbers too, and do without it

    return torch.Generator().manual_seed(int(_sequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1)))
