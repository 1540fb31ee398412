"""Adding two numbers digit by digit, from the least significant one."""

import numpy as np

from rpe_bench.tasks.base import IGNORE, Batch, Task


class Addition(Task):
    """Add two numbers, all written from their least significant digit on.

    The digits of both are drawn independently and uniformly, leading zeros included, so that a size has one length. A
    digit of the answer is the sum of two at its place in their numbers, and of a carry. What is to be found is that
    place: as in copying, it lies at a distance that differs from size to size. A causal language model reads both
    numbers and then its own answer; the loss is on the answer alone, the target at a position being the next token.

    `size` is the number of digits n of either number; the answer has one more, the last carry. The sequence has 3n + 2
    tokens, n + 1 of them scored (n = 4, 2647 + 7358 = 10005; '.' is not scored):

        index      0    1    2    3    4    5    6    7    8      9   10   11   12   13
        tokens     7    4    6    2 PLUS    8    5    3    7 EQUALS    5    0    0    0
        targets    .    .    .    .    .    .    .    .    .      5    0    0    0    1

    Only a digit can be the answer, so that `classes` is `base`; PLUS and EQUALS are the two input tokens after them.
    Accuracy is also reported by `carry_chain`, how many places the longest-lived carry goes through (0: there is none):
    a carry is born where two digits sum to `base` or more, and passed on by each next pair that sums to `base` - 1. In
    the example it is born at the first place and passed on by the three others: 4.
    """

    isolates = "relative offset"
    default_train_length = 10
    min_size = 1
    causal = True

    def __init__(self, base: int = 10) -> None:
        """base: number of different digits, at least 2 (else ValueError)."""
        if base < 2:
            raise ValueError(f"base must be at least 2, got {base}")
        self.classes = base
        self.digits = tuple(range(base))
        self.plus, self.equals = base, base + 1
        self.vocabulary = base + 2

    def length(self, size: int) -> int:
        return 3 * size + 2

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, 3 * size + 2). ValueError where size is too small."""
        self.check_size(size)
        base = self.classes
        a, b = rng.integers(base, size=(2, examples, size))
        sums = a + b
        # The carry out of a place was decided at the last one, up to it, that does not just pass on what it gets.
        place = np.arange(size)
        decided = np.maximum.accumulate(np.where(sums == base - 1, -1, place), axis=1)
        born = np.take_along_axis(sums, np.maximum(decided, 0), axis=1) >= base
        carry = born & (decided >= 0)
        answer = np.zeros((examples, size + 1), dtype=np.int64)
        answer[:, :size] = sums
        answer[:, 1:] += carry
        answer %= base

        tokens = np.empty((examples, self.length(size)), dtype=np.int64)
        tokens[:, :size] = a
        tokens[:, size] = self.plus
        tokens[:, size + 1 : 2 * size + 1] = b
        tokens[:, 2 * size + 1] = self.equals
        tokens[:, 2 * size + 2 :] = answer[:, :-1]
        targets = np.full_like(tokens, IGNORE)
        targets[:, 2 * size + 1 :] = answer
        chain = np.where(carry, place - decided + 1, 0).max(axis=1)
        return Batch.from_numpy(tokens, targets, slices={"carry_chain": chain})

    def chance(self, size: int) -> float:
        """All digits are uniform but for the last carry, which is more often 0 than 1."""
        no_carry = (1 + self.classes**-size) / 2
        return (size / self.classes + no_carry) / (size + 1)
