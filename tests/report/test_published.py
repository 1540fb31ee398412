"""What is kept of the results of a published experiment: small, the same again, and enough to make its report of."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rpe_bench.report.build import not_following, report_on, write_report
from rpe_bench.report.load import ReportError, load_results
from rpe_bench.report.published import GROUPS, has_tables, published, read_tables, write_tables

RESULTS = Path(__file__).parents[2] / "results"
PUBLISHED = sorted(path.name for path in RESULTS.iterdir() if has_tables(path))


@pytest.fixture
def results_dir(fabricate):
    for encoding in ("alibi", "null"):
        for seed in range(2):
            run = fabricate("copy", encoding, seed)
    fabricate("retrieval", "alibi", 0, training_set=True)
    fabricate("copy", "alibi", 7, status="failed")
    return run.parents[1]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_figure_and_table_follows_from_the_tracked_tables(name):
    assert not_following(RESULTS / name) == []


def test_some_experiment_is_published():
    assert {"adjacency", "bytes", "extrapolation"} <= set(PUBLISHED)


def test_tables_are_read_as_they_were_written(results_dir, tmp_path):
    kept = published(load_results(results_dir))
    (tmp_path / "one/tables").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    first = write_tables(kept, tmp_path / "one/tables")
    again = read_tables(tmp_path / "one")
    second = write_tables(published(again), tmp_path / "two")
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    assert again.encoding_labels == ["alibi", "null"]
    for name in ("evaluations", "positions", "training"):
        columns = list(getattr(again, name))
        mine = getattr(kept, name).sort_values(["task_label", "encoding_label", "seed"], kind="stable")
        pd.testing.assert_frame_equal(mine[columns].reset_index(drop=True), getattr(again, name), check_dtype=False)


def test_a_report_of_tables_alone_is_that_of_the_runs(results_dir, tmp_path):
    report = write_report(results_dir, tmp_path / "out")
    before = {path: path.read_bytes() for path in (*report.figures, *report.tables)}
    again = write_report(tmp_path / "out", tmp_path / "out")
    assert (again.text, again.figures, again.tables) == (report.text, report.figures, report.tables)
    assert {path: path.read_bytes() for path in before} == before
    assert report.dashboard is not None and again.dashboard is None  # which needs the runs


def test_what_no_longer_follows_is_named(results_dir, tmp_path):
    out = tmp_path / "out"
    report_on(load_results(results_dir), out)
    assert not_following(out) == []
    path = out / "tables/evaluations.csv"
    text = path.read_text()
    rows = pd.read_csv(path, keep_default_na=False)
    at = rows.query("task_label == 'copy' and length == 32").index[0]
    rows.loc[at, "token_accuracy"] += 0.01
    rows.to_csv(path, index=False)
    amiss = " ".join(not_following(out))
    assert all(f"copy-extrapolation.{kind}: drawn from other data" in amiss for kind in ("pdf", "svg", "png"))
    assert "tables/accuracy.csv" in amiss and "tables/accuracy.md" in amiss and "tables/accuracy.tex" in amiss
    assert "retrieval-extrapolation" not in amiss
    path.write_text(text)
    (out / "figures/copy-learning.svg").unlink()
    shutil.copy(out / "figures/copy-learning.png", out / "figures/copy-extrapolation.png")
    amiss = not_following(out)
    assert len(amiss) == 2 and amiss[0].endswith("copy-extrapolation.png: drawn from other data")
    assert amiss[1].endswith("copy-learning.svg: missing")


def test_rows_of_a_run_that_is_not_listed_are_refused(results_dir, tmp_path):
    report_on(load_results(results_dir), tmp_path)
    path = tmp_path / "tables/runs.csv"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "copy-null-quick-s1" not in line))
    with pytest.raises(ReportError, match=r"evaluations.csv: .*encoding_label null, seed 1 is no finished run of runs"):
        read_tables(tmp_path)
    (tmp_path / "tables/positions.csv").write_text("task_label,seed\n")
    path.unlink()
    assert not has_tables(tmp_path)


def test_long_sequences_are_kept_in_groups_that_begin_where_training_ended(fabricate):
    run = fabricate("copy", "rope", config={"evaluation.lengths": [16, 300]})
    raw = load_results(run.parents[1])
    kept = published(raw)
    short, long = (kept.positions.query("length == @length") for length in (16, 300))
    assert (short["to"] - short["position"] == 1).all() and len(short) == 16
    assert GROUPS / 2 < len(long) <= GROUPS
    assert (long["position"].iloc[1:].to_numpy() == long["to"].iloc[:-1].to_numpy()).all()
    assert (long["position"].iloc[0], long["to"].iloc[-1]) == (299, 599) and long["tokens"].sum() == 300 * 640
    trained = int(long["train_tokens"].iloc[0])
    assert ((long["position"].iloc[1:] - trained) % 5 == 0).all()
    group = long.iloc[3]
    part = raw.positions.query("length == 300 and @group.position <= position < @group.to")
    assert group["loss"] == float(f"{np.average(part['loss'], weights=part['tokens']):.6g}")
    again = published(kept)
    pd.testing.assert_frame_equal(again.positions, kept.positions)


def test_the_script_makes_them_again_and_checks_them(results_dir, tmp_path):
    report_on(load_results(results_dir), tmp_path)
    script = [sys.executable, str(RESULTS.parent / "scripts/figures.py"), "--check", str(tmp_path)]
    assert subprocess.run(script, capture_output=True, text=True).returncode == 0
    (tmp_path / "tables/accuracy.md").write_text("other")
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.endswith("tables/accuracy.md: missing, or of other data\n")
