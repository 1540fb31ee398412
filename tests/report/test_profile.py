"""Tables and figures of costs, from costs that are known."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rpe_bench import catalogue
from rpe_bench.profiling.cells import Subject
from rpe_bench.report.figures import looks_of
from rpe_bench.report.profile import Profile

LENGTHS = (64, 128, 256, 512)


def measured(
    names: list[str], kinds: tuple[str, ...] = ("training", "evaluation")
) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    cells, times = [], []
    for kind in kinds:
        for length in LENGTHS:
            for place, name in enumerate(names):
                about = {"kind": kind, "length": length, "encoding": name}
                where = Subject(catalogue.read("encoding", name)).place
                more = {"place": where, "batch": 4, "peak_bytes": length * 2**14 * (2 + place), "seconds": 1.0}
                cells.append({**about, **more, "parameters": 100, "encoding_parameters": 12345 * place, "problem": ""})
                for turn in range(5):
                    seconds = 1e-5 * length**1.5 * (1 + place / 10) * (1 + 0.01 * rng.random())
                    times.append({**about, "round": turn, "seconds": seconds})
    return pd.DataFrame(cells), pd.DataFrame(times)


def test_a_table_has_a_row_an_encoding_and_a_column_a_length() -> None:
    profile = Profile(*measured(["nope", "rope", "t5"]), "here")
    tables = profile.tables()
    assert len(tables) == 4
    time, memory = list(tables.values())[:2]
    assert list(time.columns) == ["place", "64", "128", "256", "512", "grows as", "what it adds"]
    assert list(time.index) == ["nope", "rope", "t5"]
    assert time.loc["nope", "64"].endswith(" ms") and time.loc["rope", "64"].startswith("1.10 ±0.0")
    assert time.loc["rope", "grows as"] == "N^1.50"
    assert memory.loc["nope", "512"] == "16.0" and memory.loc["t5", "512"] == "+16.0"
    assert memory.loc["t5", "what it adds"] == "N^1.00" and memory.loc["rope", "learns"] == "12,345"
    assert profile.markdown().count("\n## ") == 5 and "| nope" in profile.markdown()


def test_files_are_the_same_when_made_again(tmp_path: Path) -> None:
    names = ["nope", "rope", "t5"]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        cells, times = measured(names, ("training",))
        cells.to_csv(tmp_path / folder / "cells.csv", index=False)
        times.to_csv(tmp_path / folder / "times.csv", index=False)
        Profile.read(tmp_path / folder, "here").write(tmp_path / folder)
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in ("one", "two"))
    assert one == two and len(one) == 2 + 4 + 6


def test_lines_of_a_figure_are_the_numbers_of_the_table() -> None:
    profile = Profile(*measured(["nope", "rope", "t5"]), "here")
    figure = profile.figure("training", "seconds", looks_of(["nope", "rope", "t5"]))
    [panel] = figure.axes
    assert panel.get_xscale() == panel.get_yscale() == "log"
    costs = profile.costs[(profile.costs["kind"] == "training") & (profile.costs["encoding"] == "t5")]
    drawn = [line for line in panel.lines if list(line.get_ydata()) == costs["seconds"].tolist()]
    assert len(drawn) == 1 and list(drawn[0].get_xdata()) == list(LENGTHS)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["nope (1.50)", "rope (1.50)", "t5 (1.50)"]


def test_many_encodings_have_a_panel_a_family() -> None:
    names = catalogue.encodings()
    profile = Profile(*measured(["nope", *(name for name in names if name != "nope")]), "here")
    figure = profile.figure("evaluation", "mib", looks_of(names))
    assert len(figure.axes) > 3
    named = [text.get_text().partition(" (")[0] for legend in figure.legends for text in legend.get_texts()]
    assert sorted(named) == sorted(names)


@pytest.mark.parametrize("gone", ["t5", "nope"])
def test_what_was_left_out_is_said(gone: str) -> None:
    cells, times = measured(["nope", "rope", "t5"], ("training",))
    missing = (cells["encoding"] == gone) & (cells["length"] >= 256)
    cells.loc[missing, ["peak_bytes", "seconds", "parameters", "encoding_parameters"]] = np.nan
    cells.loc[missing, "problem"] = "takes more than 10 s"
    left = times[~(times["length"].ge(256) & (times["encoding"].eq(gone) | (gone == "nope")))]
    profile = Profile(cells, left, "here")
    assert profile.left_out == [f"{gone}, training at 256, 512: takes more than 10 s"]
    assert f"left out: {gone}, training at 256, 512: takes more than 10 s" in profile.text()
    assert profile.tables()["training step: time, as a ratio to nope"].loc[gone, "512"] == "-"
    assert profile.figure("training", "seconds", looks_of(["nope", "rope", "t5"])).axes
