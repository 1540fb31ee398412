"""What load_results makes of run directories of every kind."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from rpe_bench import ledger
from rpe_bench.config import Recipe
from rpe_bench.report.dashboard import dashboard_data
from rpe_bench.report.labels import flatten, variants
from rpe_bench.report.load import KEYS, ReportError, _config, in_order, load_examples, load_results
from rpe_bench.report.tables import notes
from rpe_bench.report.typeset import rendered
from rpe_bench.schema import TABLES


def by_status(results):
    return results.runs.groupby("status")["directory"].apply(list).to_dict()


def test_every_row_carries_its_run(fabricate):
    run = fabricate("retrieval", "alibi", seed=3)
    results = load_results(run.parents[1])
    for frame in (results.evaluations, results.positions, results.training, results.slices, results.baselines):
        assert len(frame) and list(frame.columns[: len(KEYS)]) == list(KEYS)
        first = frame.iloc[0]
        assert (first["run_id"], first["task"], first["encoding"], first["seed"]) == (run.name, "retrieval", "alibi", 3)
        assert (first["recipe"], first["model"], first["train_length"], first["train_tokens"]) == (
            "quick",
            "tiny",
            48,
            49,
        )
    assert results.evaluations["ratio"].tolist() == [0.5, 1, 1.25, 1.5, 2, 4, 8]
    assert results.runs["parameters"].tolist() == [100_000]
    pd.testing.assert_frame_equal(
        results.evaluations[list(TABLES["eval"])], pd.read_csv(run / "eval.csv"), check_dtype=False
    )


def test_configs_are_left_out_where_results_are_shown(fabricate):
    shown = repr(load_results(fabricate("copy", "rope").parents[1]))
    assert "evaluations=" in shown and "configs" not in shown


def test_labels_are_bare_names_where_one_configuration_is_behind_them(fabricate):
    for seed in range(2):
        fabricate("copy", "rope", seed)
        # What doesn't change a number, or changes it by rounding alone, sets no run apart.
        run = fabricate(
            "copy", "alibi", seed, config={"device": ["cpu", "cuda"][seed], "logger.mode": ["a", "b"][seed]}
        )
    results = load_results(run.parents[1])
    assert results.task_labels == ["copy"]
    assert results.encoding_labels == ["alibi", "rope"]


def test_configurations_are_never_mixed(fabricate):
    for seed in range(2):
        run = fabricate("copy", "rope", seed)
        fabricate("copy", "rope", seed, config={"encoding.base": 500000.0})
        fabricate("copy", "alibi", seed, config={"model.causal": False})
        fabricate("retrieval", "rope", seed)
    results = load_results(run.parents[1])
    assert results.task_labels == ["copy (causal=False)", "copy (causal=True)", "retrieval"]
    # The same configuration has the same label in every task.
    assert results.encoding_labels == ["alibi", "rope (base=10000)", "rope (base=500000)"]
    lines = results.evaluations.groupby(["task_label", "encoding_label", "length"])["seed"]
    assert (lines.nunique() == lines.size()).all()


def test_positions_set_lines_apart(fabricate):
    """Not panels; and a run from before there was a choice had plain ones."""
    plain = {"name": "plain", "target": "rpe_bench.positions.plain.Plain"}
    drawn = {"name": "randomised", "target": "rpe_bench.positions.randomised.Randomised", "range": 512}
    fabricate("copy", "rope", 0)
    fabricate("copy", "rope", 1, config={"positions": plain})
    run = fabricate("copy", "alibi", 0, config={"positions": plain})
    assert load_results(run.parents[1]).encoding_labels == ["alibi", "rope"]
    fabricate("copy", "rope", 0, config={"positions": drawn})
    fabricate("copy", "t5", 0, config={"positions": drawn})
    results = load_results(run.parents[1])
    assert results.task_labels == ["copy"]
    assert results.encoding_labels == ["alibi", "rope", "rope (positions=randomised)", "t5 (positions=randomised)"]
    fabricate("copy", "t5", 0, config={"positions": drawn | {"range": 1024}})
    labels = load_results(run.parents[1]).encoding_labels
    assert labels[:2] == ["alibi", "rope"] and labels[-1] == "t5 (positions=randomised, range=1024)"


def test_other_positions_than_plain_ones_are_named_whatever_else_there_is(fabricate):
    drawn = {"name": "randomised", "target": "rpe_bench.positions.randomised.Randomised", "range": 512}
    run = fabricate("copy", "rope", config={"positions": drawn})
    assert load_results(run.parents[1]).encoding_labels == ["rope (positions=randomised)"]


def test_a_seed_that_would_count_twice_is_separated_by_device_or_is_a_duplicate(fabricate):
    run = fabricate("copy", "rope", 0)
    fabricate("copy", "rope", 0, config={"device": "cuda"})
    fabricate("copy", "rope", 1)
    copy = fabricate("copy", "rope", 1, name="zz-backup")
    results = load_results(run.parents[1])
    assert results.encoding_labels == ["rope (device=cpu)", "rope (device=cuda)"]
    assert by_status(results)["duplicate"] == [copy.name]
    assert results.evaluations.groupby("encoding_label")["run_id"].nunique().to_dict() == {
        "rope (device=cpu)": 2,
        "rope (device=cuda)": 1,
    }


def test_what_cannot_be_averaged_is_counted_and_says_why(fabricate):
    finished = fabricate("copy", "rope", 0)
    root = finished.parent
    names = {
        "failed": fabricate("copy", "rope", 1, status="failed").name,
        "unfinished": fabricate("copy", "rope", 2, status="running").name,
        "other format": fabricate("copy", "rope", 3).name,
        "unreadable": fabricate("copy", "rope", 4).name,
    }
    old = root / names["other format"] / "run.json"
    old.write_text(old.read_text().replace('"format": 1', '"format": 0'))
    (root / names["unreadable"] / "eval.csv").unlink()
    (root / "notes").mkdir()
    (root / ".tmp-of-a-tool").mkdir()
    (root / "a-file").write_text("")

    results = load_results(root.parent)
    assert by_status(results) == {
        "finished": [finished.name],
        **{status: [name] for status, name in names.items()},
        "foreign": ["notes"],
    }
    reasons = results.runs.set_index("status")["reason"]
    assert reasons["failed"] == "ValueError: loss is nan"
    assert "eval.csv" in reasons["unreadable"]
    assert reasons["other format"] == "results format 0, where this version reads 1"
    assert results.evaluations["run_id"].unique().tolist() == [finished.name]


def test_a_table_that_is_not_as_it_was_written_is_no_result(fabricate):
    """As where a copy was cut short: what is left may well be read, and means of it would be of fewer lengths."""
    sound, cut = fabricate("copy", "rope", 0), fabricate("copy", "rope", 1)
    for run in (sound, cut):
        record = json.loads((run / "run.json").read_text())
        record["bytes"] = {path.name: path.stat().st_size for path in run.glob("*.csv")} | {"checkpoint.pt": 1}
        (run / "run.json").write_text(json.dumps(record))
    text = (cut / "positions.csv").read_text()
    (cut / "positions.csv").write_text(text[: text.index("\n", len(text) // 2) + 1])
    results = load_results(sound.parents[1])
    assert by_status(results) == {"finished": [sound.name], "unreadable": [cut.name]}
    sizes = f"{(cut / 'positions.csv').stat().st_size} bytes, not the {len(text)} that were written"
    assert results.runs["reason"].tolist()[1] == f"positions.csv has {sizes}"
    assert results.positions["run_id"].unique().tolist() == [sound.name]


def test_examples_that_are_not_as_they_were_written_are_refused(fabricate):
    run = fabricate("copy")
    text = f"{','.join(TABLES['examples'])}\n8,0,16,0.5,0.75,0.0\n8,1,16,0.1,1,1\n"
    (run / "examples.csv").write_text(text)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"bytes": {"examples.csv": len(text)}}))
    assert len(load_examples(run.parents[1], [run.name])) == 2
    (run / "examples.csv").write_text(text[: text.rindex("8,1")])
    with pytest.raises(ReportError, match="examples.csv: has [0-9]+ bytes, not the [0-9]+ that were written"):
        load_examples(run.parents[1], [run.name])


def test_a_link_to_what_is_not_there_is_counted(fabricate, tmp_path):
    run = fabricate("copy")
    (run.parent / "elsewhere").symlink_to(tmp_path / "unmounted")
    (run.parent / "linked").symlink_to(fabricate("copy", "alibi", results=tmp_path / "disk"))
    results = load_results(run.parents[1])
    assert by_status(results) == {"finished": [run.name, "linked"], "unreadable": ["elsewhere"]}
    assert results.runs.set_index("directory")["reason"]["elsewhere"] == "a link to what is not there"


def test_a_table_that_is_a_link_to_what_is_not_there_is_missed_by_its_run(fabricate, tmp_path):
    run = fabricate("copy")
    (run / "eval.csv").unlink()
    (run / "eval.csv").symlink_to(tmp_path / "unmounted")
    runs = load_results(run.parents[1]).runs
    assert runs["status"].tolist() == ["unreadable"]
    assert runs["reason"].tolist() == ["eval.csv: No such file or directory"]


def test_directories_that_may_not_be_looked_into_are_named(fabricate, monkeypatch):
    sound, closed = fabricate("copy", "alibi"), fabricate("copy", "rope")
    scandir = os.scandir

    def refused(path):
        if os.fspath(path) == str(shut):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    shut = closed
    results = load_results(sound.parents[1])
    assert by_status(results) == {"finished": [sound.name], "unreadable": [closed.name]}
    assert results.runs["reason"].tolist() == ["", "Permission denied"]
    shut = closed.parent
    with pytest.raises(ReportError, match=r"^no runs in .*results: .*runs: Permission denied$"):
        load_results(sound.parents[1])


def test_what_the_last_sweep_asked_for_and_is_not_there_is_missing(fabricate):
    run, other = fabricate("copy", "rope", 0), fabricate("copy", "rope", 1)
    for runs in (["of-an-earlier-one"], [run.name, "copy-rope-quick-s2-00000000"]):
        ledger.append(run.parents[1], "sweep", runs=runs)
    results = load_results(run.parents[1])
    assert by_status(results) == {"finished": [run.name, other.name], "missing": ["copy-rope-quick-s2-00000000"]}
    assert notes(results) == [
        "2 run directories: 2 finished; 1 more is missing",
        "missing: copy-rope-quick-s2-00000000 (asked for by the last sweep, and without a directory)",
    ]


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("run.json", "{", "run.json: Expecting"),
        ("run.json", '{"run_id": "x", "status": "finished", "format": 1}', "no usable train_length"),
        ("config.yaml", "a: [", "config.yaml: "),
        ("config.yaml", "- a", "config.yaml: not a mapping"),
        ("eval.csv", "", "eval.csv: No columns"),
        ("eval.csv", "length,split\n1,extrapolation\n", "eval.csv: no column examples, tokens"),
        (
            "eval.csv",
            f"{','.join(TABLES['eval'])}\n8,training_set,1,1,1,1,1,1\n",
            "eval.csv: no split is called training_set",
        ),
        ("eval.csv", f"{','.join(TABLES['eval'])}\n8,extrapolation,{2**63},1,1,1,1,1\n", "eval.csv: "),
        ("training_set.csv", "length\n1\n", "training_set.csv: no column examples"),
        ("positions.csv", "length,position,tokens,loss,perplexity,accuracy\nx,0,0,0,0,0\n", "positions.csv: "),
    ],
)
def test_a_damaged_run_names_the_file(fabricate, file, text, expected):
    run = fabricate()
    (run / file).write_text(text)
    runs = load_results(run.parents[1]).runs
    assert runs["status"].tolist() == ["unreadable"]
    assert expected in runs["reason"].item()
    assert "\n" not in runs["reason"].item()


@pytest.mark.parametrize("status", ["finished", "failed", "running"])
@pytest.mark.parametrize("key", ["parameters", "train_length", "seconds"])
def test_a_number_beyond_64_bits_makes_its_run_alone_unreadable(fabricate, status, key):
    sound = fabricate("copy", "alibi")
    path = fabricate("copy", "rope", status=status) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: -(2**63) - 1}))
    results = load_results(sound.parents[1])
    assert by_status(results) == {"finished": [sound.name], "unreadable": [path.parent.name]}
    assert results.runs["reason"].tolist()[1] == f"run.json: {key} is beyond 64 bits"


@pytest.mark.parametrize("seed", [2**63, "9" * 5000, "²"])
def test_a_seed_that_is_none_makes_its_run_alone_unreadable(fabricate, seed):
    sound = fabricate("copy", "alibi")
    fabricate("copy", "rope", config={"seed": seed}, name="odd")
    results = load_results(sound.parents[1])
    assert by_status(results) == {"finished": [sound.name], "unreadable": ["odd"]}
    assert results.runs["reason"].tolist()[1] == "config.yaml: no usable seed, here or in run.json"


@pytest.mark.parametrize(
    ("facts", "status", "reason"),
    [
        ({"format": 2, "device": {"kind": "cuda"}}, "other format", "results format 2, where this version reads 1"),
        ({"device": ["cuda", "cpu"]}, "unreadable", "run.json: device is not a text"),
        ({"started": 1735689600}, "unreadable", "run.json: started is not a text"),
        ({"train_seconds": "1 min"}, "unreadable", "run.json: train_seconds is not a number"),
        ({"train_length": 0}, "unreadable", "config.yaml: no usable train_length, here or in run.json"),
        ({"train_tokens": -1}, "unreadable", "config.yaml: no usable train_tokens, here or in run.json"),
    ],
)
def test_a_record_of_another_program_spoils_no_report(fabricate, facts, status, reason):
    sound, odd = fabricate("copy", "rope", 0), fabricate("copy", "alibi", 0)
    record = json.loads((odd / "run.json").read_text())
    (odd / "run.json").write_text(json.dumps(record | facts))
    results = load_results(sound.parents[1])
    runs = results.runs.set_index("directory")
    assert runs.loc[odd.name, ["status", "reason"]].tolist() == [status, reason]
    assert dashboard_data(results, sound.parents[1])["tasks"] and rendered(results)


def test_the_training_set_has_a_frame_of_its_own(fabricate):
    run = fabricate("adjacency_tutorial", training_set=True)
    fabricate("copy")
    results = load_results(run.parents[1])
    assert results.training_set["run_id"].tolist() == [run.name]
    assert results.training_set["length"].tolist() == [8] and results.training_set["ratio"].tolist() == [1]
    assert set(results.evaluations["split"]) == {"train_lengths", "extrapolation"}
    (run / "training_set.csv").unlink()
    frame = load_results(run.parents[1]).training_set
    assert frame.empty and {"run_id", "ratio", "exact_match"} <= set(frame)


def test_examples_are_read_of_the_runs_that_are_asked_for_alone(fabricate):
    run = fabricate("copy")
    (run / "examples.csv").write_text(f"{','.join(TABLES['examples'])}\n8,0,16,0.5,0.75,0.0\n8,1,16,0.1,1,1\n")
    older = fabricate("copy", seed=1)
    results = load_results(run.parents[1])
    assert results.runs["status"].tolist() == ["finished"] * 2 and not hasattr(results, "examples")
    found = load_examples(run.parents[1], results.runs["directory"])
    assert found["directory"].tolist() == [run.name] * 2 and found["example"].tolist() == [0, 1]
    assert found["token_accuracy"].tolist() == [0.75, 1]
    none = load_examples(run.parents[1], [older.name])
    assert none.empty and list(none) == ["directory", *TABLES["examples"]]
    (run / "examples.csv").write_text("length\n8\n")
    with pytest.raises(ReportError, match="examples.csv: no column example"):
        load_examples(run.parents[1], [run.name])
    (run / "examples.csv").unlink()
    (run / "examples.csv").mkdir()
    with pytest.raises(ReportError, match="examples.csv: Is a directory"):
        load_examples(run.parents[1], [run.name])


def test_a_run_that_has_only_just_started_is_unfinished(fabricate):
    run = fabricate(status="running")
    (run / "config.yaml").unlink()
    (fabricate("retrieval", status="running") / "run.json").unlink()
    runs = load_results(run.parents[1]).runs
    assert runs["status"].tolist() == ["unfinished"] * 2
    assert runs["reason"].tolist() == ["run.json says running", "no run.json yet"]


def test_without_a_finished_run_the_frames_are_empty_and_have_their_columns(fabricate):
    run = fabricate(status="failed")
    results = load_results(run.parents[1])
    assert results.evaluations.empty and {"run_id", "ratio", "exact_match"} <= set(results.evaluations)
    with pytest.raises(ReportError, match="no runs in .*missing"):
        load_results(run.parents[1] / "missing")


def test_variants_shows_what_differs_and_follows_from_nothing_else():
    tiny = {"model.name": "tiny", "model.dim": "64", "model.causal": "True", "task.dim": "1"}
    small = {"model.name": "small", "model.dim": "128", "model.causal": "True", "task.dim": "1"}
    assert variants([tiny, tiny]) == ["", ""]
    assert variants([tiny, small]) == ["model=tiny", "model=small"]
    wide = {**tiny, "model.dim": "128"}
    assert variants([tiny, small, wide]) == ["model=tiny, dim=64", "model=small, dim=128", "model=tiny, dim=128"]
    assert variants([tiny, {**wide, "task.dim": "2"}]) == ["model.dim=64, task.dim=1", "model.dim=128, task.dim=2"]
    assert variants([tiny, {**tiny, "recipe.clip": "1"}]) == ["clip=unset", "clip=1"]


def test_runs_from_before_there_was_a_choice_of_recipe_are_not_set_apart(fabricate):
    """Nor are they when they meet runs that made another choice: what each did is said by the key that decides it."""
    neutral = {f"recipe.{key}": value for key, value in Recipe.neutral().items()}
    run = fabricate("copy", "rope", 0)
    fabricate("copy", "rope", 1, config=neutral)
    assert load_results(run.parents[1]).task_labels == ["copy"]
    sgd = {"recipe.optimiser": "sgd", "recipe.momentum": 0.9, "recipe.betas": None}
    fabricate("copy", "rope", 0, config=neutral | sgd)
    fabricate("copy", "rope", 0, config=neutral | {"recipe.lengths": "curriculum", "recipe.curriculum_share": 0.5})
    labels = load_results(run.parents[1]).task_labels
    assert labels == [
        "copy (lengths=curriculum, optimiser=adamw)",
        "copy (lengths=unset, optimiser=adamw)",
        "copy (lengths=unset, optimiser=sgd)",
    ]


def test_what_follows_from_a_recipes_name_is_not_shown_beside_it(fabricate):
    """Though it may also follow from the optimiser, which here is the same."""
    run = fabricate("copy")
    fabricate("copy", config={"recipe.name": "tutorial", "recipe.betas": [0.9, 0.999]})
    assert load_results(run.parents[1]).task_labels == ["copy (recipe=quick)", "copy (recipe=tutorial)"]


def test_early_stop_sets_runs_apart_by_its_metric_and_what_differs_besides(fabricate):
    group = {"metric": "loss", "every": 100, "patience": 5, "min_improvement": 0.0, "threshold": None}
    run = fabricate("copy", config={"recipe.early_stop": None})
    fabricate("copy", "rope", 1)
    fabricate("copy", config={"recipe.early_stop": group})
    assert load_results(run.parents[1]).task_labels == ["copy", "copy (metric=loss)"]
    fabricate("copy", config={"recipe.early_stop": group | {"patience": 3}})
    labels = load_results(run.parents[1]).task_labels
    assert labels == ["copy", "copy (metric=loss, patience=3)", "copy (metric=loss, patience=5)"]


def test_checks_of_early_stopping_have_a_frame_of_their_own(fabricate):
    run = fabricate("copy")
    (run / "validation.csv").write_text(f"{','.join(TABLES['validation'])}\n100,16,256,4096,1.5,4.5,0.5,0.25\n")
    fabricate("copy", "alibi")
    validation = load_results(run.parents[1]).validation
    assert validation[["run_id", "step", "ratio", "exact_match"]].values.tolist() == [[run.name, 100, 1.0, 0.25]]


def test_lengths_that_follow_from_the_training_length_are_not_shown(fabricate):
    run = fabricate("copy")
    fabricate("copy", config={"recipe.train_length": 32})
    assert load_results(run.parents[1]).task_labels == ["copy (train_length=16)", "copy (train_length=32)"]
    fabricate("copy", config={"evaluation.lengths": [16, 32]})
    assert load_results(run.parents[1]).task_labels == [
        "copy (train_length=16, lengths=[8,16,20,24,32,64,128])",
        "copy (train_length=16, lengths=[16,32])",
        "copy (train_length=32, lengths=[16,32,40,48,64,128,256])",
    ]


def test_flatten_gives_different_values_different_texts():
    flat = flatten({"a": {"b": 1.0, "c": None}, "d": [1, 2.5], "e": True, "f": 0.1 + 0.2})
    assert flat == {"a.b": "1", "a.c": "null", "d": "[1,2.5]", "e": "True", "f": "0.30000000000000004"}


def test_order_takes_numbers_by_value():
    assert in_order(["rope (base=500000)", "alibi", "rope (base=10000)", "t5", "t10", "NoPE"]) == [
        *("alibi", "NoPE", "rope (base=10000)", "rope (base=500000)", "t5", "t10"),
    ]


def test_nothing_in_the_report_imports_torch_or_pyplot():
    code = "import sys, rpe_bench.report; print({'torch', 'matplotlib.pyplot'} & set(sys.modules))"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "set()"


def test_a_copy_of_a_results_directory_reads_the_same(fabricate, tmp_path):
    run = fabricate("copy", "rope", 0)
    shutil.copytree(run.parents[1], tmp_path / "elsewhere")
    pd.testing.assert_frame_equal(
        load_results(run.parents[1]).evaluations, load_results(tmp_path / "elsewhere").evaluations
    )


def test_tables_that_are_parsed_together_are_those_of_each_run(fabricate):
    """Also where some are odd: a damaged one, one with its columns in another order, one with Windows' line ends."""
    for seed in range(6):
        run = fabricate("copy", "rope", seed)
    runs = sorted(run.parent.iterdir())
    expected = {path.name: pd.read_csv(path / "eval.csv") for path in runs}
    pd.read_csv(runs[1] / "eval.csv").iloc[:, ::-1].to_csv(runs[1] / "eval.csv", index=False)
    (runs[2] / "eval.csv").write_bytes((runs[2] / "eval.csv").read_bytes().replace(b"\n", b"\r\n"))
    extra = (runs[3] / "eval.csv").read_text().splitlines()
    (runs[3] / "eval.csv").write_text("\n".join([extra[0], *(f"{line},1" for line in extra[1:])]) + "\n")
    (runs[4] / "positions.csv").write_text("length\n")
    results = load_results(run.parents[1])
    unreadable = results.runs.query("status == 'unreadable'")["directory"].tolist()
    assert unreadable == [runs[3].name, runs[4].name]
    for place in (0, 1, 2, 5):
        rows = results.evaluations[results.evaluations["run_id"] == runs[place].name].reset_index(drop=True)
        frame = expected[runs[place].name]
        pd.testing.assert_frame_equal(rows[list(frame)], frame, check_dtype=False)


def test_a_config_is_read_by_sections_as_it_is_read_whole():
    text = "seed: 3\nencoding:\n  name: rope\n  scaling:\n    factor: 4.0\nlist:\n- 1\n- 2\nempty: {}\n"
    assert _config(text) == flatten(yaml.safe_load(text)) and len(_config(text)) == 4
    shared = "a: &x\n  b: 1\nc: *x\n"  # an anchor reaches from one section into another
    assert _config(shared) == {"a.b": "1", "c.b": "1"}
    twice = "a:\n  b: 1\na:\n  c: 2\n"
    assert _config(twice) == {"a.c": "2"}
