"""Tables for a page: what is marked, and that LaTeX can read them."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from rpe_bench.report.coverage import coverage_range
from rpe_bench.report.load import load_results
from rpe_bench.report.tables import leaderboard, text_tables
from rpe_bench.report.typeset import (
    AS_GOOD,
    BEST,
    NOT_TOLD,
    Cell,
    latex,
    leaderboard_page,
    markdown,
    rendered,
    task_pages,
)


def pages(fabricate, seeds):
    for encoding in ("alibi", "learned", "kerple"):
        for seed in range(seeds):
            run = fabricate("copy", encoding, seed)
    for kerple in run.parent.glob("*kerple*"):  # as good as alibi, now better and now worse
        number = int(kerple.name.split("-s")[1].split("-")[0])
        (alibi,) = run.parent.glob(f"*alibi-quick-s{number}-*")
        rows = pd.read_csv(alibi / "eval.csv")
        rows["token_accuracy"] -= 1e-3 * (1 + number) * (-1) ** number
        rows.to_csv(kerple / "eval.csv", index=False)
    return task_pages(load_results(run.parents[1]))


def test_the_best_and_those_as_good_are_marked(fabricate):
    (page,) = pages(fabricate, 8)
    rows = dict(page.rows)
    at = page.columns.index("4×")
    marks = {label: rows[label][at].mark for label in rows}
    assert sorted(marks.values()) == ["", AS_GOOD, BEST] and marks["learned"] == ""
    text = markdown([page], "Title", [])
    assert "In bold and in italics: the best mean" in text and re.search(r"\*\*\d\.\d{3}\*\* \(", text)
    assert re.search(r"\\underline\{\d\.\d{3}\}", latex([page]))


def test_with_few_seeds_the_best_alone_is_marked_and_it_is_said_why(fabricate):
    (page,) = pages(fabricate, 3)
    assert {cell.mark for _, cells in page.rows for cell in cells if isinstance(cell, Cell)} == {"", BEST}
    assert "no difference could be significant" in page.caption
    assert f"with the 95 % interval of the mean; {coverage_range('mean', 3)}." in page.caption


def test_what_has_too_few_seeds_among_others_is_not_taken_for_worse(fabricate):
    for seed in range(2):
        fabricate("copy", "nope", seed)
    (page,) = pages(fabricate, 8)
    at = page.columns.index("4×")
    marks = {label: cells[at].mark for label, cells in page.rows}
    assert marks["nope"] == marks["learned"] == ""  # the one cannot be told, the other is worse
    assert page.caption.endswith(f" nope: {NOT_TOLD}.")


def test_what_is_of_a_single_seed_is_said_to_have_no_interval(fabricate):
    run = fabricate("copy", "rope", 0)
    assert (
        task_pages(load_results(run.parents[1]))[0].caption == "Token accuracy, trained up to 16, 1 seed, no interval."
    )
    fabricate("copy", "alibi", 0), fabricate("copy", "alibi", 1)
    [page] = task_pages(load_results(run.parents[1]))
    said = f"with the 95 % interval of the mean (none of a single seed); {coverage_range('mean', 2)}."
    assert said in page.caption


def test_latex_is_balanced_and_escaped(fabricate):
    fabricate("adjacency_tutorial", "relative_bias", config={"encoding.base": "50%"})
    run = fabricate("adjacency_tutorial", "relative_bias", training_set=True)
    text = latex(task_pages(load_results(run.parents[1])))
    assert r"relative\_bias (base=50\%)" in text and r"adjacency\_tutorial" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for rule in ("toprule", "bottomrule"):
        assert text.count(rf"\{rule}") == 1
    body = [line for line in text.splitlines() if line.endswith(r" \\")]
    columns = len(re.search(r"begin\{tabular\}\{(l[c]+)\}", text).group(1))
    assert len(body) == 5 and all(len(re.findall(r"(?<!\\)&", line)) == columns - 1 for line in body)
    assert not re.search(r"(?<!\\)[_%#]", text.partition("\n")[2])


def test_the_leaderboard_weighs_tasks_alike_and_leaves_out_what_none_holds(fabricate):
    for seed in range(2):
        for encoding in ("alibi", "rope"):
            for task in ("copy", "retrieval"):
                run = fabricate(task, encoding, seed)
            lost = fabricate("adjacency_tutorial", encoding, seed)
            rows = pd.read_csv(lost / "eval.csv")
            rows.assign(exact_match=0.0).to_csv(lost / "eval.csv", index=False)
    results = load_results(run.parents[1])
    table = leaderboard(results)
    assert table["encoding_label"].tolist() == ["alibi", "rope"]
    assert table["tasks"].tolist() == [2, 2] and table["runs"].tolist() == [4, 4]
    rows = results.evaluations.query("encoding == 'alibi' and ratio >= 1 and task != 'adjacency_tutorial'")
    areas = []
    for _, run_rows in rows.groupby(["task", "seed"]):
        logs, values = np.log(run_rows["length"].to_numpy()), run_rows["exact_match"].to_numpy()
        areas.append(np.trapezoid(values, logs) / (logs[-1] - logs[0]))
    assert np.isclose(table["area_mean"][0], np.mean(areas))
    assert (table["area_low"] < table["area_mean"]).all() and (table["area_mean"] < table["area_high"]).all()


def test_the_leaderboard_marks_the_best_and_those_as_good(fabricate):
    pages(fabricate, 8)
    fabricate("copy", "nope")
    run = fabricate("copy", "rope", config={"encoding.base": 7.0})
    for seed in range(1, 8):
        fabricate("copy", "rope", seed, config={"encoding.base": 7.0})
    page = leaderboard_page(load_results(run.parents[1]))
    marks = {label: cells[0].mark for label, cells in page.rows}
    top = page.rows[0][0]
    assert marks[top] == BEST and marks["learned"] == marks["nope"] == "" and marks["rope"] == ""
    assert {marks["alibi"], marks["kerple"]} <= {BEST, AS_GOOD}
    assert "Marked: the best mean" in page.caption and page.caption.endswith(f" nope: {NOT_TOLD}.")
    text = rendered(load_results(run.parents[1]))
    assert "In bold and in italics: the best" in text["leaderboard.md"] and r"\textbf{" in text["leaderboard.tex"]


def test_a_task_without_a_length_beyond_is_in_no_number_of_the_leaderboard(fabricate):
    for encoding in ("alibi", "rope"):
        run = fabricate("retrieval", encoding, config={"evaluation.lengths": [24, 48]})
    results = load_results(run.parents[1])
    assert leaderboard(results).empty and leaderboard_page(results).rows == []
    for encoding in ("alibi", "rope"):
        fabricate("copy", encoding)
    results = load_results(run.parents[1])
    table = leaderboard(results)
    assert table["tasks"].tolist() == table["runs"].tolist() == [1, 1]
    assert table["area_mean"].notna().all() and "nan" not in rendered(results)["leaderboard.md"]


def test_a_wide_table_keeps_the_powers_of_two(fabricate):
    lengths = [*range(8, 33), 64]
    run = fabricate("copy", "rope", config={"evaluation.lengths": lengths})
    text = text_tables(load_results(run.parents[1]))
    assert max(map(len, text.splitlines()[1:])) <= 100
    assert text.splitlines()[1].split() == ["0.5x", "1x", "2x", "4x", "seeds"]
    assert "other lengths: tables/accuracy.md" in text


@pytest.mark.parametrize("encodings", [3, 30])
def test_latex_can_be_typeset(fabricate, tmp_path, encodings):
    """Every kind of table, also with as many rows as go on no page, with names and lengths too wide for one."""
    if shutil.which("pdflatex") is None or not found_by_latex("booktabs.sty"):
        pytest.skip("no LaTeX here with booktabs (Debian: apt-get install texlive-latex-recommended)")
    about = {"evaluation.lengths": [8, 16, 20, 24, 32, 40, 48, 64, 80, 96, 112, 128]} if encodings > 3 else {}
    for number in range(encodings):
        for seed in range(2 if number % 2 else 1):
            name = ["rope", "relative_bias", "50%_&_{more}~^#$"][number] if number < 3 else f"an_encoding_{number}"
            run = fabricate("copy", name, seed, config=about)
    fabricate("copy", "rope", 0, config={**about, "positions": {"name": "randomised", "range": 512}})
    fabricate("adjacency_tutorial", "rope", 0, training_set=True)
    fabricate("adjacency_tutorial", "alibi", 0, training_set=True)
    tables = {name: text for name, text in rendered(load_results(run.parents[1])).items() if name.endswith(".tex")}
    assert len(tables) == 2
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    heads = [r"\documentclass[twocolumn]{article}", r"\usepackage{booktabs,graphicx}", r"\begin{document}"]
    inputs = [rf"\input{{{name}}}" for name in tables]
    (tmp_path / "paper.tex").write_text("\n".join([*heads, *inputs, r"\end{document}", ""]))
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=tmp_path, capture_output=True
    )
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, log
    assert not re.search(r"^(!|Overfull|LaTeX Warning|Missing character).*", log, re.MULTILINE), log


def found_by_latex(file):
    return subprocess.run(["kpsewhich", file], capture_output=True).returncode == 0
