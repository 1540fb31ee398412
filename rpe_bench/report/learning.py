"""How fast each encoding learns: the training loss against the tokens seen."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rpe_bench.report.curves import (
    caption_of,
    draw,
    ends_of,
    equal_lines,
    faded_but,
    fit_failures,
    handles_of,
    of_task,
    others,
    panels_of,
    titles_of,
)
from rpe_bench.report.figures import COLUMN, Style, looks_of, paper_style
from rpe_bench.report.layout import compose, log_axis
from rpe_bench.report.load import Results
from rpe_bench.report.published import grouped_training
from rpe_bench.report.statistics import over_seeds


def has_learning(results: Results, task: str) -> bool:
    """Whether some run recorded its loss at two moments or more."""
    rows = of_task(results.training, task)
    return bool((rows.groupby(["encoding_label", "seed"])["step"].nunique() > 1).any())


def learning_points(training: pd.DataFrame) -> pd.DataFrame:
    """Mean loss over the seeds with its interval, by encoding_label and step; tokens: seen by then, the mean of seeds,
    which differ where lengths are drawn. A step that only some seeds reached has no row."""
    seeds = training.groupby("encoding_label")["seed"].transform("nunique")
    reached = training.groupby(["encoding_label", "step"])["seed"].transform("nunique")
    training = training[seeds == reached]
    points = over_seeds(training, "loss", ("encoding_label", "step"), np.random.default_rng(0))
    tokens = training.groupby(["encoding_label", "step"])["tokens"].mean().rename("tokens").reset_index()
    return points.merge(tokens, on=["encoding_label", "step"], validate="one_to_one")


def learning_figure(results: Results, task: str, looks: Mapping[str, Style] | None = None) -> Figure:
    """Training loss against tokens seen for one task label, one line an encoding, on a logarithmic axis.

    Lines are means over seeds of the loss on training batches, bands their 95 % intervals; of a long run, in the parts
    that `published.grouped_training` makes.
    """
    looks = looks or looks_of(results.encoding_labels)
    rows = grouped_training(of_task(results.training, task))
    drawn = set(rows["encoding_label"])
    with paper_style():
        figure = Figure(figsize=(COLUMN, COLUMN))
        titles = titles_of(looks, drawn)
        panels, columns = panels_of(figure, titles)
        points = learning_points(rows)
        unit, name = (1e6, "million ") if points["tokens"].max() >= 1e6 else (1e3, "thousand ")
        points = points.assign(tokens=points["tokens"] / unit)
        equal = equal_lines([points], "step", looks, True)
        own = []
        for panel, title in zip(panels, titles, strict=True):
            mine = faded_but(looks, title)
            draw(panel, points, "tokens", mine)
            own.append(handles_of(rows, "loss", mine, equal))
            panel.set_xlabel(f"{name}tokens trained on")
        log_axis(panels, "training loss")
        for panel in panels[::columns]:
            panel.set_ylabel("training loss")
        caption = caption_of(rows) + fit_failures(of_task(results.evaluations, task))
        if len(panels) == 1:
            shared = others(looks, drawn)
            ends = ends_of(panels[0], own[0], points, "tokens")
            compose(figure, panels, [*own[0], *shared], task, caption, height=1.95, ends=ends)
        else:
            caption += "; grey: those of the other panels"
            compose(figure, panels, [], task, caption, height=1.4, columns=columns, own=own)
    return figure
