"""Continuing as it went on the last time."""

import numpy as np

from rpe_bench.tasks.base import IGNORE, Batch, Task


class Induction(Task):
    """Repeat what followed an earlier occurrence of the last token.

    The last token, the cue, is drawn uniformly from `types` values. It stands once more in the haystack before it, at a
    place that is uniform over all but the last; all other tokens there are drawn independently and uniformly from the
    other values. The answer is the token after that place, and is read at the cue. As `Retrieval`, but that any value
    may be what marks the place, so that no one token can be learned by heart: the cue has to be compared with what each
    token follows. Accuracy is also reported by `distance`, the number of tokens from the cue back to the answer (1: the
    last of the haystack).

    `size` is the length n of the haystack; the sequence has n + 1 tokens, one of them scored (n = 8 here, distance 4;
    '.' is not scored):

        index      0    1    2    3    4    5    6    7    8
        tokens     9    4   14    7    2    9    0    2    7
        targets    .    .    .    .    .    .    .    .    2

    Every token is an answer, and the other way round: `classes` and the vocabulary are `types`.
    """

    isolates = "content match"
    default_train_length = 32
    min_size = 4
    causal = True

    def __init__(self, types: int = 16) -> None:
        """types: number of different values, at least 2 (else ValueError)."""
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        self.classes = types
        self.vocabulary = types

    def length(self, size: int) -> int:
        return size + 1

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, size + 1). ValueError where size is too small."""
        self.check_size(size)
        cue = rng.integers(self.classes, size=(examples, 1))
        tokens = rng.integers(self.classes - 1, size=(examples, size + 1))
        tokens += tokens >= cue  # all values but the cue
        place = rng.integers(size - 1, size=examples)
        row = np.arange(examples)
        tokens[row, place] = tokens[:, -1] = cue[:, 0]
        targets = np.full_like(tokens, IGNORE)
        targets[:, -1] = tokens[row, place + 1]
        return Batch.from_numpy(tokens, targets, slices={"distance": size - (place + 1)})

    def chance(self, size: int) -> float:
        return 1 / self.classes
