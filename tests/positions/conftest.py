"""What the tests of single remaps share: batches of text and of grids whose examples differ in shape."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rpe_bench.tasks.base import Batch

SHAPES = [(2, 6), (3, 4), (4, 3), (6, 2)]


def make_text(examples: int = 4, length: int = 12) -> Batch:
    rng = np.random.default_rng(0)
    return Batch.from_numpy(rng.integers(12, size=(examples, length)), rng.integers(5, size=(examples, length)))


def make_grid() -> Batch:
    """12 cells, row after row, in 4 shapes; positions are (y, x)."""
    cells = [[(y, x) for y in range(rows) for x in range(columns)] for rows, columns in SHAPES]
    text = make_text(len(SHAPES))
    return Batch(text.tokens_BT, text.targets_BT, torch.tensor(cells))


@pytest.fixture
def text() -> Callable[..., Batch]:
    """text(examples, length): random tokens below 12."""
    return make_text


@pytest.fixture
def grid() -> Batch:
    return make_grid()
