"""The W&B workspace in which the runs of a project are compared, as code.

    python scripts/wandb_workspace.py --entity ENTITY --project rpe_bench             # its URL
    python scripts/wandb_workspace.py --entity ENTITY --project rpe_bench --task copy  # of one task alone

Needs the extra `workspace` (pip install -e '.[workspace]') and a key. Each call saves a new view beside those that
there are. Lines are means over runs, so that all seeds count, with one standard error around them.
"""

import argparse
from typing import Any

from rpe_bench.errors import of_extra

with of_extra("workspace", "wandb_workspaces"):
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

ENCODING, TASK = "encoding.name", "task.name"
"""Keys of a run's config."""

ACCURACY = (0.0, 1.0)


NOTE = """Curves are means over runs, all seeds included, with one standard error around them. Nothing was selected on
lengths beyond training. Numbers to cite are those of `rpe-bench report`, which says over how many seeds they are."""


def line(title: str, x: str, y: str | None, by: str, **options: Any) -> wr.LinePlot:
    """A curve for each value of a key of the config: the mean of its runs."""
    drawn = {"y": [wr.Metric(y)]} if y else {}
    averaged = {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr", "aggregate": True}
    return wr.LinePlot(title=title, x=x, title_x=x, max_runs_to_show=100, **drawn, **averaged, **options)


def by_length(by: str) -> list[Any]:
    """Scores against length, and how much of what was trained on they bridge."""
    return [
        line("exact match by length", "length", "eval/exact_match", by, log_x=True, range_y=ACCURACY),
        line("token accuracy by length", "length", "eval/token_accuracy", by, log_x=True, range_y=ACCURACY),
        line("perplexity by length", "length", "eval/perplexity", by, log_x=True, log_y=True),
        wr.BarPlot(
            title="effective length, in training lengths",
            metrics=[wr.SummaryMetric("effective_ratio")],
            groupby=wr.Config(by),
            groupby_aggfunc="mean",
            groupby_rangefunc="stderr",
            max_bars_to_show=100,
        ),
    ]


def in_detail(by: str) -> list[Any]:
    """Scores within a sequence: a curve for each length, of which a metric's name ends in the length."""
    return [
        line("perplexity by position", "position", None, by, metric_regex="positions/perplexity_L.*", log_y=True),
        line("accuracy by position", "position", None, by, metric_regex="positions/accuracy_L.*", range_y=ACCURACY),
        line("accuracy by slice", "value", None, by, metric_regex="slices/.*_accuracy_L.*", range_y=ACCURACY),
    ]


def training(by: str) -> list[Any]:
    """What training said of itself."""
    return [
        line("training loss", "step", "train/loss", by, log_y=True),
        line("learning rate", "step", "train/lr", by),
        line("exact match of early stopping's checks", "step", "validation/exact_match", by, range_y=ACCURACY),
        line("tokens per second", "step", "train/tokens_per_second", by),
    ]


def workspace(entity: str, project: str, task: str | None = None) -> ws.Workspace:
    """Without a network; `save` of what it returns needs one. task: of this one alone."""
    overview = [
        wr.MarkdownPanel(markdown=NOTE),
        *(by_length(ENCODING)[index] for index in (0, 3)),
        wr.ScalarChart(title="effective length, all runs", metric=wr.SummaryMetric("effective_length")),
    ]
    sections = {
        "Overview": overview,
        "By encoding": by_length(ENCODING),
        "By task": by_length(TASK),
        "Within a sequence": in_detail(ENCODING),
        "Training": training(ENCODING),
        "Each run": [wr.MediaBrowser(title="scores of each run", media_keys=["figures/scores"], num_columns=2)],
    }
    return ws.Workspace(
        name=f"Encodings on {task}" if task else "Encodings",
        entity=entity,
        project=project,
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
        settings=ws.WorkspaceSettings(max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=ws.And(ws.Config(TASK) == task) if task else "",
            groupby=[ws.Config(ENCODING)],
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entity", required=True)
    parser.add_argument("--project", default="rpe_bench")
    parser.add_argument("--task", help="an id; all tasks of the project by default")
    options = parser.parse_args()
    print(workspace(options.entity, options.project, options.task).save().url)


if __name__ == "__main__":
    main()
