"""How a run fails beyond its training length: at which length, from which position, and through what.

Pure functions of DataFrames with the columns of eval.csv and positions.csv, and of the losses under intervention that
rpe_bench.diagnostics.interventions measures. Losses are in nats.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

LEAST_RISE = 0.1
"""A rise of the loss that counts, in nats. Less may be certain, and still be no failure."""

SHARP = 1.25
"""A rise is sharp where half of it is made before the position has grown by this factor since it began. In a ratio, so
that it does not depend on how far was evaluated: a steady drift from N to M has made half of its rise at (N + M) / 2,
and one that goes with the logarithm of the position at sqrt(N M)."""

FEWEST = 8
"""Positions that are needed on either side of the end of training to say anything of a rise."""

CERTAIN = 3.0
"""Standard errors by which a rise, or an effect of an intervention, must differ from zero."""

EXCLUDED = 2.0
"""Standard errors by which an effect must be less than what counts, for it to be none."""

Shape = Literal["none", "first position", "later", "gradual"]
Cause = Literal["positions", "distances", "both", "length", "unclear"]


def first_failing(evaluations: pd.DataFrame, train_length: int, threshold: float) -> tuple[int, float] | None:
    """The first length from the training length on at which token accuracy is below a threshold, and what it is there;
    None where it is not below it anywhere.

    evaluations: the rows of one run's eval.csv.
    """
    rows = evaluations[evaluations["length"] >= train_length].sort_values("length")
    below = rows[rows["token_accuracy"] < threshold]
    return (int(below["length"].iloc[0]), float(below["token_accuracy"].iloc[0])) if len(below) else None


def first_rise(evaluations: pd.DataFrame, length: int, least: float = LEAST_RISE) -> tuple[int, float] | None:
    """The first longer length at which the mean loss is at least so much above that at `length`, and what it is there;
    None where it is not so anywhere."""
    rows = evaluations.sort_values("length")
    level = rows.loc[rows["length"] == length, "loss"].iloc[0]
    above = rows[(rows["length"] > length) & (rows["loss"] >= level + least)]
    return (int(above["length"].iloc[0]), float(above["loss"].iloc[0])) if len(above) else None


@dataclass(frozen=True)
class Onset:
    """Whether, where and how the loss by position departs from its level within the training length.

    shape     none: it does not; first position: sharply, at the first position that training had not seen, or within an
              eighth of the training length after it; later: sharply, but further on; gradual: over a long stretch
    position  where the departure begins; None where there is none, or where it is too slow beside the noise to say
    level     mean loss over the second half of the positions trained on
    noise     standard deviation of the loss of one position
    rise      mean loss over the last quarter of the unseen positions, less the level
    error     standard error of that
    """

    shape: Shape
    position: int | None
    level: float
    noise: float
    rise: float
    error: float


def onset(positions: pd.DataFrame, trained: int, least: float = LEAST_RISE) -> Onset | None:
    """The onset of a failure in the losses by position at one length; None where too few positions are scored.

    The change point is that of a cumulative sum (Page, 1954, "Continuous inspection schemes"):
    S_t = max(0, S_{t-1} + x_t - level - a) starts at the first unseen position and raises the alarm above 10 a; the
    departure began where S last left 0. The allowance a is the noise, estimated from the data; or half of the least
    rise that counts, or a tenth of the rise in the end, if that is more: a position is where the rise begins, and not
    where the first trace of it can be made out in enough data. All that counts only where the rise in the end is
    certain: the sum alone would take a few large losses for one, such as single tokens have.

    Args:
        positions: position and loss, the rows of one run and one length.
        trained: tokens of the longest sequence trained on: the first unseen position.
        least: a smaller rise in the end is no failure, whatever happens on the way.
    """
    rows = positions.sort_values("position")
    place, loss = rows["position"].to_numpy(), rows["loss"].to_numpy()
    known = loss[(place >= trained / 2) & (place < trained)]
    place, loss = place[place >= trained], loss[place >= trained]
    if min(len(known), len(loss)) < FEWEST:
        return None
    end = loss[-max(1, len(loss) // 4) :]
    level = float(known.mean())
    growth = max(_growth(known - level), _growth(end - end.mean()))
    noise = _noise(known - level, np.diff(rows["loss"].to_numpy())) * _growth(known - level)
    rise = float(end.mean()) - level
    error = max(float(known.std(ddof=1)), float(end.std())) * growth * (1 / len(known) + 1 / len(end)) ** 0.5
    allowance = max(noise, least / 2, rise / 10)
    begun = _departure(loss - level - allowance, 10 * allowance)
    if rise < least or rise <= CERTAIN * error:
        return Onset("none", None, level, noise, rise, error)
    if begun is None:
        return Onset("gradual", None, level, noise, rise, error)
    # Over a few positions, lest the noise of one be taken for the rise.
    width = max(1, min(trained // 8, len(loss) - begun))
    smooth = np.convolve(loss[begun:], np.full(width, 1 / width), mode="valid")
    # By their number, where the first that has risen so far might be so by noise.
    half = begun + min(int((smooth < level + rise / 2).sum()), len(smooth) - 1)
    at = int(place[begun])
    sharp = place[half] + 1 <= SHARP * (at + 1)
    shape: Shape = "gradual" if not sharp else "first position" if at <= trained + trained / 8 else "later"
    return Onset(shape, at, level, noise, rise, error)


def _noise(residuals: np.ndarray, steps: np.ndarray) -> float:
    """The standard deviation of the loss of one position, by medians of absolute values, which outliers leave alone.

    residuals: from the level, within the training length; there may be few of them. steps: from each position to the
    next, all along, whose deviation is that times sqrt(2); a rise shows in few of them. The larger counts.
    """
    return 1.4826 * max(float(np.median(np.abs(residuals))), float(np.median(np.abs(steps))) / 2**0.5)


def _growth(residuals: np.ndarray) -> float:
    """By how much sums of residuals are wider than of independent ones: each may be like the one before."""
    square = float((residuals**2).sum())
    correlation = float((residuals[1:] * residuals[:-1]).sum()) / square if square > 0 else 0.0
    correlation = min(max(correlation, 0.0), 0.9)
    return float(((1 + correlation) / (1 - correlation)) ** 0.5)


def _departure(steps: np.ndarray, alarm: float) -> int | None:
    """Where the cumulative sum that first passes `alarm` last left 0; None where none does."""
    total, begun = 0.0, 0
    for index, step in enumerate(steps):
        if total == 0.0:
            begun = index
        total = max(0.0, total + float(step))
        if total > alarm:
            return begun
    return None


@dataclass(frozen=True)
class Effect:
    """What an intervention adds to the loss, mean over examples, and the standard error of that."""

    mean: float
    error: float

    def harms(self, least: float) -> bool:
        return self.mean > least and self.mean > CERTAIN * self.error

    def is_none(self, least: float) -> bool:
        """Whether the data exclude an effect that counts: few examples, or a single one, do not."""
        return self.mean + EXCLUDED * self.error < least


def effect(losses: pd.DataFrame, intervention: str, control: str = "plain") -> Effect:
    """The effect of one intervention against a control, paired by example.

    losses: intervention, example, loss.
    """
    wide = losses.pivot(index="example", columns="intervention", values="loss")
    difference = (wide[intervention] - wide[control]).to_numpy()
    error = float(difference.std(ddof=1)) / len(difference) ** 0.5 if len(difference) > 1 else float("nan")
    return Effect(float(difference.mean()), error)


def cause(shifted: Effect, parted: Effect, least: float = LEAST_RISE) -> Cause:
    """What a failure at greater length is due to, by what sequences of the training length lose under intervention.

    positions: a shift alone harms, under which every position is unseen and every distance is seen.
    distances: it does not, but a gap does, which makes the distances across it unseen and adds no key to attend to.
    both: a shift harms, and a gap more than twice as much, though it leaves half of the positions as they were.
    length: neither harms. What is left is that there are more tokens: attention spreads over more keys, or the
    question itself is harder.
    unclear: one of them may harm, for all that so few examples can say.

    Whether distances harm as well cannot be told where positions harm as much, since a gap makes positions unseen too.
    """
    if shifted.harms(least):
        return "both" if parted.harms(least) and parted.mean > 2 * shifted.mean else "positions"
    if not shifted.is_none(least):
        return "unclear"
    if parted.harms(least):
        return "distances"
    return "length" if parted.is_none(least) else "unclear"
