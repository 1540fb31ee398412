"""Two encodings compared on a task: paired by seed, and by evaluation example where runs recorded their examples.

Under one seed, two encodings start from the same trunk, train on the same batches and are scored on the same examples.
So the difference d_s of their scores under seed s is free of what they share, and is what everything here is about.

The unit of replication is the seed. With y_se the difference under seed s on example e,

    y_se = difference + seed_s + example_e + rest_se
    var(mean) = var_seed / S + var_example / E + var_rest / (S E)

More examples make the last two small, and never the first: an interval over examples alone speaks of the two models
that one seed gave, and of no other. So intervals and tests are over the S differences d_s, which hold the first and the
last part, for these examples. Where examples were recorded, `variance_parts` tells the three apart, and a second
interval is for fresh examples as well as fresh seeds (`fresh_low`, `fresh_high`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rpe_bench.errors import nearest
from rpe_bench.report.intervals import LEVEL, student_interval, student_quantile
from rpe_bench.report.left_out import left_out
from rpe_bench.report.load import ReportError, in_order, load_examples, load_results
from rpe_bench.report.significance import ALPHA, detectable, detectable_by_signs, holm, sign_flip_test, smallest_p
from rpe_bench.report.statistics import BOUNDS, FITTED, POINT, fits
from rpe_bench.seeds import stream

METRICS = {"exact_match": "exact match", "token_accuracy": "token accuracy", "loss": "loss"}
"""Column -> its name in words."""

OFFERED = 8
"""Configurations that are offered where a name stands for several."""

HIGHER_IS_BETTER = {"exact_match": True, "token_accuracy": True, "loss": False}


def variance_parts(values_SE: np.ndarray) -> tuple[float, float, float]:
    """What seeds, examples and the rest add to the variance of the mean of values (S seeds, E examples).

    var_seed / S, var_example / E and var_rest / (S E), from the mean squares of a two-way layout without replication;
    a negative estimate is taken for 0.
    """
    seeds, examples = values_SE.shape
    mean, mean_S, mean_E = values_SE.mean(), values_SE.mean(axis=1), values_SE.mean(axis=0)
    rest_SE = values_SE - mean_S[:, None] - mean_E[None] + mean
    square_S, square_E = examples * mean_S.var(ddof=1), seeds * mean_E.var(ddof=1)
    square_rest = float((rest_SE**2).sum()) / ((seeds - 1) * (examples - 1))
    whole = seeds * examples
    return max(0.0, square_S - square_rest) / whole, max(0.0, square_E - square_rest) / whole, square_rest / whole


def fresh_interval(values_SE: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of values (S, E) for fresh seeds and fresh examples.

    Of its variance, var(mean_S) / S has S - 1 degrees of freedom and what examples add has E - 1; together, as
    Satterthwaite (1946) has them, rounded down. Never narrower than for these examples alone, as it could be by the
    degrees of freedom that examples add.
    """
    seeds, examples = values_SE.shape
    of_seeds = float(values_SE.mean(axis=1).var(ddof=1)) / seeds
    of_examples = variance_parts(values_SE)[1]
    variance, mean = of_seeds + of_examples, float(values_SE.mean())
    if variance == 0:
        return mean, mean
    df = variance**2 / (of_seeds**2 / (seeds - 1) + of_examples**2 / (examples - 1))
    half = student_quantile((1 + LEVEL) / 2, math.floor(df + 1e-9)) * math.sqrt(variance)
    half = max(half, student_quantile((1 + LEVEL) / 2, seeds - 1) * math.sqrt(of_seeds))
    return mean - half, mean + half


@dataclass(frozen=True)
class Comparison:
    """What two encodings differ by on a task, a - b.

    lengths   one row a length: length, ratio, split, n (pairs), a, b (means over the pairs), difference, low, high (its
              95 % interval over seeds), sd (of the differences), p (of the permutation test), p_holm (corrected over
              the lengths), detectable (the smallest difference that the interval would have told from 0 in 80 of 100
              experiments) and detectable_holm (that the corrected test would have seen so); with examples also
              variance_seeds, variance_examples, variance_rest (`variance_parts`), fresh_low and fresh_high
    pairs     one row a length and seed: length, seed, a, b, difference; with examples also a_higher and b_higher, on
              how many examples either scores higher, and se_examples, the standard error of the difference over
              examples: of this pair of models, not of others
    examples  how many examples of a length the pairs were compared on one by one; None where not all runs recorded them
    notes     what was left out or is amiss, a line each
    """

    task: str
    a: str
    b: str
    metric: str
    lengths: pd.DataFrame
    pairs: pd.DataFrame
    examples: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def seeds(self) -> list[int]:
        return sorted(int(seed) for seed in self.pairs["seed"].unique())


def compare_runs(
    results_dir: str | Path, a: str, b: str, task: str | None = None, metric: str = "exact_match"
) -> Comparison:
    """`compare` for the runs of a results directory, by names or labels.

    task: may be missing where there is but one, or but one that has both.

    Raises:
        ReportError: as `compare` and `load_results`; or a name stands for nothing, or for several configurations.
    """
    results = load_results(results_dir)
    evaluations = results.evaluations
    task = _task_of(task, results.task_labels, evaluations, (a, b), results_dir)
    known = in_order(evaluations.loc[evaluations["task_label"] == task, "encoding_label"])
    a, b = (resolve(name, known, f" of {task}") for name in (a, b))
    if a == b:
        raise ReportError(f"{a} is to be compared with itself: name two")
    runs = results.runs
    finished = runs[(runs["status"] == "finished") & (runs["task_label"] == task) & runs["encoding_label"].isin([a, b])]
    examples = load_examples(results_dir, finished["directory"])
    examples = examples.merge(finished[["directory", "encoding_label", "seed"]], on="directory", validate="many_to_one")
    found = compare(evaluations, task, a, b, metric, stream("compare", task, a, b, metric), examples)
    # Labels are of finished runs alone; those that did not get so far are known by their names, and some by nothing but
    # their directory's.
    names = evaluations[(evaluations["task_label"] == task) & evaluations["encoding_label"].isin([a, b])]
    alike = runs["task"].isin(names["task"]) & runs["encoding"].isin(names["encoding"])
    begins = tuple({f"{name.task}-{name.encoding}-" for name in names.itertuples()})
    unknown = runs["task"].isna() & ((runs["status"] != "missing") | runs["directory"].str.startswith(begins))
    others = runs[alike | unknown]
    return replace(found, notes=[*found.notes, *left_out(others)])


def _task_of(
    given: str | None, labels: Sequence[str], evaluations: pd.DataFrame, encodings: Sequence[str], place: str | Path
) -> str:
    """The label that a task's name, or None, stands for: of several, the only one that has both encodings."""
    if given in labels or (given is None and len(labels) == 1):
        return given or labels[0]
    there = evaluations.groupby("task_label")["encoding_label"].unique()
    called = labels if given is None else _called(given, labels)
    both = [label for label in called if all(_called(one, there[label]) for one in encodings)]
    if len(both) == 1:
        return both[0]
    known = in_order(evaluations.loc[evaluations["task_label"].isin(called), "encoding_label"])
    for one in encodings if called else ():
        if not _called(one, known):  # whichever task is meant
            resolve(one, known, "" if given is None else f" of {given}")
    if given is None:
        having = "finished runs of both" if both else "finished runs"
        there_are = f" (there are: {_some(both or labels)})" if labels else ""
        raise ReportError(f"--task: which one? {place} has {len(both or labels)} tasks with {having}{there_are}")
    return resolve(given, both or labels, "")


def compare(
    evaluations: pd.DataFrame,
    task: str,
    a: str,
    b: str,
    metric: str,
    rng: np.random.Generator,
    examples: pd.DataFrame | None = None,
) -> Comparison:
    """Compare two encoding labels on a task label, paired by seed over the seeds that both have.

    examples: rows of examples.csv with encoding_label and seed, of all these runs, some or none of them; used where all
    pairs have theirs. rng: for more than EXACT_UP_TO pairs.

    Raises:
        ReportError: a label has no runs there, no seed is in both, one comes twice, or their examples are not the same.
    """
    rows = evaluations[evaluations["task_label"] == task]
    sides = {label: rows[rows["encoding_label"] == label] for label in (a, b)}
    for label, side in sides.items():
        if side.empty:
            raise ReportError(f"{label} has no finished run of {task}")
        if (twice := side.duplicated(["seed", "length"])).any():
            seed = side.loc[twice, "seed"].iloc[0]
            raise ReportError(f"{label} has seed {seed} of {task} twice: which of the two is meant?")
    seeds = {label: set(side["seed"].tolist()) for label, side in sides.items()}
    common = sorted(seeds[a] & seeds[b])
    if not common:
        raise ReportError(
            f"nothing to pair: of {task}, {a} has {_seeds(seeds[a])} and {b} {_seeds(seeds[b])}, none in common"
        )
    on = ["length", "ratio", "split", "seed"]
    pairs = sides[a][[*on, metric]].merge(sides[b][[*on, metric]], on=on, suffixes=("_a", "_b"))
    pairs = pairs.rename(columns={f"{metric}_a": "a", f"{metric}_b": "b"}).sort_values(["length", "seed"])
    pairs = pairs.assign(difference=pairs["a"] - pairs["b"]).reset_index(drop=True)

    n = len(common)
    complete = pairs.groupby("length")["seed"].transform("size") == n
    partial = sorted(pairs.loc[~complete, "length"].unique().tolist())
    pairs = pairs[complete].reset_index(drop=True)
    if pairs.empty:
        raise ReportError(f"nothing to pair: {a} and {b} were evaluated at no length of {task} in common")
    differences_LN = pairs["difference"].to_numpy().reshape(-1, n)
    most = BOUNDS[metric][1]  # all begin at 0, so that no difference is larger
    low_L, high_L = (np.clip(end_L, -most, most) for end_L in student_interval(differences_LN))
    lengths = pairs.groupby(["length", "ratio", "split"], sort=True)[["a", "b", "difference"]].mean().reset_index()
    sd_L = differences_LN.std(axis=1, ddof=1) if n > 1 else np.full(len(lengths), np.nan)
    sd_L[sd_L < 1e-12] = 0.0  # equal differences, but for rounding
    p_L = sign_flip_test(differences_LN, rng)
    tests = len(lengths)
    lengths = lengths.assign(low=low_L, high=high_L, sd=sd_L, p=p_L, p_holm=holm(p_L))
    lengths.insert(3, "n", n)
    spread_L = np.where(sd_L > 0, sd_L, np.nan)  # one that was not seen says nothing of what could have been
    lengths = lengths.assign(
        detectable=detectable(n) * spread_L, detectable_holm=detectable_by_signs(n, tests) * spread_L
    )

    notes = [
        f"seed {seed} of {mine} is left out: {other} has no finished run with it"
        for mine, other in ((a, b), (b, a))
        for seed in sorted(seeds[mine] - seeds[other])
    ]
    notes += [f"length {length} is left out: not all pairs were evaluated there" for length in partial]
    fitted = fits(rows)
    failed = fitted[~fitted["fitted"].fillna(True).astype(bool) & fitted["encoding_label"].isin([a, b])]
    notes += [
        f"seed {run.seed} of {run.encoding_label} did not fit: token accuracy {run.token_accuracy:.3f} at the training "
        f"length, below {FITTED:g}; it counts all the same"
        for run in failed[failed["seed"].isin(common)].itertuples()
    ]
    found = Comparison(task, a, b, metric, lengths, pairs, None, notes)
    return found if examples is None else _by_example(found, examples)


def _seeds(seeds: set[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"


def _by_example(found: Comparison, examples: pd.DataFrame) -> Comparison:
    """The comparison with what the examples add; as it was, and said why, where a run has none."""
    labels, seeds = (found.a, found.b), found.seeds
    by_run = {key: rows for key, rows in examples.groupby(["encoding_label", "seed", "length"])}
    missing = [
        (s, label) for label in labels for s in seeds if (label, s, found.lengths["length"].iloc[0]) not in by_run
    ]
    if missing:
        which = ", ".join(f"seed {seed} of {label}" for seed, label in missing)
        which = "these runs have" if len(missing) == 2 * len(seeds) else f"there is for {which}"
        note = f"paired by seed alone: {which} no examples.csv, as from before runs recorded it"
        return replace(found, notes=[*found.notes, note])
    if examples["example"].nunique() == 1:
        return replace(found, notes=[*found.notes, "paired by seed alone: a single example of each length"])
    parts, models = [], []
    most = BOUNDS[found.metric][1]
    for length in found.lengths["length"]:
        runs = [[by_run[label, seed, length].sort_values("example") for seed in seeds] for label in labels]
        tokens_E = runs[0][0]["tokens"].to_numpy()
        if not all(np.array_equal(run["tokens"].to_numpy(), tokens_E) for of_label in runs for run in of_label):
            raise ReportError(f"{found.a} and {found.b} were not scored on the same examples of length {length}")
        a_SE, b_SE = (np.stack([run[found.metric].to_numpy() for run in of_label]) for of_label in runs)
        # So that the mean over examples is what eval.csv has, which weighs every token the same.
        weights_E = np.ones(len(tokens_E)) if found.metric == "exact_match" else tokens_E / tokens_E.mean()
        difference_SE = (a_SE - b_SE) * weights_E
        if len(seeds) > 1:
            parts.append([*variance_parts(difference_SE), *np.clip(fresh_interval(difference_SE), -most, most)])
        se_S = difference_SE.std(axis=1, ddof=1) / math.sqrt(len(tokens_E))
        models += list(zip((a_SE > b_SE).sum(axis=1), (b_SE > a_SE).sum(axis=1), se_S, strict=True))
    a_higher, b_higher, se = zip(*models, strict=True)
    lengths = found.lengths
    if parts:
        names = ("variance_seeds", "variance_examples", "variance_rest", "fresh_low", "fresh_high")
        lengths = lengths.assign(**dict(zip(names, np.transpose(parts), strict=True)))
    pairs = found.pairs.assign(a_higher=a_higher, b_higher=b_higher, se_examples=se)
    return replace(found, lengths=lengths, pairs=pairs, examples=len(tokens_E))


def against_best(evaluations: pd.DataFrame, metric: str, rng: np.random.Generator) -> pd.DataFrame:
    """For tables: which encoding is the best at each task and length, and which are significantly worse.

    The best has the best mean; all that reach it are the best. The others are compared with the first of them over the
    seeds that both have, by `sign_flip_test` with Holm's correction over them. Returns POINT, n, mean, best, pairs,
    p_holm (missing for that first one), worse, and could_tell: whether there are pairs enough for any difference to be
    significant. Where that is false, not being worse means nothing.
    """
    sign = 1 if HIGHER_IS_BETTER[metric] else -1
    found: list[tuple[Any, pd.DataFrame, Any, dict[Any, np.ndarray]]] = []
    points: Any = evaluations.groupby(["task_label", "length", "ratio"], sort=True)
    for point, rows in points:
        table = rows.pivot(index="seed", columns="encoding_label", values=metric)
        means = table.mean()  # over the seeds that an encoding has
        best = means.index[int(np.argmax(sign * means.to_numpy()))]
        differences = {label: (table[label] - table[best]).dropna().to_numpy() for label in table if label != best}
        found.append((point, table, best, differences))
    tested = _tested([d for _, _, _, differences in found for d in differences.values()], rng)
    records = []
    for point, table, best, differences in found:
        corrected = dict(zip(differences, holm(np.array([next(tested) for _ in differences])), strict=True))
        means, counts = table.mean().to_dict(), table.notna().sum().to_dict()
        for label in table:
            d = differences.get(label, np.empty(0))
            tell = len(d) > 0 and smallest_p(len(d)) * len(differences) <= ALPHA + 1e-12
            # Of equal scores no alphabet chooses.
            is_best = label == best or bool(abs(means[label] - means[best]) < 1e-12)
            worse = not is_best and bool(corrected[label] <= ALPHA + 1e-12)
            p_holm = corrected.get(label, math.nan)
            records.append(
                [point[0], label, *point[1:], int(counts[label]), means[label], is_best, len(d), p_holm] + [worse, tell]
            )
    columns = [*POINT, "n", "mean", "best", "pairs", "p_holm", "worse", "could_tell"]
    return pd.DataFrame(records, columns=columns).sort_values(list(POINT), ignore_index=True)


def _tested(differences: Sequence[np.ndarray], rng: np.random.Generator) -> Iterator[float]:
    """p of each by `sign_flip_test`, nan of none; as many pairs are tested together, by the same patterns."""
    sizes = np.array([len(d) for d in differences], dtype=int)
    p = np.full(len(differences), np.nan)
    for n in np.unique(sizes[sizes > 0]):
        chosen = np.flatnonzero(sizes == n)
        p[chosen] = sign_flip_test(np.stack([differences[i] for i in chosen.tolist()]), rng)
    return iter(p.tolist())


def _called(given: str, known: Iterable[str]) -> list[str]:
    """The labels that are a name, or have it before their brackets."""
    return [label for label in known if given in (label, label.partition(" (")[0])]


def _some(labels: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(labels) - OFFERED} more" if len(labels) > OFFERED else ""
    return ", ".join(labels[:OFFERED]) + more


def resolve(given: str, known: Sequence[str], what: str) -> str:
    """The label that a name stands for: itself, or the only one with that name before its brackets.

    ReportError, which lists what there is, where there is none or are several: configurations are never mixed.
    """
    if given in known:
        return given
    of_name = _called(given, known)
    if len(of_name) == 1:
        return of_name[0]
    if of_name:
        choices = _some([f"'{label}'" for label in of_name])
        raise ReportError(f"{given} is {len(of_name)} configurations{what}, of which one is to be named: {choices}")
    raise ReportError(f"{given} has no finished run{what}{nearest(given, known)} (there are: {', '.join(known)})")
