"""The whole report: its files, its text, and its refusals."""

import errno
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest

from rpe_bench import ledger
from rpe_bench.report import ReportError, build, load_results, write_report
from rpe_bench.report.build import file_stems
from rpe_bench.report.tables import accuracy_table, notes, text_tables, wide_tables
from rpe_bench.report.typeset import accuracy_markdown


@pytest.fixture
def results_dir(fabricate):
    for encoding in ("alibi", "rope"):
        for seed in range(2):
            run = fabricate("copy", encoding, seed)
    fabricate("adjacency_tutorial", "rope", 0, training_set=True)
    fabricate("copy", "rope", 7, status="failed")
    fabricate("copy", "rope", 8, status="running")
    return run.parents[1]


def test_report_writes_its_files_and_the_same_again(results_dir, tmp_path):
    report = write_report(results_dir, tmp_path / "a b")
    names = [path.relative_to(tmp_path / "a b").as_posix() for path in report.paths]
    assert names == [
        *(f"figures/overview.{kind}" for kind in ("pdf", "svg", "png")),
        *(
            f"figures/{task}-{figure}.{kind}"
            for task in ("adjacency_tutorial", "copy")
            for figure in ("extrapolation", "perplexity", "learning")
            for kind in ("pdf", "svg", "png")
        ),
        *(
            f"tables/{name}.csv"
            for name in (
                "runs",
                "evaluations",
                "training_set",
                "positions",
                "training",
                "baselines",
                "accuracy",
                "effective_length",
                "leaderboard",
                "position_bins",
            )
        ),
        *(f"tables/{name}" for name in ("accuracy.md", "accuracy.tex", "leaderboard.md", "leaderboard.tex")),
        "dashboard.html",
    ]
    first = [path.read_bytes() for path in report.paths]
    assert json.loads((tmp_path / "a b/report.json").read_text()) == names
    assert report.text == text_tables(load_results(results_dir))
    accuracy = pd.read_csv(tmp_path / "a b/tables/accuracy.csv")
    pd.testing.assert_frame_equal(accuracy, accuracy_table(load_results(results_dir)), check_dtype=False)
    again = write_report(results_dir, tmp_path / "a b")
    assert [path.read_bytes() for path in again.paths] == first
    assert again == report


def test_figures_are_the_same_when_processes_share_them(fabricate, tmp_path, monkeypatch):
    results_dir = fabricate().parents[1]
    alone = write_report(results_dir, tmp_path / "alone")
    monkeypatch.setattr(build, "available_cores", lambda: 2)
    monkeypatch.setattr(build, "_WORTH", 1)
    draw = build._draw
    drawn = []
    monkeypatch.setattr(build, "_draw", lambda *given: drawn.append(given) or draw(*given))
    shared = write_report(results_dir, tmp_path / "shared")
    assert drawn == []  # by this process
    for one, other in zip(alone.figures, shared.figures, strict=True):
        assert one.name == other.name and one.read_bytes() == other.read_bytes()


def test_what_goes_wrong_in_a_process_that_draws_is_raised(fabricate, tmp_path, monkeypatch):
    results_dir = fabricate().parents[1]
    monkeypatch.setattr(build, "available_cores", lambda: 2)
    monkeypatch.setattr(build, "_WORTH", 1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "copy-learning.pdf")

    monkeypatch.setattr(build, "save_figure", full)
    with pytest.raises(OSError, match="No space left on device: 'copy-learning.pdf'"):
        write_report(results_dir, tmp_path)
    monkeypatch.setattr(build, "save_figure", lambda *_: os._exit(9))
    with pytest.raises(RuntimeError, match="drawing figures ended with status 9"):
        write_report(results_dir, tmp_path)


def test_what_an_earlier_report_wrote_and_nothing_else_goes(fabricate):
    run = fabricate("copy", "rope")
    out = run.parents[1]  # beside the runs
    first = write_report(out, out)
    mine = [out / name for name in ("figures/copy-mine.png", "tables/copy.csv", "figures/copy-extrapolation.png.txt")]
    for path in mine:
        path.write_text("mine")
    fabricate("copy", "rope", config={"model.causal": False})
    second = write_report(out, out)
    stale = set(first.figures) - set(second.figures)
    assert len(stale) == 9 and len(second.figures) == 3 + 18
    left = {path for folder in ("figures", "tables") for path in (out / folder).iterdir()}
    assert left == {*second.figures, *second.tables, *mine}
    assert len(list((out / "runs").iterdir())) == 2
    for path in second.figures[:2]:
        path.unlink()  # removed by hand: no reason to stumble
    shutil.rmtree(run)
    write_report(out, out)
    assert all(path.exists() for path in mine)


@pytest.mark.parametrize("listed", ["{", "{}", "[1]", '["../precious.txt"]', '["figures/../../precious.txt"]'])
def test_a_list_that_no_report_wrote_is_refused(fabricate, tmp_path, listed):
    (tmp_path / "precious.txt").write_text("mine")
    run = fabricate()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/report.json").write_text(listed)
    with pytest.raises(ReportError, match="report.json is not the list"):
        write_report(run.parents[1], tmp_path / "out")
    assert (tmp_path / "precious.txt").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.json"]


def test_tables_name_no_folder_of_this_machine(fabricate, tmp_path):
    fabricate("copy", "alibi")
    run = fabricate("copy", "rope")
    (run / "eval.csv").unlink()
    failed = fabricate("copy", "t5", status="failed")
    record = json.loads((failed / "run.json").read_text())
    record["exception"] |= {"type": "OSError", "message": f"[Errno 28] No space left on device: '{failed}/eval.csv'"}
    (failed / "run.json").write_text(json.dumps(record))
    write_report(run.parents[1], tmp_path / "out")
    reasons = pd.read_csv(tmp_path / "out/tables/runs.csv").set_index("status")["reason"]
    assert reasons["unreadable"] == "eval.csv: No such file or directory"
    assert reasons["failed"] == "OSError: [Errno 28] No space left on device: 'eval.csv'"
    for path in (tmp_path / "out/tables").iterdir():
        assert str(tmp_path) not in path.read_text()


def test_every_seed_is_written_as_its_run_recorded_it(results_dir, tmp_path):
    write_report(results_dir, tmp_path)
    rows = pd.read_csv(tmp_path / "tables/evaluations.csv")
    for run in load_results(results_dir).runs.query("status == 'finished'").itertuples():
        recorded = pd.read_csv(results_dir / "runs" / run.directory / "eval.csv")
        chosen = (rows["task_label"] == run.task_label) & (rows["encoding_label"] == run.encoding_label)
        written = rows[chosen & (rows["seed"] == run.seed)].reset_index(drop=True)
        pd.testing.assert_frame_equal(written[list(recorded)], recorded)


def test_text_ends_with_what_was_left_out(results_dir):
    results = load_results(results_dir)
    text = text_tables(results)
    assert "copy: token accuracy by length / training length (trained up to 16, mean of 2 seeds)" in text
    assert "(trained up to 8, 1 seed)" in text
    assert text.isascii()
    lines = text.splitlines()
    assert lines[-3] == "7 run directories: 5 finished, 1 failed, 1 unfinished"
    assert lines[-2].startswith("failed: copy-rope-quick-s7-") and lines[-2].endswith("(ValueError: loss is nan)")
    assert lines[-1].startswith("unfinished: copy-rope-quick-s8-")
    markdown = accuracy_markdown(results)
    assert f"- {lines[-2]}" in markdown and "holds up to" in markdown


def test_what_is_several_configurations_is_said_to_be_kept_apart(fabricate):
    for base in (10_000.0, 500_000.0):
        run = fabricate("copy", "rope", config={"encoding.base": base})
    fabricate("copy", "alibi", config={"model.causal": False})
    assert notes(load_results(run.parents[1]))[1:] == [
        "copy: 2 configurations, kept apart: copy (causal=False), copy (causal=True)",
        "rope: 2 configurations, kept apart: rope (base=10000), rope (base=500000)",
    ]


def test_wide_table_agrees_with_the_runs(results_dir):
    results = load_results(results_dir)
    table = wide_tables(results)["copy"]
    assert list(table.columns) == ["0.5x", "1x", "1.25x", "1.5x", "2x", "4x", "8x", "seeds"]
    assert list(table.index) == ["alibi", "rope", "chance", "majority"]
    rows = results.evaluations.query("task == 'copy' and encoding == 'rope' and length == 32")
    assert table.loc["rope", "2x"] == f"{rows['token_accuracy'].mean():.3f}"
    assert table["seeds"].tolist() == ["2", "2", "", ""]
    assert table.loc["majority", "8x"] == f"{1 / 16 + 0.02:.3f}"


def test_the_training_set_has_a_column_of_its_own(results_dir):
    table = wide_tables(load_results(results_dir))["adjacency_tutorial"]
    assert table.loc["rope", "training set"] == "1.000"
    assert table.loc["rope", "1x"] != "1.000"
    assert table.loc["chance", "training set"] == ""


def test_tidy_table_has_intervals_where_there_are_several_seeds(results_dir):
    table = accuracy_table(load_results(results_dir))
    several, single = table[table["n"] == 2], table[table["n"] == 1]
    spread = several["token_accuracy_max"] - several["token_accuracy_min"]
    inside = several["token_accuracy_low"].gt(0) & several["token_accuracy_high"].lt(1)
    # Student's t of two: 12.7 standard errors, each half of what lies between them.
    half = (several["token_accuracy_high"] - several["token_accuracy_low"]) / 2
    np.testing.assert_allclose(half[inside], 12.7062 * spread[inside] / 2, rtol=1e-4)
    assert inside.any() and several["token_accuracy_high"].max() == 1  # where accuracies end, intervals do
    assert single["token_accuracy_low"].isna().all()
    assert table["chance"].notna().all()


def test_runs_that_differ_in_their_seed_are_one_line(fabricate):
    run = fabricate("copy", "rope", 0)
    asked = [
        f"copy-{encoding}-quick-s{seed}-0000000{seed % 8}" for encoding in ("rope", "t5") for seed in range(1, 100)
    ]
    asked += ["copy-rope-quick-s1-1234abcd", "copy-alibi-quick-s5-00000000"]
    asked.remove("copy-t5-quick-s40-00000000")
    ledger.append(run.parents[1], "sweep", runs=asked)
    why = "(asked for by the last sweep, and without a directory)"
    assert notes(load_results(run.parents[1])) == [
        "1 run directory: 1 finished; 199 more are missing",
        f"missing: copy-alibi-quick-s5-00000000 {why}",
        f"missing: 100 runs copy-rope-quick, seeds 1-99 {why}",
        f"missing: 98 runs copy-t5-quick, seeds 1-39, 41-99 {why}",
    ]


def test_what_differs_in_its_reason_is_not_one_line(fabricate):
    for seed in range(4):
        run = fabricate("copy", "rope", seed, status="failed")
        record = (run / "run.json").read_text()
        (run / "run.json").write_text(record.replace("loss is nan", f"loss is nan at step {seed // 2}"))
    (run.parent / "notes").mkdir()
    (run.parent / "more notes").mkdir()
    assert notes(load_results(run.parents[1]))[1:] == [
        "failed: 2 runs copy-rope-quick, seeds 0-1 (ValueError: loss is nan at step 0)",
        "failed: 2 runs copy-rope-quick, seeds 2-3 (ValueError: loss is nan at step 1)",
        "foreign: more notes (no run.json)",
        "foreign: notes (no run.json)",
    ]


def test_long_lists_of_failures_are_cut_in_the_text_alone(fabricate):
    for number in range(25):
        run = fabricate("copy", f"encoding_{number:02}", number % 2, status="failed")
        fabricate("copy", f"encoding_{number:02}", 2, status="failed")
    results = load_results(run.parents[1])
    lines = notes(results)
    assert lines[0] == "50 run directories: 50 failed"
    assert len(lines) == 1 + 10 + 1 and lines[-1] == "failed: and 30 more, in tables/runs.csv"
    assert len(results.runs) == 50


def test_nothing_to_report_is_one_line_that_names_the_directory(fabricate, tmp_path):
    with pytest.raises(ReportError, match="^no runs in .*results: there is no directory .*runs$"):
        write_report(tmp_path / "results", tmp_path / "out")
    run = fabricate(status="failed")
    with pytest.raises(ReportError) as caught:
        write_report(run.parents[1], tmp_path / "out")
    assert str(caught.value) == (f"no finished run in {run.parents[1]} to report on (1 run directory: 1 failed)")
    assert not (tmp_path / "out").exists()


def test_file_names_are_plain_and_different():
    stems = file_stems(["copy", "copy (causal=False)", "copy [causal=False]", "x" * 300, "x" * 301])
    assert list(stems.values())[:3] == ["copy", "copy_causal=False", "copy_causal=False-2"]
    assert len(set(stems.values())) == 5 and max(map(len, stems.values())) < 100
    # Of long ones too where each is asked for alone, as for a comparison by one metric and then by another.
    assert set(file_stems(["x" * 100 + "-loss"]).values()).isdisjoint(file_stems(["x" * 100 + "-exact"]).values())
