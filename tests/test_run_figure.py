"""The picture of one run: that it shows the run's numbers."""

from pathlib import Path

import PIL.Image
import pytest
from wandb_runs import rows

from rpe_bench.run_figure import run_figure


def test_its_lines_are_the_rows_of_the_tables() -> None:
    tables = rows()
    by_length, by_position = run_figure("a-run", tables, train_length=16).axes
    drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in by_length.lines}
    for table, columns in (("eval", ("token_accuracy", "exact_match")), ("baselines", ("chance", "majority"))):
        for column in columns:
            expected = [row["length"] for row in tables[table]], [row[column] for row in tables[table]]
            assert drawn[column.replace("_", " ")] == expected
    assert set(drawn["training length"][0]) == {16}
    curves = [(list(line.get_xdata()), list(line.get_ydata())) for line in by_position.lines]
    expected_curves = []
    for table, length in (("positions", 8), ("positions", 16), ("floor_positions", 8)):
        of_length = [row for row in tables[table] if row["length"] == length]
        expected_curves.append(([row["position"] for row in of_length], [row["perplexity"] for row in of_length]))
    assert curves == expected_curves


@pytest.mark.parametrize("absent", ["positions", "floor_positions", "baselines"])
def test_a_table_may_be_absent(absent: str, tmp_path: Path) -> None:
    tables = {name: of_table for name, of_table in rows().items() if name != absent}
    run_figure("a-run", tables, train_length=16).savefig(tmp_path / "scores.png")
    with PIL.Image.open(tmp_path / "scores.png") as picture:
        assert picture.size == (1012, 390)
