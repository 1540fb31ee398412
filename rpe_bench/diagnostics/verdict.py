"""What is known of how one run fails beyond its training length, as one row of a table and as sentences."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd

from rpe_bench.diagnostics.attention_maps import unseen_share
from rpe_bench.diagnostics.failure import LEAST_RISE, Cause, Effect, Onset, cause, effect, first_failing, onset
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

    threshold        of token accuracy
    fails_at         the first length from the training length on where accuracy is below it; None where none is
    accuracy         token accuracy there
    longest          the longest length evaluated
    loss, loss_long  at the training length, or the longest evaluated that does not exceed it, and at the longest
    onset            of the rise at the longest length; None where too few positions are scored to say
    intervened       None where that is not possible
    unseen           the share of attention on unseen distances at the longest length, mean over layers and heads; None
                     where that is not possible
    untested         why not: a reason for each of the two that is missing
    cause            of a rise of the loss; None where it does not rise, or without an intervention
    """

    run_id: str
    task: str
    encoding: str
    seed: int
    train_length: int
    train_tokens: int
    threshold: float
    fails_at: int | None
    accuracy: float | None
    longest: int
    loss: float
    loss_long: float
    onset: Onset | None
    intervened: Intervened | None
    unseen: float | None
    untested: list[str]
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
        within = evaluations.loc[evaluations["length"] <= train_length, "loss"].tolist()
        loss, loss_long = within[-1] if within else math.nan, evaluations["loss"].tolist()[-1]
        longest = max(evaluations["length"])
        fails_at, accuracy = first_failing(evaluations, train_length, threshold) or (None, None)
        begun = onset(positions[positions["length"] == longest], train_tokens, least)
        intervened, no_intervention = _tried(lambda: Intervened.of(trained))
        looked_at = min(LOOKED_AT, config.evaluation.examples)
        unseen, no_look = _tried(lambda: float(unseen_share(trained, [longest], looked_at)["unseen_share"].mean()))
        rises = loss_long - loss > least if begun is None else begun.shape != "none"
        return cls(
            run_id=config.run_id,
            task=config.task.name,
            encoding=config.encoding.name,
            seed=config.seed,
            train_length=train_length,
            train_tokens=train_tokens,
            threshold=threshold,
            fails_at=fails_at,
            accuracy=accuracy,
            longest=longest,
            loss=loss,
            loss_long=loss_long,
            onset=begun,
            intervened=intervened,
            unseen=unseen,
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
            "longest": self.longest,
            "loss": self.loss,
            "loss_long": self.loss_long,
            "onset": begun and begun.shape,
            "onset_position": begun and begun.position,
            "level": begun and begun.level,
            "noise": begun and begun.noise,
            "rise": begun and begun.rise,
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
            where = f"At length {self.longest}, {self.unseen:.1%} of attention"
            lines.append(f"{where} lies on distances that training never had.")
        return [*lines, *(f"Not tested, since: {reason}." for reason in dict.fromkeys(self.untested))]

    def _accuracy(self) -> str:
        if self.fails_at is None:
            return f"Accuracy stays at {self.threshold:g} or above up to length {self.longest}, the longest evaluated."
        trained = "the training length already" if self.fails_at == self.train_length else f"length {self.fails_at}"
        ratio = "" if self.fails_at == self.train_length else f", {self.fails_at / self.train_length:.3g} times it"
        return f"Accuracy is below {self.threshold:g} at {trained}{ratio}: {self.accuracy:.3f}."

    def _onset(self) -> str:
        begun = self.onset
        if self.longest <= self.train_length:
            return "Nothing was evaluated beyond the training length."
        if begun is None:
            return (
                f"Mean loss goes from {self.loss:.3f} at the training length to {self.loss_long:.3f} at length"
                f" {self.longest}; too few positions are scored on both sides of the training length to say where."
            )
        level = f"{begun.level:.3f} (noise {begun.noise:.3f} a position)"
        if begun.position is None:
            return f"The loss by position does not rise: it ends {begun.rise:+.3f} from its level of {level}."
        where = f"position {begun.position} ({begun.position / self.train_tokens:.2f} times those trained on)"
        how = {
            "first position": f"rises sharply at the first unseen position, from {where}",
            "later": f"rises sharply, but later, from {where}",
            "gradual": f"rises gradually, from {where}",
        }[begun.shape]
        return f"The loss {how}: from {level} by {begun.rise:+.3f} nats in the end."

    def _cause(self) -> list[str]:
        moved = self.intervened
        if moved is None:
            return []
        verdict = {
            None: "The loss does not rise, so that there is nothing to explain",
            "positions": "That is due to unseen positions",
            "distances": "That is due to unseen distances, not to unseen positions",
            "length": "That is due to neither unseen positions nor unseen distances, but to the greater length",
        }[self.cause]
        return [
            f"{verdict}: {moved.examples} sequences of the training length, which lose {moved.plain:.3f} nats, lose"
            f" {_effect(moved.shifted)} more where all their positions are moved as far out, and"
            f" {_effect(moved.parted)} more where a gap as wide amid them makes distances unseen."
        ]


def table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """One row a run."""
    rows = pd.DataFrame([verdict.row for verdict in verdicts])
    # Nullable, so that a run without a number does not make floats of the others'.
    return rows.astype(dict.fromkeys(("fails_at", "onset_position", "examples"), "Int64"))


T = TypeVar("T")


def _tried(find: Callable[[], T]) -> tuple[T | None, list[str]]:
    """What is found, or why it cannot be: that is said beside the rest, which the tables alone can tell."""
    try:
        return find(), []
    except ValueError as error:
        return None, [str(error)]


def _effect(effect: Effect) -> str:
    return f"{effect.mean:+.3f} (standard error {effect.error:.3f})"
