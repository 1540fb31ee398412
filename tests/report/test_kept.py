"""What is kept of runs that were read: that it is never anything else than what reading them would give."""

import dataclasses
import os
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml

from rpe_bench.report import kept, load
from rpe_bench.report.load import load_results


@pytest.fixture(autouse=True)
def _of_any_number(monkeypatch):
    monkeypatch.setattr(kept, "WORTH", 1)
    monkeypatch.setattr(kept, "SETTLED", -60)


@pytest.fixture
def results_dir(fabricate):
    """Runs of every kind."""
    for encoding in ("alibi", "null"):
        for seed in range(3):
            run = fabricate("copy", encoding, seed)
    fabricate("retrieval", "alibi", training_set=True)
    fabricate("copy", "rope", 7, status="failed")
    fabricate("copy", "rope", 8, status="running")
    fabricate("copy", "alibi", 1, name="zz-copy")
    (fabricate("copy", "t5") / "eval.csv").write_text("length\n")
    (run.parent / "notes").mkdir()
    return run.parents[1]


def fresh(results_dir):
    """Read with nothing kept."""
    place, aside = results_dir / ".cache", results_dir / ".aside"
    if place.exists():
        place.rename(aside)
    results = load_results(results_dir)
    shutil.rmtree(place, ignore_errors=True)
    if aside.exists():
        aside.rename(place)
    return results


def assert_same(one, other):
    for field in dataclasses.fields(one):
        mine, its = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, pd.DataFrame):
            pd.testing.assert_frame_equal(mine, its)
        else:
            assert mine == its


@pytest.fixture
def reads(monkeypatch):
    """The directories that are read from now on."""
    names = []
    read = load._read
    monkeypatch.setattr(load, "_read", lambda place, inside: names.append(place.name) or read(place, inside))
    return names


def test_what_is_kept_is_what_was_read(results_dir, reads):
    first = load_results(results_dir)
    assert len(reads) == 12 and kept.place(results_dir).exists()
    reads.clear()
    assert_same(load_results(results_dir), first)
    assert reads == []
    assert set(first.runs["status"]) == {"finished", "failed", "unfinished", "unreadable", "duplicate", "foreign"}


def set_accuracy(run, value):
    rows = pd.read_csv(run / "eval.csv")
    rows.assign(token_accuracy=value).to_csv(run / "eval.csv", index=False)


def test_a_run_that_changed_in_any_way_is_read_again_and_no_other(results_dir, reads, fabricate):
    def loaded():
        reads.clear()
        results = load_results(results_dir)
        read = list(reads)
        assert_same(results, fresh(results_dir))
        return results, read

    load_results(results_dir)
    run = next((results_dir / "runs").glob("copy-alibi-*-s0-*"))
    set_accuracy(run, 0.125)
    results, read = loaded()
    assert read == [run.name]
    assert set(results.evaluations.query("run_id == @run.name")["token_accuracy"]) == {0.125}

    # The same size and the same times, as a copy that keeps them may have.
    before = (run / "eval.csv").stat()
    text = (run / "eval.csv").read_text()
    (run / "eval.csv").write_text(text.replace("0.125", "0.625"))
    os.utime(run / "eval.csv", ns=(before.st_atime_ns, before.st_mtime_ns))
    after = (run / "eval.csv").stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    results, read = loaded()
    assert read == [run.name]
    assert set(results.evaluations.query("run_id == @run.name")["token_accuracy"]) == {0.625}

    added = fabricate("copy", "rope", 0)
    assert loaded()[1] == [added.name]
    shutil.rmtree(run)
    results, read = loaded()
    assert read == [] and run.name not in set(results.runs["directory"])
    assert run.name not in kept.read(results_dir).directories
    config = yaml.safe_load((added / "config.yaml").read_text())
    (added / "config.yaml").write_text(yaml.safe_dump(config | {"seed": 5}))
    results, read = loaded()
    assert read == [added.name] and results.evaluations.query("encoding == 'rope'")["seed"].unique().tolist() == [5]
    (added / "slices.csv").unlink()
    results, read = loaded()
    assert read == [added.name] and "rope" not in set(results.evaluations["encoding"])
    (results_dir / "runs/notes/run.json").write_text("{}")
    assert loaded()[1] == ["notes"]


def test_what_was_written_a_moment_ago_is_not_relied_on(results_dir, reads, monkeypatch):
    """Within a tick of the clock it may be written again, and look the same."""
    monkeypatch.setattr(kept, "SETTLED", 60)
    (results_dir / "runs/notes").rmdir()
    load_results(results_dir)
    assert not kept.place(results_dir).exists()
    for path in (results_dir / "runs").glob("*-s1-*/*"):
        os.utime(path, (1, 1))
    reads.clear()
    load_results(results_dir)
    assert len(reads) == 11  # their entries were changed a moment ago, whatever their times say


def test_what_stood_in_the_way_of_reading_is_not_kept(results_dir, reads, monkeypatch):
    """Such as a disk that did not answer, or that someone else may not read what they share."""
    name = next((results_dir / "runs").glob("copy-alibi-*-s0-*")).name

    def refusing(read):
        def wrapped(path, *arguments, **options):
            if name in str(path):
                raise OSError(5, "Input/output error")
            return read(path, *arguments, **options)

        return wrapped

    for patched, file in (((load.Path, "read_text"), "run.json"), ((load, "_csv"), "train.csv")):
        with monkeypatch.context() as patch:
            patch.setattr(*patched, refusing(getattr(*patched)))
            patch.setattr("builtins.open", refusing(open))
            runs = load_results(results_dir).runs.set_index("directory")
            assert runs.loc[name, ["status", "reason"]].tolist() == ["unreadable", f"{file}: Input/output error"]
        reads.clear()
        assert load_results(results_dir).runs.set_index("directory").loc[name, "status"] == "finished"
        assert reads == [name]
        kept.place(results_dir).unlink()


@pytest.mark.parametrize("how", ["cut short", "empty", "text", "of other code", "directory"])
def test_what_cannot_be_used_is_made_anew(results_dir, reads, how, monkeypatch):
    first = load_results(results_dir)
    place = kept.place(results_dir)
    whole = place.read_bytes()
    if how == "of other code":
        monkeypatch.setattr(kept, "_version", lambda: "another")
    elif how == "directory":
        place.unlink()
        place.mkdir()
    else:
        place.write_bytes({"cut short": whole[: len(whole) // 2], "empty": b"", "text": b"runs"}[how])
    reads.clear()
    assert_same(load_results(results_dir), first)
    assert len(reads) == 12
    reads.clear()
    assert_same(load_results(results_dir), first)
    assert len(reads) == (12 if how == "directory" else 0)


def test_a_byte_that_is_another_changes_no_number(results_dir):
    first = load_results(results_dir)
    place = kept.place(results_dir)
    whole = place.read_bytes()
    rng = np.random.default_rng(0)
    spots = {*rng.integers(len(whole), size=60).tolist(), *range(0, 120, 3), *range(len(whole) - 120, len(whole), 3)}
    unnoticed = 0
    for spot in spots:
        place.write_bytes(whole[:spot] + bytes([whole[spot] ^ (1 << int(rng.integers(8)))]) + whole[spot + 1 :])
        found = kept.read(results_dir)
        if found is not None:  # such as the date of an entry of the archive
            unnoticed += 1
            assert_same(load_results(results_dir), first)
    assert unnoticed < len(spots) / 3


def test_a_place_that_cannot_be_written_is_read_every_time(results_dir, reads):
    first = fresh(results_dir)
    (results_dir / ".cache").write_text("in the way")
    reads.clear()
    for _ in range(2):
        assert_same(load_results(results_dir), first)
    assert len(reads) == 24
    assert (results_dir / ".cache").read_text() == "in the way"


def test_a_few_changed_runs_are_read_without_writing_all_anew(results_dir, reads, monkeypatch):
    load_results(results_dir)
    monkeypatch.setattr(kept, "REWRITTEN", 0.5)
    before = kept.place(results_dir).read_bytes()
    run = next((results_dir / "runs").glob("copy-alibi-*-s0-*"))
    set_accuracy(run, 0.125)
    for _ in range(2):
        reads.clear()
        load_results(results_dir)
        assert reads == [run.name]
    assert kept.place(results_dir).read_bytes() == before


def test_of_few_runs_nothing_is_kept(results_dir, monkeypatch):
    monkeypatch.setattr(kept, "WORTH", 13)
    load_results(results_dir)
    assert not (results_dir / ".cache").exists()
