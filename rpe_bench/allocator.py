"""Memory that a training step frees, kept for the next one.

A step allocates its activations anew. glibc's malloc gives them back to the kernel, which then has to hand out, and
zero, thousands of pages a step: a seventh of a tiny model's time in float32, a fifth in bfloat16.
"""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Of mallopt: by their numbers in malloc.h."""
LARGEST = 32 * 2**20
"""Bytes of an allocation that is not a mapping of its own, which is given back as soon as it is freed: the most that
glibc takes."""


def keep_freed_memory() -> None:
    """Have this process keep what it frees. Other libraries than glibc have no mallopt, and are left as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
