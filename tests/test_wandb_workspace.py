"""The comparison workspace, as code: its model, which takes no network."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from wandb_runs import rows

from rpe_bench.wandb_mirror import AXES, points, reach

pytest.importorskip("wandb_workspaces", reason="needs the extra `workspace`")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[1] / "scripts" / "wandb_workspace.py"
    spec = importlib.util.spec_from_file_location("wandb_workspace", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_drawn_is_what_the_mirror_logs_against_its_axis(script: ModuleType) -> None:
    logged = {table: set().union(*points(table, of_table)) - {AXES[table]} for table, of_table in rows().items()}
    summary = reach(rows()["eval"], 8)
    drawn = 0
    for section in script.workspace("me", "mine").sections:
        for panel in section.panels:
            kind = type(panel).__name__
            if kind == "LinePlot":
                names = [metric.name for metric in panel.y]
                table = (names[0] if names else panel.metric_regex).split("/")[0]
                assert panel.x == AXES[table]
                assert all(name in logged[table] for name in names)
                assert names or any(re.fullmatch(panel.metric_regex, name) for name in logged[table])
                assert panel.groupby.name in ("encoding.name", "task.name")
                drawn += 1
            elif kind in ("BarPlot", "ScalarChart"):
                metrics = panel.metrics if kind == "BarPlot" else [panel.metric]
                assert all(metric.name in summary for metric in metrics)
    assert drawn == 14


def test_its_sections_and_what_they_are_grouped_by(script: ModuleType) -> None:
    built = script.workspace("me", "mine")
    assert (built.entity, built.project, built.name) == ("me", "mine", "Encodings")
    names = [section.name for section in built.sections]
    assert names == ["Overview", "By encoding", "By task", "Within a sequence", "Training", "Each run"]
    grouped = [{panel.groupby.name for panel in section.panels} for section in built.sections[1:3]]
    assert grouped == [{"encoding.name"}, {"task.name"}]


def test_one_task_alone_is_a_filter(script: ModuleType) -> None:
    def spec(task: str | None) -> str:
        return json.dumps(script.workspace("me", "mine", task)._to_model().model_dump(mode="json"))

    assert '"copy"' in spec("copy") and '"copy"' not in spec(None)
