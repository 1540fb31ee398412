"""A synthetic language of known entropy: a Markov source of some order."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE, Batch, Task

RESOLUTION = 1024
"""Probabilities are multiples of 1 / RESOLUTION, none of them 0."""

MOST_TYPES = 256
MOST_CONTEXTS = 4096


class Markov(Task):
    """Predict the next token of a Markov source, at every place.

    A token is drawn from a distribution that the `order` tokens before it, in their order, choose; all distributions
    are drawn once from `source_seed`, of a symmetric Dirichlet. A sequence starts anywhere in an endless text: its
    first `order` tokens are drawn from the stationary distribution. So the ideal predictor is known, and what it loses
    is the floor that no model gets below: the conditional entropy of a token given all before it, which falls over the
    first `order` places to the entropy rate, and stays. To reach it a model has to tell the last `order` tokens apart
    by how far back they stand, and to look no further.

    `last` is that of `Bytes`: how many targets at the end of an example evaluation scores, at all sizes the same.

    `size` is the number of tokens read; each one's target is the next (size 6 here, `last` = None):

        index      0    1    2    3    4    5
        tokens     3    1    1    6    0    3
        targets    1    1    6    0    3    1
    """

    isolates = "relative offset"
    default_train_length = 64
    min_size = 4
    causal = True

    def __init__(
        self,
        types: int = 8,
        order: int = 2,
        concentration: float = 0.3,
        source_seed: int = 0,
        last: int | None = None,
    ) -> None:
        """types: number of different tokens, 2 to 256.

        order: how many tokens the next one depends on, at least 1, and types ** order at most 4096.

        concentration: of the Dirichlet, more than 0; the less, the more certain the next token.

        source_seed: of the distributions, 0 to 2**32 - 1.

        last: how many targets at the end of an example evaluation scores, at least 1; None for all.

        ValueError where any is out of range.
        """
        if types < 2:
            raise ValueError(f"types must be at least 2, got {types}")
        if types > MOST_TYPES:
            raise ValueError(f"types must be at most {MOST_TYPES}, got {types}")
        if order < 1:
            raise ValueError(f"order must be at least 1, got {order}")
        if order > MOST_CONTEXTS or types**order > MOST_CONTEXTS:
            raise ValueError(f"types ** order must be at most {MOST_CONTEXTS}, got {types} ** {order}")
        if concentration <= 0:
            raise ValueError(f"concentration must be more than 0, got {concentration}")
        if not 0 <= source_seed < 2**32:
            raise ValueError(f"source_seed must be from 0 to 2**32 - 1, got {source_seed}")
        self.last = self.checked_last(last)
        self.vocabulary = self.classes = types
        self.order = order
        self.source = _source(types, order, concentration, source_seed)

    def length(self, size: int) -> int:
        return size

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw examples; tokens and targets are (examples, size). ValueError where size is too small."""
        self.check_size(size)
        text = self.source.draw(rng, examples, size + 1)
        return Batch.from_numpy(text[:, :-1], text[:, 1:])

    def chance(self, size: int) -> float:
        """Of one who always names the token that is most frequent in the language."""
        return float(self.source.frequencies(1).max())

    def conditional_entropy(self, known: int) -> float:
        """Of a token given the `known` tokens before it, in nats; the entropy rate from `known` = order on."""
        return float(self.source.entropies[min(known, self.order)])

    def ideal_loss(self, batch: Batch) -> torch.Tensor:
        """What the ideal predictor, who knows the source and sees what the model sees, loses at each token.

        (B, T) in nats, float64; 0 where a target is not scored. Its mean tends to `conditional_entropy(t + 1)` at t.
        """
        tokens_BT, targets_BT = batch.tokens_BT.numpy(), batch.targets_BT.clamp(min=0).numpy()
        context_BT = tokens_BT.copy()
        for back in range(1, min(self.order, tokens_BT.shape[1])):
            context_BT[:, back:] += tokens_BT[:, :-back] * self.classes**back
        loss_BT = np.empty(tokens_BT.shape)
        for t in range(min(self.order - 1, tokens_BT.shape[1])):
            loss_BT[:, t] = self.source.surprises[t + 1][context_BT[:, t], targets_BT[:, t]]
        full = slice(self.order - 1, None)
        loss_BT[:, full] = self.source.surprises[self.order][context_BT[:, full], targets_BT[:, full]]
        return torch.from_numpy(loss_BT).masked_fill(batch.targets_BT == IGNORE, 0.0)


@dataclass(frozen=True)
class Source:
    """A language, of C contexts (the last k tokens as a number in base V, the newest its last digit) and V types.

    counts_CV     the probability of each token in each context, in units of 1 / RESOLUTION
    stationary_C  how often each context occurs
    surprises     [n] (V ** n, V): minus log probability of a token given the n before it, n = 0 .. k
    entropies     [n]: its mean over the language, in nats
    """

    counts_CV: np.ndarray
    stationary_C: np.ndarray
    surprises: tuple[np.ndarray, ...]
    entropies: tuple[float, ...]
    _next: np.ndarray
    """[context, one of RESOLUTION] -> the context that follows, times RESOLUTION; flat: a step is one look-up."""

    def frequencies(self, tokens: int) -> np.ndarray:
        """(V ** tokens,): how often each string of up to k tokens occurs."""
        return self.stationary_C.reshape(self.counts_CV.shape[1] ** tokens, -1).sum(1)

    def draw(self, rng: np.random.Generator, examples: int, length: int) -> np.ndarray:
        """(examples, length) tokens of the language."""
        contexts, types = self.counts_CV.shape
        order = len(self.surprises) - 1
        first = self.stationary_C.cumsum().searchsorted(rng.random(examples), side="right")
        first = np.minimum(first, contexts - 1)  # the sum is 1 up to rounding
        path = np.empty((max(length - order, 0) + 1, examples), dtype=np.int64)
        path[0] = first * RESOLUTION
        draws = rng.integers(RESOLUTION, size=(len(path) - 1, examples))
        for step, drawn in enumerate(draws):
            np.take(self._next, path[step] + drawn, out=path[step + 1])
        beginning = first[:, None] // types ** np.arange(order - 1, -1, -1) % types
        return np.concatenate([beginning, (path[1:] // RESOLUTION % types).T], axis=1)[:, :length]


@lru_cache(maxsize=32)
def _source(types: int, order: int, concentration: float, seed: int) -> Source:
    contexts = types**order
    rng = stream("markov source", types, order, seed)
    wished_CV = rng.dirichlet(np.full(types, concentration), size=contexts)
    counts_CV = 1 + rng.multinomial(RESOLUTION - types, wished_CV)
    follows_CV = np.add.outer(np.arange(contexts) * types, np.arange(types)) % contexts

    # Every token is possible everywhere, so that any two beginnings are forgotten exponentially fast.
    stationary_C, before = np.full(contexts, 1 / contexts), np.zeros(contexts)
    for _ in range(10_000):
        if np.abs(stationary_C - before).sum() < 1e-15:
            break
        before = stationary_C
        flow_CV = before[:, None] * counts_CV / RESOLUTION
        stationary_C = np.bincount(follows_CV.ravel(), flow_CV.ravel(), minlength=contexts)
        stationary_C = stationary_C / stationary_C.sum()

    surprises, entropies = [], []
    for known in range(order + 1):
        if known < order:
            joint = stationary_C.reshape(types**known, types, -1).sum(2)
            surprise = -np.log(joint / joint.sum(1, keepdims=True))
        else:
            joint = stationary_C[:, None] * counts_CV / RESOLUTION
            surprise = -np.log(counts_CV / RESOLUTION)
        surprises.append(surprise)
        entropies.append(float((joint * surprise).sum()))

    tokens = np.repeat(np.tile(np.arange(types), contexts), counts_CV.ravel()).reshape(contexts, RESOLUTION)
    follow = np.take_along_axis(follows_CV, tokens, axis=1) * RESOLUTION
    return Source(counts_CV, stationary_C, tuple(surprises), tuple(entropies), follow.ravel())
