"""Looking up the token some places left of a mark."""

from collections.abc import Sequence

import numpy as np

from rpe_bench.tasks.base import IGNORE, Batch, Task


class IndirectLookup(Task):
    """Give the token k places left of the mark, where k is said at the end.

    Every token is drawn independently and uniformly from `types` values, except for one MARK. After them comes the
    query, the input token of k: there is one for each k of 1 to `reach`, all equally likely. The answer is read there.
    Two steps lead to it, one to the mark by what it is and one from the mark by an offset, and the offset is another
    each time. The place of the mark is uniform over those that have k tokens to their left. Accuracy is also reported
    by `offset`, which is k, and by `distance`, the number of tokens from the query back to the answer.

    `size` is the number of tokens n before the query; the sequence has n + 1 tokens, one of them scored (n = 8 here,
    k = 3, whose query is 19, distance 6; '.' is not scored):

        index      0    1    2    3    4    5    6    7    8
        tokens     9    4   14    2    9 MARK    2    7   19
        targets    .    .    .    .    .    .    .    .   14

    Only a value can be the answer, so that `classes` is `types`; MARK and the queries are the input tokens after them.
    """

    isolates = "relative offset"
    default_train_length = 16
    min_size = 4
    causal = True

    def __init__(self, types: int = 16, reach: int = 3) -> None:
        """types: number of different values, at least 2.

        reach: the largest k, at least 1. A size is larger than it.

        ValueError where either is out of range.
        """
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        if reach < 1:
            raise ValueError(f"reach must be at least 1, got {reach}")
        self.classes = types
        self.reach = reach
        self.mark = types
        self.vocabulary = types + 1 + reach

    def length(self, size: int) -> int:
        return size + 1

    def sizes(self, longest: int) -> Sequence[int]:
        return range(max(self.min_size, self.reach + 1), longest + 1)

    def check_size(self, size: int) -> None:
        super().check_size(size)
        if size <= self.reach:
            raise ValueError(f"size {size} is too small: {self.reach} places left of the mark (reach) need one more")

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, size + 1). ValueError where size is too small."""
        self.check_size(size)
        tokens = rng.integers(self.classes, size=(examples, size + 1))
        offset = rng.integers(1, self.reach + 1, size=examples)
        place = rng.integers(offset, size)
        row = np.arange(examples)
        tokens[row, place] = self.mark
        tokens[:, -1] = self.mark + offset
        targets = np.full_like(tokens, IGNORE)
        targets[:, -1] = tokens[row, place - offset]
        return Batch.from_numpy(tokens, targets, slices={"offset": offset, "distance": size - (place - offset)})

    def chance(self, size: int) -> float:
        return 1 / self.classes
