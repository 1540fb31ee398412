"""How fast each encoding learns: the training loss against the tokens seen."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rpe_bench.report import curves
from rpe_bench.report.figures import Style, looks_of, paper_style
from rpe_bench.report.layout import log_axis
from rpe_bench.report.load import Results
from rpe_bench.report.published import grouped_training
from rpe_bench.report.statistics import over_seeds


def has_learning(results: Results, task: str) -> bool:
    """Whether some run recorded its loss at two moments or more."""
    rows = curves.of_task(results.training, task)
    return bool((rows.groupby(["encoding_label", "seed"])["step"].nunique() > 1).any())


def learning_points(training: pd.DataFrame) -> pd.DataFrame:
    """Mean loss over the seeds with its interval, by encoding_label and step; tokens: seen by then, the mean of seeds,
    which differ where lengths are drawn. A step that only some seeds reached has no row."""
    seeds = training.groupby("encoding_label")["seed"].transform("nunique")
    reached = training.groupby(["encoding_label", "step"])["seed"].transform("nunique")
    training = training[seeds == reached]
    points = over_seeds(training, "loss", ("encoding_label", "step"), np.random.default_rng(0), middle=False)
    tokens = training.groupby(["encoding_label", "step"])["tokens"].mean().rename("tokens").reset_index()
    return points.merge(tokens, on=["encoding_label", "step"], validate="one_to_one")


def learning_figure(results: Results, task: str, looks: Mapping[str, Style] | None = None) -> Figure:
    """Training loss against tokens seen for one task label, one line an encoding, on a logarithmic axis.

    Lines are means over seeds of the loss on training batches, bands their 95 % intervals; of a long run, in the parts
    that `published.grouped_training` makes.
    """
    looks = looks or looks_of(results.encoding_labels)
    rows = grouped_training(curves.of_task(results.training, task))
    points = learning_points(rows)
    unit, name = (1e6, "million ") if points["tokens"].max() >= 1e6 else (1e3, "thousand ")
    points = points.assign(tokens=points["tokens"] / unit)
    caption = curves.caption_of(rows) + curves.fit_failures(curves.of_task(results.evaluations, task))
    labels = (f"{name}tokens trained on", "training loss")

    def finish(panels: Sequence[Axes]) -> Sequence[Artist]:
        log_axis(panels, labels[1])
        return []

    with paper_style():
        return curves.line_figure(rows, points, "tokens", "loss", task, looks, caption, labels, finish, log=True)
