"""Retrieving one marked value from a haystack."""

import numpy as np

from rpe_bench.tasks.base import IGNORE, Batch, Task


class Retrieval(Task):
    """Find the marked value among noise, and give it when asked at the end.

    Every token of the haystack is drawn independently and uniformly from the same `types` values, except for one MARK.
    The answer is the value right after it: it looks like any other, so only its neighbour tells it apart. It is read at
    the QUERY that follows the haystack. Accuracy is also reported by `distance`, the number of tokens from QUERY back
    to the value (1: the last of the haystack).

    `size` is the length n of the haystack; the sequence has n + 1 tokens, one of them scored (n = 8 here, distance 4;
    '.' is not scored):

        index      0    1    2    3    4    5    6    7      8
        tokens     9    4   14 MARK    2    9    0    2  QUERY
        targets    .    .    .    .    .    .    .    .      2

    Only a value can be the answer, so that `classes` is `types`; MARK and QUERY are the two input tokens after them.
    """

    isolates = "content match"
    default_train_length = 48
    min_size = 4
    causal = True

    def __init__(self, types: int = 16, depth: float | None = None) -> None:
        """types: number of different values, at least 2.

        depth: where the mark is, from 0 (first in the haystack) to 1 (as near to QUERY as can be), rounded to the
        nearest place; None draws every place with equal probability.

        ValueError where either is out of range.
        """
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        if depth is not None and not 0 <= depth <= 1:
            raise ValueError(f"depth must be from 0 to 1, or null for all places, got {depth}")
        self.classes = types
        self.depth = depth
        self.mark, self.query = types, types + 1
        self.vocabulary = types + 2

    def length(self, size: int) -> int:
        return size + 1

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, size + 1). ValueError where size is too small."""
        self.check_size(size)
        # The haystacks are drawn before the places, so that a generator gives the same ones at every depth.
        tokens = rng.integers(self.classes, size=(examples, size + 1))
        last = size - 2  # the value needs the place after the mark
        if self.depth is None:
            place = rng.integers(last + 1, size=examples)
        else:
            place = np.full(examples, round(self.depth * last))
        row = np.arange(examples)
        tokens[row, place] = self.mark
        tokens[:, -1] = self.query
        targets = np.full_like(tokens, IGNORE)
        targets[:, -1] = tokens[row, place + 1]
        return Batch.from_numpy(tokens, targets, slices={"distance": size - (place + 1)})

    def chance(self, size: int) -> float:
        return 1 / self.classes
