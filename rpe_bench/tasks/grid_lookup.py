"""Looking up the token at an offset from a marked cell of a grid."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from rpe_bench.tasks.base import IGNORE, Batch, Task

ELONGATION = 4
"""The longer side of a grid is at most so many times the shorter."""

Shape = tuple[int, int]


class GridLookup(Task):
    """On an H x W grid of tokens, give the token at (dy, dx) from the marked cell.

    Every cell holds a token drawn independently and uniformly from `types` values, except for the marked one. That one
    holds the query instead, the input token of the offset that is asked for: there is one for each (dy, dx) of up to
    `reach` rows and columns either way. The answer is read there, by an encoder. The marked cell is uniform over the
    grid, and the offset uniform over those that stay in the grid from there.

    `size` is the number of cells, all there is in the sequence, row after row; positions are (y, x). An example's
    shape is drawn uniformly from the H x W = `size` whose sides are at least 2 and at most 4 : 1. Up to side^2 cells no
    side exceeds `side`: what is trained on lies within side x side, and what is larger is longer on some axis. A size
    with no such shape, as any prime, is refused.

    A grid of 3 x 4 where the cell (1, 2) asks for (1, -1), its query being 21; and the same as a sequence ('.' is not
    scored):

        9  4 14  2
        7  0 21  9
        5 11  1  3

        index      0    1    2    3    4    5    6    7    8    9   10   11
        tokens     9    4   14    2    7    0   21    9    5   11    1    3
        targets    .    .    .    .    .    .   11    .    .    .    .    .

    Only a value can be the answer, so that `classes` is `types`; the queries are the input tokens after them, by dy and
    then by dx. Accuracy is also reported by `distance`, |dy| + |dx|, and by `rows`, H.

    Chance knows nothing of the example. A model that has no positions still sees which values the grid holds, and can
    name the most frequent: with 16 types right for 0.12 of the examples at 64 cells, 0.09 at 256, more on small grids.
    """

    isolates = "relative offset"
    default_train_length = 64
    min_size = 4
    axes = 2
    causal = False

    def __init__(self, types: int = 16, reach: int = 1, side: int = 8) -> None:
        """types: number of different values, at least 2.

        reach: the largest |dy| and |dx| asked for, 1 to side - 1.

        side: the longest side of a grid of up to side^2 cells, at least 2.

        ValueError where any is out of range.
        """
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        if side < 2:
            raise ValueError(f"side must be at least 2, got {side}")
        if not 1 <= reach < side:
            raise ValueError(f"reach must be from 1 to {side - 1}, one less than side, got {reach}")
        self.classes = types
        self.reach = reach
        self.side = side
        self.vocabulary = types + (2 * reach + 1) ** 2 - 1

    def query(self, dy: np.ndarray, dx: np.ndarray) -> np.ndarray:
        """The token that asks for an offset, which is not (0, 0)."""
        span = 2 * self.reach + 1
        index = (dy + self.reach) * span + dx + self.reach
        return self.classes + index - (index > span**2 // 2)  # (0, 0), in the middle, has none

    def shapes(self, size: int) -> list[Shape]:
        """The (H, W) of a size, by H."""
        longest = math.isqrt(ELONGATION * size) if size > self.side**2 else self.side
        heights = range(max(2, math.ceil(size / longest)), min(longest, size // 2) + 1)
        found = [(height, size // height) for height in heights if size % height == 0]
        return [shape for shape in found if max(shape) <= ELONGATION * min(shape)]

    def length(self, size: int) -> int:
        return size

    def sizes(self, longest: int) -> Sequence[int]:
        return [size for size in range(self.min_size, longest + 1) if self.shapes(size)]

    def extents(self, size: int) -> tuple[int, ...]:
        for longer in range(math.isqrt(ELONGATION * size), 1, -1):
            shorter = min(longer, size // longer)  # the most that there can be of it
            allowed = longer <= self.side or longer * shorter > self.side**2
            if allowed and max(2, longer / ELONGATION) <= shorter:
                return longer, longer
        raise ValueError(f"no grid has up to {size} cells: the smallest has {self.min_size}")

    def check_size(self, size: int) -> None:
        super().check_size(size)
        if not self.shapes(size):
            below = next(near for near in range(size - 1, 0, -1) if self.shapes(near))
            above = next(near for near in range(size + 1, 2 * size + 1) if self.shapes(near))
            within = f" within {self.side} x {self.side}" if size <= self.side**2 else ""
            raise ValueError(
                f"size {size} is no grid: no two sides of at least 2 and at most {ELONGATION} : 1{within} have so many"
                f" cells; the nearest sizes are {below} and {above}"
            )

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, size), positions (examples, size, 2).

        ValueError where the size is no grid.
        """
        self.check_size(size)
        shapes = np.array(self.shapes(size))
        tokens = rng.integers(self.classes, size=(examples, size))
        chosen = rng.integers(len(shapes), size=examples)
        H, W = shapes[chosen].T
        place = rng.integers(size, size=examples)
        y, x = place // W, place % W
        # Of the rows and columns within reach, those in the grid: as a box whose cells are counted row after row.
        top, left = -np.minimum(y, self.reach), -np.minimum(x, self.reach)
        height = np.minimum(H - 1 - y, self.reach) - top + 1
        width = np.minimum(W - 1 - x, self.reach) - left + 1
        cell = rng.integers(height * width - 1)
        cell += cell >= -top * width - left  # all but the marked one
        dy, dx = top + cell // width, left + cell % width
        row = np.arange(examples)
        tokens[row, place] = self.query(dy, dx)
        targets = np.full_like(tokens, IGNORE)
        targets[row, place] = tokens[row, place + dy * W + dx]
        grids = np.stack([np.stack(np.divmod(np.arange(size), columns), axis=-1) for _, columns in shapes])
        slices = {"distance": np.abs(dy) + np.abs(dx), "rows": H}
        return Batch.from_numpy(tokens, targets, slices, positions=torch.from_numpy(grids[chosen]))

    def chance(self, size: int) -> float:
        return 1 / self.classes
