"""What several seeds say together. Every seed counts, one that failed to fit as much as any other.

Pure functions of the DataFrames of `load_results`: rows of runs in, one row a run, a line or a point out.

    over_seeds            mean and interquartile mean of anything, with 95 % intervals and the range
    effective_lengths     how far each run holds
    areas                 how well it does over all lengths, on a log scale
    generalising          whether it still works at a multiple of the training length; share_generalising over seeds
    token_means           of parts of sequences
    fits                  whether it learned the task within the training length; over_seeds_fitted reports both ways
    over_tasks            one number an encoding, for a leaderboard

Seeds are what an experiment repeats, so that intervals are over seeds. The examples that a run is scored on are many,
but of one trained model: counting them as repetitions would say how well that model is known, and nothing of the next.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from rpe_bench.report.intervals import (
    LEVEL,
    interquartile_interval,
    mean_interval,
    resamples,
    student_quantile,
    trimmed_mean,
    wilson_interval,
)

LINE = ("task_label", "encoding_label")
"""Columns that name one line of a figure, or one row of a table."""

POINT = (*LINE, "length", "ratio")
"""Columns that name one point of it."""

_RUN = [*LINE, "seed", "train_length"]
"""Columns that name one run, and what it was trained on."""

HOLDS = 0.9
"""Exact match, or accuracy, that counts as still working."""

FITTED = 0.9
"""Token accuracy at the training length below which a run counts as one that failed to fit. A bar for tasks whose
answers follow from the input."""

BOUNDS = {
    **dict.fromkeys(("token_accuracy", "exact_match", "accuracy", "area"), (0.0, 1.0)),
    **dict.fromkeys(("loss", "effective_length", "effective_ratio"), (0.0, math.inf)),
    "perplexity": (1.0, math.inf),
}
"""What a column can be: intervals end there."""


def over_seeds(
    rows: pd.DataFrame,
    value: str,
    by: Sequence[str] = POINT,
    rng: np.random.Generator | None = None,
    middle: bool = True,
) -> pd.DataFrame:
    """Number, mean and range of a column over the seeds, for every combination of `by`.

    rows: one row for each seed and combination. rng: also the 95 % interval of the mean, by the methods of `intervals`,
    and, unless `middle` is false, the interquartile mean (that of the middle half) and its interval. Returns the
    columns of `by`, then n, mean, min, max(, low, high(, iqm, iqm_low, iqm_high)), sorted by `by`. Where a value isn't
    finite for one seed, the mean isn't either: no seed is dropped. ValueError where a seed comes twice.
    """
    rows = rows.sort_values([*by, "seed"])
    if (twice := rows.duplicated([*by, "seed"])).any():
        row = rows[twice].iloc[0]
        where = ", ".join(f"{column}={row[column]}" for column in by)
        raise ValueError(f"seed {row['seed']} comes twice for {where}: it would count twice")
    counts = rows.groupby(list(by), sort=True).size().rename("n").reset_index()
    sizes = counts["n"].to_numpy(dtype=int)
    starts = np.cumsum(sizes) - sizes
    values = rows[value].to_numpy(dtype=float)
    columns = ["mean", "min", "max"]
    if rng is not None:
        columns += ["low", "high", *(("iqm", "iqm_low", "iqm_high") if middle else ())]
    found = np.empty((len(sizes), len(columns)))
    # Every group of n seeds gets the same resamples, so that its interval doesn't hang on what else is in the table.
    key = None if rng is None else int(rng.integers(2**63))
    for n in np.unique(sizes):
        chosen = sizes == n
        values_GN = values[starts[chosen][:, None] + np.arange(n)]
        summary = [values_GN.mean(axis=1), values_GN.min(axis=1), values_GN.max(axis=1)]
        if key is not None:
            counts_SN = _resamples(int(n), key)
            least, most = BOUNDS.get(value, (-math.inf, math.inf))
            summary += [np.clip(end, least, most) for end in mean_interval(values_GN, counts_SN)]
            if middle:
                summary.append(trimmed_mean(values_GN))
                summary += [np.clip(end, least, most) for end in interquartile_interval(values_GN, counts_SN)]
        found[chosen] = np.stack(summary, axis=1)
    return pd.concat([counts, pd.DataFrame(found, columns=columns)], axis="columns")


@lru_cache(maxsize=2)  # they are asked for again and again; of hundreds of seeds they take tens of megabytes
def _resamples(n: int, key: int) -> np.ndarray:
    return resamples(n, np.random.default_rng([key, n]))


def effective_lengths(evaluations: pd.DataFrame, threshold: float = HOLDS) -> pd.DataFrame:
    """How far each run holds: the longest evaluated length up to which its exact match stays at or above a threshold.

    It is looked for from the smallest evaluated length at or above the training length, and 0 where that one fails.
    Returns one row a run: LINE, seed, train_length, effective_length, effective_ratio (to the training length) and
    at_limit, true where no evaluated length failed, so that the run may hold further than was measured.
    """
    rows = _beyond(evaluations)
    by = [rows[column] for column in _RUN]
    holds = (rows["exact_match"] >= threshold).astype("int8").groupby(by, sort=False).cummin()
    reached = rows[_RUN].assign(effective_length=rows["length"].where(holds == 1, 0), at_limit=holds)
    runs = reached.groupby(_RUN, sort=True)
    lengths = runs.agg(effective_length=("effective_length", "max"), at_limit=("at_limit", "min")).reset_index()
    lengths.insert(5, "effective_ratio", lengths["effective_length"] / lengths["train_length"])
    return lengths.assign(at_limit=lengths["at_limit"] == 1)


def over_seeds_effective(
    evaluations: pd.DataFrame, threshold: float = HOLDS, rng: np.random.Generator | None = None
) -> pd.DataFrame:
    """`over_seeds` of the effective length.

    Returns LINE, train_length, its columns (in lengths) and at_limit, the number of seeds that never failed.
    """
    lengths = effective_lengths(evaluations, threshold)
    by = [*LINE, "train_length"]
    summary = over_seeds(lengths, "effective_length", by, rng)
    limits = lengths.groupby(by, sort=True)["at_limit"].sum().reset_index(drop=True)
    return summary.assign(at_limit=limits.astype("int64"))


def areas(evaluations: pd.DataFrame, metric: str = "exact_match") -> pd.DataFrame:
    """Area under each run's curve of a metric m over log length, as a share of what 1 throughout would give:

        area = integral of m d(log length) / log(longest / first), by trapezoids

    from the smallest evaluated length at or above the training length to the longest one, so that each doubling weighs
    the same. Returns one row a run: LINE, seed, train_length, first, longest and area; no row for a run with a single
    such length. Runs can be compared where first and longest are the same.
    """
    rows = _beyond(evaluations)
    runs = rows.groupby(_RUN, sort=True)
    number = runs.ngroup().to_numpy()
    logs, values = np.log(rows["length"].to_numpy(dtype=float)), rows[metric].to_numpy(dtype=float)
    within = np.diff(number) == 0
    trapezoids = np.diff(logs) * (values[1:] + values[:-1]) / 2
    found = runs["length"].agg(first="first", longest="last").reset_index()
    total = np.bincount(number[1:][within], trapezoids[within], minlength=len(found))
    several = found["longest"] > found["first"]
    found, total = found[several].reset_index(drop=True), total[several.to_numpy(dtype=bool)]
    return found.assign(area=total / np.log(found["longest"] / found["first"]))


def generalising(
    evaluations: pd.DataFrame, multiple: float = 2.0, threshold: float = HOLDS, metric: str = "exact_match"
) -> pd.DataFrame:
    """Whether each run generalises: its metric is at or above a threshold at `multiple` times the training length.

    Read at the smallest evaluated length that is no shorter. Returns one row a run: LINE, seed, train_length, length,
    ratio, the metric and generalises; no row for a run that was not evaluated as far.
    """
    rows = evaluations[evaluations["length"] >= np.rint(multiple * evaluations["train_length"])]
    rows = rows.sort_values([*LINE, "seed", "length"]).drop_duplicates([*LINE, "seed", "train_length"])
    rows = rows[[*LINE, "seed", "train_length", "length", "ratio", metric]].reset_index(drop=True)
    return rows.assign(generalises=rows[metric] >= threshold)


def share_generalising(
    evaluations: pd.DataFrame, multiple: float = 2.0, threshold: float = HOLDS, metric: str = "exact_match"
) -> pd.DataFrame:
    """Share of the seeds that are `generalising`: LINE, train_length, length, ratio, n, generalising (how many), share,
    low and high, its 95 % interval."""
    runs = generalising(evaluations, multiple, threshold, metric)
    by = [*LINE, "train_length", "length", "ratio"]
    summary = runs.groupby(by, sort=True)["generalises"].agg(n="size", generalising="sum").reset_index()
    low, high = wilson_interval(summary["generalising"].to_numpy(), summary["n"].to_numpy())
    return summary.assign(share=summary["generalising"] / summary["n"], low=low, high=high)


def fits(evaluations: pd.DataFrame, bar: float = FITTED) -> pd.DataFrame:
    """Whether each run learned its task: its token accuracy at the training length is at or above a bar.

    Read at the longest evaluated length that is no longer than that. Nothing beyond it is looked at, so that a run is
    not called a failure for failing to extrapolate. Returns one row a run: LINE, seed, train_length, length,
    token_accuracy and fitted: True, False, or missing for all runs of a task in which none reaches the bar. There,
    either the answers cannot be known from the input, as in language modelling, or the recipe fits nothing, and the bar
    tells no seed from another.
    """
    rows = evaluations[evaluations["length"] <= evaluations["train_length"]]
    rows = rows.sort_values([*LINE, "seed", "length"]).drop_duplicates([*LINE, "seed", "train_length"], keep="last")
    rows = rows[[*LINE, "seed", "train_length", "length", "token_accuracy"]].reset_index(drop=True)
    fitted = (rows["token_accuracy"] >= bar).astype("boolean")
    reached = fitted.groupby(rows["task_label"]).transform("any").astype(bool)
    return rows.assign(fitted=fitted.where(reached))


def over_seeds_fitted(
    evaluations: pd.DataFrame, value: str, bar: float = FITTED, rng: np.random.Generator | None = None
) -> pd.DataFrame:
    """`over_seeds` of all seeds, and beside it n_fitted and mean_fitted, of those that fitted alone.

    The first is the result. The second answers another question, how far a model goes once it has learned the task, and
    is no better than the number of seeds that it leaves out. Both missing where `fits` cannot say, the mean alone where
    no seed fitted.
    """
    summary = over_seeds(evaluations, value, POINT, rng)
    flags = fits(evaluations, bar)[[*LINE, "seed", "fitted"]]
    rows = evaluations.merge(flags, on=[*LINE, "seed"], how="left", validate="many_to_one")
    known = rows["fitted"].notna().groupby([rows[column] for column in POINT], sort=True).all().to_numpy(dtype=bool)
    chosen = over_seeds(rows[rows["fitted"].fillna(False).to_numpy(dtype=bool)], value)
    chosen = chosen[[*POINT, "n", "mean"]].rename(columns={"n": "n_fitted", "mean": "mean_fitted"})
    both = summary.merge(chosen, on=list(POINT), how="left", validate="one_to_one")
    count = both["n_fitted"].fillna(0).astype("Int64")
    return both.assign(n_fitted=count.where(known))


def over_tasks(scores: pd.DataFrame, value: str) -> pd.DataFrame:
    """One number an encoding: the mean over tasks of its mean over seeds, every task weighing the same.

    scores: one row a task_label, encoding_label and seed, such as `areas` or `effective_lengths` give. The interval is
    over seeds, for these tasks and no others: se^2 = sum of s_t^2 / n_t / T^2 over the T tasks, with Welch's and
    Satterthwaite's degrees of freedom, rounded down. Returns encoding_label, tasks, runs, mean, low, high, the best
    first; low and high are nan where a task has a single seed. Encodings with other numbers of tasks are not to be
    compared.
    """
    least, most = BOUNDS.get(value, (-math.inf, math.inf))
    records = []
    for label, of_encoding in scores.groupby("encoding_label", sort=True):
        tasks = of_encoding.groupby("task_label", sort=True)[value]
        means, sizes = tasks.mean(), tasks.size()
        parts = (tasks.var(ddof=1) / sizes).to_numpy() / len(means) ** 2
        mean, low, high = float(means.to_numpy().mean()), math.nan, math.nan
        if sizes.min() > 1 and np.isfinite(parts).all():
            half = 0.0
            if parts.sum() > 0:
                df = parts.sum() ** 2 / np.sum(parts**2 / (sizes.to_numpy() - 1))
                half = student_quantile((1 + LEVEL) / 2, math.floor(df + 1e-9)) * math.sqrt(parts.sum())
            low, high = max(mean - half, least), min(mean + half, most)
        records.append([label, len(means), int(sizes.sum()), mean, low, high])
    table = pd.DataFrame(records, columns=["encoding_label", "tasks", "runs", "mean", "low", "high"])
    return table.sort_values("mean", ascending=False, kind="stable", ignore_index=True)


def _beyond(evaluations: pd.DataFrame) -> pd.DataFrame:
    """The rows of each run at or above its training length, by length."""
    rows = evaluations[evaluations["length"] >= evaluations["train_length"]]
    return rows.sort_values([*_RUN, "length"], ignore_index=True)


def token_means(rows: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """`means.token_mean` of some columns for each combination of `by`: these, tokens and the columns, in order."""
    by, columns = list(by), list(columns)
    parts = rows[[*by, "tokens"]].assign(**{name: rows[name] * rows["tokens"] for name in columns})
    sums = parts.groupby(by, sort=True)[["tokens", *columns]].sum()
    for name in columns:
        sums[name] = sums[name] / sums["tokens"]
        if (unknown := parts[name].isna()).any():  # which a sum passes over, and a mean does not
            sums[name] = sums[name].mask(unknown.groupby([parts[key] for key in by], sort=True).any())
    return sums.reset_index()
