"""A curriculum of lengths: short problems first, longer ones step by step.

Bengio et al. 2009; as "sequence length warm-up" with linear pacing, Li, Zhang and He 2022, 2108.06084. Here it is the
largest size that grows, and each batch is of one size drawn from all up to it: what was learned on short problems goes
on being trained, and once the curriculum has ended, batches are those of uniform lengths.
"""

from dataclasses import dataclass
from typing import Self

from rpe_bench.config import Recipe


@dataclass(frozen=True)
class Curriculum:
    """The largest size of each step.

        bound(t) = start + floor((longest - start) t / growing)     while t < growing, then longest

    start     the largest size of the first step
    longest   the training length
    growing   steps until it is reached: `curriculum_share` of all, to the nearest whole number and at least 1
    """

    start: int
    longest: int
    growing: int

    @classmethod
    def of(cls, recipe: Recipe) -> Self | None:
        """That of a resolved recipe; None where lengths are not by a curriculum."""
        if recipe.lengths != "curriculum":
            return None
        assert recipe.curriculum_start is not None and recipe.curriculum_share is not None
        assert recipe.train_length is not None
        growing = max(1, round(recipe.curriculum_share * recipe.steps))
        return cls(recipe.curriculum_start, recipe.train_length, growing)

    def bound(self, step: int) -> int:
        """The largest size of a step; not every number up to it need be a size of the task."""
        if step >= self.growing:
            return self.longest
        return self.start + (self.longest - self.start) * step // self.growing

    def mean_bound(self, steps: int) -> float:
        """Of so many steps, but for rounding: what a run costs goes by it."""
        growing = min(steps, self.growing)
        reached = self.start + (self.longest - self.start) * growing / self.growing
        return (growing * (self.start + reached) / 2 + (steps - growing) * self.longest) / max(1, steps)
