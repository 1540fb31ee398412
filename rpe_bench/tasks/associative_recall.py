"""Recalling the value of every key."""

import numpy as np

from rpe_bench.tasks.base import IGNORE, Batch, Task


class AssociativeRecall(Task):
    """Given pairs of a key and a value, give the value of each key that is named again.

    Multi-query associative recall (MQAR) as in Arora et al. 2023, arXiv 2312.04927. The keys of an example are all
    different, and so are its values; either are uniform draws from `types` of their own. The pairs come first, key
    before value. Then come `slots` places a pair, of two tokens each. A place either asks for a key, which is named by
    its first token, or for none; every key is asked for once, at a place of its own. All other tokens there are noise,
    values drawn independently and uniformly. The value is read where the key is named, by a decoder.

    The places are drawn one after another, for the first pair first, from those that are left with probability
    proportional to i^(power - 1), i = 1, 2, ... counting the places from the pairs on: all alike where power is 1, near
    to the pairs, first pairs first, where it is near 0. The published sequences, 64 tokens of 4 pairs, 128 of 8 and 256
    of 16, are those of slots = 7, power = 0.01; their noise is drawn from keys too.

    `size` is the number of pairs n; the sequence has 2n + 2n `slots` tokens, n of them scored (n = 3 here, slots = 1;
    '.' is not scored; keys are 128 and above):

        index      0    1    2    3    4    5    6    7    8    9   10   11
        tokens   200   17  131   90  255    4  131   62  255    8  200   17
        targets    .    .    .    .    .    .   90    .    4    .   17    .

    Only a value can be the answer, so that `classes` is `types`; the keys are the input tokens after them. More pairs
    than there are keys are refused.
    """

    isolates = "content match"
    default_train_length = 8
    min_size = 1
    causal = True

    def __init__(self, types: int = 128, slots: int = 1, power: float = 1.0) -> None:
        """types: number of different values, and of different keys, at least 2.

        slots: places a pair at which keys may be asked for, at least 1.

        power: above 0; the less, the nearer to the pairs the keys are asked for, and 1 makes all places alike.

        ValueError where any is out of range.
        """
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        if not power > 0:
            raise ValueError(f"power must be above 0, got {power}")
        self.classes = types
        self.slots = slots
        self.power = power
        self.vocabulary = 2 * types

    def length(self, size: int) -> int:
        return 2 * size * (1 + self.slots)

    def check_size(self, size: int) -> None:
        super().check_size(size)
        if size > self.classes:
            raise ValueError(f"size {size} is too large: there are only {self.classes} different keys (types)")

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, 2 * size * (1 + slots)).

        ValueError where there is no such size.
        """
        self.check_size(size)
        types, pairs = self.classes, 2 * size
        each = np.tile(np.arange(types), (2 * examples, 1))
        keys, values = rng.permuted(each, axis=1)[:, :size].reshape(2, examples, size)
        keys = types + keys
        # Of exponential variables, each is the least with a probability proportional to its rate, and so on among the
        # rest: their order is that of draws without replacement.
        rate = np.arange(1, self.slots * size + 1) ** (self.power - 1.0)
        place = (rng.exponential(size=(examples, len(rate))) / rate).argsort(axis=1)[:, :size]
        asked = pairs + 2 * place
        tokens = rng.integers(types, size=(examples, self.length(size)))
        tokens[:, 0:pairs:2] = keys
        tokens[:, 1:pairs:2] = values
        np.put_along_axis(tokens, asked, keys, axis=1)
        targets = np.full_like(tokens, IGNORE)
        np.put_along_axis(targets, asked, values, axis=1)
        return Batch.from_numpy(tokens, targets)

    def chance(self, size: int) -> float:
        return 1 / self.classes
