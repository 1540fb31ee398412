"""What is known of how one run fails beyond its training length, as one row of a table and as sentences."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd

from rpe_bench.config import PLAIN
from rpe_bench.diagnostics.attention_maps import unseen_share
from rpe_bench.diagnostics.failure import (
    LEAST_RISE,
    Cause,
    Effect,
    Onset,
    cause,
    effect,
    first_failing,
    first_rise,
    onset,
)
from rpe_bench.diagnostics.interventions import losses_under_intervention
from rpe_bench.files import read_record
from rpe_bench.report.tables import THRESHOLD
from rpe_bench.trained import Trained

LOOKED_AT = 8
"""Examples whose attention is looked at."""


@dataclass(frozen=True)
class Intervened:
    """What the positions of sequences of the training length do to their loss; see rpe_bench.diagnostics.interventions.

    examples         how many there are
    plain            their mean loss, over their last quarter
    shifted, parted  what moving their positions adds to it
    """

    examples: int
    plain: float
    shifted: Effect
    parted: Effect

    @classmethod
    def of(cls, trained: Trained) -> "Intervened":
        """ValueError where that cannot be had of a run, with the reason."""
        losses = losses_under_intervention(trained)
        plain = losses.loc[losses["intervention"] == "plain", "loss"]
        shifted, parted = (effect(losses, name) for name in ("shifted", "parted"))
        return cls(len(plain), float(plain.mean()), shifted, parted)


@dataclass(frozen=True)
class Verdict:
    """How one run fails beyond its training length.

    plain            whether positions are 0, 1, 2 ... in training and evaluation
    threshold        of token accuracy
    least            rise of the loss that counts, in nats
    fails_at         the first length from the training length on where accuracy is below it; None where none is
    accuracy         token accuracy there
    known            the training length, or the longest evaluated that does not exceed it; None where none is
    longest          the longest length evaluated
    evaluated        examples at that length
    loss, loss_long  mean losses at known (NaN without it) and at the longest
    rises_at         the first length where the mean loss is so much above that at known; None where none is
    loss_there       the mean loss there
    onset            of the rise at the longest length; None where too few positions are scored to say
    intervened       None where that is not possible
    unseen           the share of attention on unseen distances at the longest length, mean over layers and heads; None
                     where that is not possible
    untested         why not: a reason for each of the two that is missing
    looked_at        how many examples that is of
    rises            whether the loss rises: by position, or else from known to the longest length; None without known
    cause            of a rise of the loss; None where it does not rise, or without an intervention
    """

    run_id: str
    task: str
    encoding: str
    seed: int
    train_length: int
    train_tokens: int
    plain: bool
    threshold: float
    least: float
    fails_at: int | None
    accuracy: float | None
    known: int | None
    longest: int
    evaluated: int
    loss: float
    loss_long: float
    rises_at: int | None
    loss_there: float | None
    onset: Onset | None
    intervened: Intervened | None
    unseen: float | None
    looked_at: int
    untested: list[str]
    rises: bool | None
    cause: Cause | None

    @classmethod
    def of(cls, trained: Trained, threshold: float = THRESHOLD, least: float = LEAST_RISE) -> "Verdict":
        """That of a finished run, from its tables and, where it has one that can be used, its checkpoint."""
        config = trained.config
        train_length = config.recipe.train_length
        assert train_length is not None  # resolved
        train_tokens = read_record(trained.directory)["train_tokens"]  # the task may need a text that is gone
        evaluations = pd.read_csv(trained.directory / "eval.csv").sort_values("length")
        positions = pd.read_csv(trained.directory / "positions.csv")
        within = evaluations[evaluations["length"] <= train_length]
        known, loss = (
            (int(within["length"].iloc[-1]), float(within["loss"].iloc[-1])) if len(within) else (None, math.nan)
        )
        last = evaluations.iloc[-1]
        longest, loss_long = int(last["length"]), float(last["loss"])
        rises_at, loss_there = (None if known is None else first_rise(evaluations, known, least)) or (None, None)
        fails_at, accuracy = first_failing(evaluations, train_length, threshold) or (None, None)
        begun = onset(positions[positions["length"] == longest], train_tokens, least)
        intervened, no_intervention = _tried(lambda: Intervened.of(trained))
        looked_at = min(LOOKED_AT, config.evaluation.examples)
        unseen, no_look = _tried(lambda: float(unseen_share(trained, [longest], looked_at)["unseen_share"].mean()))
        rises: bool | None
        if begun is not None:
            rises = begun.shape != "none"
        else:
            rises = None if known is None else loss_long - loss >= least
        return cls(
            run_id=config.run_id,
            task=config.task.name,
            encoding=config.encoding.name,
            seed=config.seed,
            train_length=train_length,
            train_tokens=train_tokens,
            plain=config.positions == PLAIN,
            threshold=threshold,
            least=least,
            fails_at=fails_at,
            accuracy=accuracy,
            known=known,
            longest=longest,
            evaluated=int(last["examples"]),
            loss=loss,
            loss_long=loss_long,
            rises_at=rises_at,
            loss_there=loss_there,
            onset=begun,
            intervened=intervened,
            unseen=unseen,
            looked_at=looked_at,
            rises=rises,
            untested=no_intervention + no_look,
            cause=cause(intervened.shifted, intervened.parted, least) if rises and intervened is not None else None,
        )

    @property
    def row(self) -> dict[str, Any]:
        """One row of a tidy table; what does not apply is missing."""
        begun, moved = self.onset, self.intervened
        about = ("run_id", "task", "encoding", "seed", "train_length", "train_tokens", "threshold", "fails_at")
        return {name: getattr(self, name) for name in about} | {
            "accuracy": self.accuracy,
            "least": self.least,
            "loss_rises_at": self.rises_at,
            "longest": self.longest,
            "evaluated": self.evaluated,
            "loss": self.loss,
            "loss_long": self.loss_long,
            "onset": begun and begun.shape,
            "onset_position": begun and begun.position,
            "level": begun and begun.level,
            "noise": begun and begun.noise,
            "rise": begun and begun.rise,
            "rise_error": begun and begun.error,
            "cause": self.cause,
            "examples": moved and moved.examples,
            "plain_loss": moved and moved.plain,
            "shift_effect": moved and moved.shifted.mean,
            "shift_error": moved and moved.shifted.error,
            "gap_effect": moved and moved.parted.mean,
            "gap_error": moved and moved.parted.error,
            "unseen_share": self.unseen,
            "untested": "; ".join(dict.fromkeys(self.untested)) or None,
        }

    @property
    def sentences(self) -> list[str]:
        lines = [self._accuracy(), self._onset(), *self._cause()]
        if self.unseen is not None and self.longest > self.train_length:
            where = f"At length {self.longest}, {self.unseen:.1%} of attention lies on distances"
            mean = f"(mean over layers, heads and {self.looked_at} examples)"
            lines.append(f"{where}{'' if self.plain else ', in tokens,'} that training never had {mean}.")
        return [*lines, *(f"Not tested, since: {reason}." for reason in dict.fromkeys(self.untested))]

    def _accuracy(self) -> str:
        if self.longest < self.train_length:
            return "Nothing was evaluated at the training length or beyond."
        if self.fails_at is None:
            return f"Accuracy stays at {self.threshold:g} or above up to length {self.longest}, the longest evaluated."
        if self.fails_at > self.train_length:
            return f"Accuracy is below {self.threshold:g} at {self._times(self.fails_at)}: {self.accuracy:.3f}."
        line = (
            f"Accuracy is {self.accuracy:.3f} at the training length, where it does not reach {self.threshold:g} either"
        )
        if self.longest == self.train_length:
            return f"{line}."
        line += f", so that the mean loss is what tells: {self.loss:.3f} there, it is"
        if self.rises_at is None:
            return f"{line} at no longer length {self.least:g} nats or more above that."
        there = f"{self._times(self.rises_at)}: {self.loss_there:.3f}"
        return f"{line} first {self.least:g} nats or more above that at {there}."

    def _times(self, length: int) -> str:
        return f"length {length}, {length / self.train_length:.3g} times that of training"

    def _onset(self) -> str:
        begun = self.onset
        if self.longest <= self.train_length:
            return "Nothing was evaluated beyond the training length."
        if begun is None:
            few = "too few positions are scored on both sides of the training length to say where it changes"
            mean = f"{self.loss_long:.3f} at length {self.longest} ({_examples(self.evaluated)})"
            if self.known is None:
                return f"Mean loss is {mean}, and no length of training was evaluated to compare it with."
            known = "the training length" if self.known == self.train_length else f"length {self.known}"
            return f"Mean loss goes from {self.loss:.3f} at {known} to {mean}; {few}."
        level = f"{begun.level:.3f} (noise {begun.noise:.3f} a position, {_examples(self.evaluated)})"
        rise = f"{begun.rise:+.3f} nats (standard error {begun.error:.3f})"
        if begun.shape == "none":
            beyond = f"The loss by position does not rise, beyond doubt, by {self.least:g} nats or more"
            return f"{beyond}: from {level} within the training length it goes {rise} in the end."
        if begun.position is None:
            slow = "too slowly beside the noise to say from where"
            return f"The loss rises gradually, {slow}: from {level} within the training length by {rise} in the end."
        where = f"position {begun.position} ({begun.position / self.train_tokens:.2f} times the tokens trained on)"
        first = "unseen position" if self.plain else "token beyond the sequences trained on"
        at = "at" if begun.position == self.train_tokens else "just after"
        how = {
            "first position": f"sharply {at} the first {first}",
            "later": "sharply, but later",
            "gradual": "gradually",
        }[begun.shape]
        return f"The loss rises {how}, from {where}: from {level} by {rise} in the end."

    def _cause(self) -> list[str]:
        moved = self.intervened
        if moved is None:
            return []
        verdict = {
            None: "There is nothing to explain" if self.rises is not None else "Of positions that are moved",
            "positions": "That is due to unseen positions",
            "distances": "That is due to unseen distances, not to unseen positions",
            "both": "That is due to unseen positions, and more to unseen distances",
            "length": "That is due to neither unseen positions nor unseen distances, but to the greater length",
            "unclear": "What that is due to is unclear",
        }[self.cause]
        return [
            f"{verdict}: on {_examples(moved.examples)} of the training length, the loss of the answer or of the last"
            f" quarter, {moved.plain:.3f} nats, changes by {_effect(moved.shifted)} where all positions are moved as"
            f" far out as in the longest sequence evaluated, and by {_effect(moved.parted)} where a gap as wide amid"
            " them makes distances unseen."
        ]


def table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """One row a run."""
    rows = pd.DataFrame([verdict.row for verdict in verdicts])
    # Nullable, so that a run without a number does not make floats of the others'.
    return rows.astype(dict.fromkeys(("fails_at", "loss_rises_at", "onset_position", "examples"), "Int64"))


T = TypeVar("T")


def _tried(find: Callable[[], T]) -> tuple[T | None, list[str]]:
    """What is found, or why it cannot be: that is said beside the rest, which the tables alone can tell."""
    try:
        return find(), []
    except ValueError as error:
        return None, [str(error)]


def _effect(effect: Effect) -> str:
    mean = round(effect.mean, 3) + 0.0  # or nothing, on the negative side, would be -0
    error = "of one example" if math.isnan(effect.error) else f"standard error {effect.error:.3f}"
    return f"{mean:+.3f} ({error})"


def _examples(count: int) -> str:
    return "1 example" if count == 1 else f"{count} examples"
