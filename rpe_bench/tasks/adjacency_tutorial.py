"""Adjacency as a tutorial on relative positions poses it: nothing in the input says which two positions are meant."""

import numpy as np
import torch

from rpe_bench.tasks.base import Batch, Task


class AdjacencyTutorial(Task):
    """Say whether two positions are neighbours, where the question is not in the input.

    The tokens are `size` independent draws from `types` values. Two positions are drawn independently and uniformly
    (they may coincide), the model's outputs there are summed and classified: 1 where the positions differ by one, else
    0. The model reads the tokens alone, and neither they nor its attention know the two positions; `Adjacency` is the
    question with the positions marked. Answers are not balanced: 1 has probability 2 (size - 1) / size**2, 0.22 at size
    8, so that an accuracy below 0.78 there is worse than always answering 0. Accuracy is also reported by `distance`,
    which may be 0.

    `size` is the number of tokens n (n = 8 here, the tutorial's; the outputs at '^' are summed, distance 1):

        index      0    1    2    3    4    5    6    7
        tokens     5    1    1    9    0    3    7    2
        readout                   ^    ^
        targets    1
    """

    isolates = "relative offset"
    default_train_length = 8
    min_size = 3
    causal = False

    def __init__(self, types: int = 10, training_examples: int | None = 2000) -> None:
        """types: number of different tokens, at least 2.

        training_examples: size of the finite training set that the tutorial passes over again and again; None or 0
        for fresh examples at every step.

        ValueError where either is out of range.
        """
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        if training_examples is not None and training_examples < 0:
            raise ValueError(
                f"training_examples must be at least 1, or null or 0 for fresh examples, got {training_examples}"
            )
        self.classes = 2
        self.vocabulary = types
        self.training_examples = training_examples or None

    def length(self, size: int) -> int:
        return size

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens (examples, size), readout (examples, 2), targets (examples, 1).

        ValueError where size is too small.
        """
        self.check_size(size)
        tokens = rng.integers(self.vocabulary, size=(examples, size))
        pair = rng.integers(size, size=(examples, 2))
        distance = np.abs(pair[:, 0] - pair[:, 1])
        targets = (distance == 1)[:, None]
        return Batch.from_numpy(tokens, targets, slices={"distance": distance}, readout_BP=torch.from_numpy(pair))

    def chance(self, size: int) -> float:
        """Of one who picks either answer with equal probability; the majority class has 1 - 2 (size - 1) / size**2."""
        return 1 / self.classes
