"""Are the two marked tokens neighbours?"""

import numpy as np

from rpe_bench.tasks.base import IGNORE, Batch, Task


class Adjacency(Task):
    """Say whether two marked positions are neighbours.

    The content is `size` tokens drawn independently and uniformly from `types` values. Two of them are replaced by
    MARK, in place: a mark says where and nothing else. The answer, 1 where the marks are neighbours and 0 where they
    are not, is read at the ANSWER token at the end.

    Answers are balanced in every batch (as nearly as an odd one can be). The distance of marks that are not neighbours
    is uniform over 2 .. size - 1, and the place is uniform given the distance. Accuracy is also reported by `distance`.
    Whatever the answer, an example holds two marks, one ANSWER and size - 2 independent content tokens: as a bag of
    tokens it says nothing, so a bidirectional model without positions cannot leave chance.

    `size` is the number of tokens n before ANSWER; the sequence has n + 1, one of them scored (n = 6 here, distance 1;
    '.' is not scored):

        index      0    1    2    3    4    5       6
        tokens     4    0 MARK MARK    7    4  ANSWER
        targets    .    .    .    .    .    .       1
    """

    isolates = "relative offset"
    default_train_length = 24
    min_size = 4
    causal = None

    def __init__(self, types: int = 10) -> None:
        """types: number of different content tokens, at least 2 (else ValueError)."""
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        self.classes = 2
        self.types = types
        self.mark, self.answer = types, types + 1
        self.vocabulary = types + 2

    def length(self, size: int) -> int:
        return size + 1

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, size + 1). ValueError where size is too small."""
        self.check_size(size)
        # Which answer has the odd example is drawn too: one example alone would else always have the same answer.
        neighbours = (rng.permutation(examples) + rng.integers(2)) % 2
        # The distance is drawn, not the pair: of all pairs few are far apart (size - d have distance d).
        distance = np.where(neighbours, 1, rng.integers(2, size, size=examples))
        first = rng.integers(size - distance)
        tokens = rng.integers(self.types, size=(examples, size + 1))
        row = np.arange(examples)
        tokens[row, first] = self.mark
        tokens[row, first + distance] = self.mark
        tokens[:, -1] = self.answer
        targets = np.full_like(tokens, IGNORE)
        targets[:, -1] = neighbours
        return Batch.from_numpy(tokens, targets, slices={"distance": distance})

    def chance(self, size: int) -> float:
        return 1 / self.classes
