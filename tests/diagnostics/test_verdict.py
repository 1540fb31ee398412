"""Models that are made to fail in a known way are told apart, through the path that every run takes."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from support import encodings_for
from torch import Tensor

from rpe_bench import run, trained
from rpe_bench.catalogue import read
from rpe_bench.cli import main
from rpe_bench.diagnostics import interventions
from rpe_bench.diagnostics.failure import effect
from rpe_bench.diagnostics.interventions import losses_under_intervention, refusal
from rpe_bench.diagnostics.verdict import Verdict, table
from rpe_bench.model import Transformer
from rpe_bench.run import build_model, execute
from rpe_bench.trained import Trained

N = 32
SIZES = {"recipe.train_length": N, "recipe.steps": 1, "evaluation.lengths": [16, N, 2 * N, 8 * N]}
CASES = {
    "unseen positions": ("first position", "positions"),
    "unseen distances": ("first position", "distances"),
    "far distances": ("later", "distances"),
    "length": ("gradual", "length"),
    "nothing": ("none", None),
}


class Failing(Transformer):
    """Knows nothing of the task, and is certain of a wrong answer besides, by as much as the kind of failure says."""

    kind = ""

    def forward(self, tokens_BT: Tensor, positions: Tensor | None = None, asked_N: Tensor | None = None) -> Tensor:
        logits = 0.0 * super().forward(tokens_BT, positions)
        index = torch.arange(tokens_BT.shape[1])
        position = index if positions is None else positions
        logits[..., 0] += {
            "unseen positions": 4.0 * (position >= N),
            "unseen distances": 4.0 * (position - position[0] >= N),
            "far distances": 4.0 * (position - position[0] >= 2 * N),
            "length": 0.6 * (index / N - 1).clamp(min=0),
            "nothing": 0.0 * index,
        }[self.kind]
        return logits if asked_N is None else logits.flatten(0, 1)[asked_N]


@pytest.mark.parametrize("kind", CASES)
def test_a_case_of_each_kind_is_named(kind: str, make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(config) -> Transformer:
        model = build_model(config)
        model.__class__ = Failing
        model.kind = kind
        return model

    config = make_config("markov", "nope", SIZES | {"evaluation.examples": 200})
    for module in (run, trained):
        monkeypatch.setattr(module, "build_model", make)
    execute(config)
    verdict = Verdict.of(Trained.at(config.run_dir))
    shape, cause = CASES[kind]
    assert verdict.onset.shape == shape and verdict.cause == cause and not verdict.untested
    # Attention without position, of weights as drawn, is about even.
    even = sum((t + 1 - N) / (t + 1) for t in range(N, 8 * N)) / (8 * N)
    assert verdict.unseen == pytest.approx(even, abs=0.1)
    words = " ".join(verdict.sentences)
    assert {
        "unseen positions": "sharply at the first unseen position, from position 32",
        "unseen distances": "sharply at the first unseen position, from position 32",
        "far distances": "rises sharply, but later, from position 64",
        "length": "rises gradually",
        "nothing": "does not rise",
    }[kind] in words
    assert {
        "positions": "due to unseen positions:",
        "distances": "due to unseen distances, not",
        "length": "due to neither",
        None: "nothing to explain",
    }[cause] in words
    (row,) = table([verdict]).to_dict("records")
    assert (row["onset"], row["cause"]) == (shape, cause)
    assert row["plain_loss"] == pytest.approx(math.log(8), abs=1e-5)
    assert (row["shift_effect"] > 1) == (cause == "positions")


class Untrained(Trained):
    def model(self) -> Transformer:
        return build_model(self.config)


@pytest.mark.parametrize("encoding", encodings_for("copy"))
def test_a_shift_changes_nothing_for_who_sees_offsets_alone(encoding: str, make_config, tmp_path: Path) -> None:
    config = make_config("copy", encoding, SIZES | {"recipe.train_length": 8, "evaluation.examples": 4})
    losses = losses_under_intervention(Untrained(tmp_path, config))
    assert losses.groupby("intervention", sort=False).size().to_dict() == dict.fromkeys(interventions.INTERVENTIONS, 4)
    assert losses["loss"].map(math.isfinite).all()
    shift = losses.pivot(index="example", columns="intervention", values="loss").eval("shifted - plain").abs().max()
    if all(module.translation_invariant for module in config.build_encodings()):
        assert shift < 1e-3
    if encoding in ("learned", "sinusoidal"):
        assert shift > 1e-3
    if encoding == "nope":
        assert effect(losses, "parted").mean == 0


def test_positions_are_set_within_what_is_evaluated() -> None:
    given = interventions._positions(6, 20)
    assert {name: positions.tolist() for name, positions in given.items()} == {
        "plain": [0, 1, 2, 3, 4, 5],
        "shifted": [14, 15, 16, 17, 18, 19],
        "parted": [0, 1, 2, 17, 18, 19],
    }


def test_scored_is_the_last_quarter(make_config) -> None:
    task = make_config("markov").build_task()
    batch = run.examples_of(make_config("markov"), task, 32)
    left = interventions._last_quarter(batch)
    assert (left.targets_BT[:, :24] == -100).all() and torch.equal(left.targets_BT[:, 24:], batch.targets_BT[:, 24:])


def test_where_positions_cannot_be_set(make_config) -> None:
    assert refusal(make_config("grid_lookup", "vit")) == "positions on a grid"
    assert refusal(make_config("copy", "rope", {"positions": read("positions", "offset")})) == "positions=offset"
    assert refusal(make_config("copy", "rope", {"evaluation.lengths": [8]})) == "evaluated at no longer length"
    assert refusal(make_config("copy", "rope")) is None


def test_the_command(make_config, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    runs = [make_config("retrieval", name, {"evaluation.lengths": [48, 96]}) for name in ("rope", "learned")]
    grid = make_config("grid_lookup", "vit")
    for config in (*runs, grid):
        execute(config)
    (runs[1].run_dir / "checkpoint.pt").unlink()
    results = runs[0].results_dir
    (results / "runs" / "half").mkdir()
    assert main(["diagnose", str(results), "--threshold", "0.99"]) == 0
    out, err = capsys.readouterr()
    assert "half: is not the directory of a run" in err
    found = pd.read_csv(results / "diagnosis.csv").set_index("run_id")
    assert set(found.index) == {config.run_id for config in (*runs, grid)}
    assert (found["threshold"] == 0.99).all() and found.loc[runs[0].run_id, "fails_at"] == 48
    for config, said in ((runs[1], "checkpoint.pt: No such file"), (grid, "positions on a grid")):
        assert said in found.loc[config.run_id, "untested"] and said in out
        assert math.isnan(found.loc[config.run_id, "shift_effect"])
    assert main(["diagnose", str(runs[0].run_dir), "--out", str(tmp_path / "one.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "one.csv")) == 1
    assert not (runs[0].run_dir / "diagnosis.csv").exists()
    for out in (tmp_path / "none" / "one.csv", tmp_path):
        capsys.readouterr()
        assert main(["diagnose", str(runs[0].run_dir), "--out", str(out)]) == 2
        assert capsys.readouterr() == ("", f"error: --out={out}: is no file that can be written\n")


def said_of(config) -> str:
    execute(config)
    return " ".join(Verdict.of(Trained.at(config.run_dir)).sentences)


def test_accuracy_that_never_reaches_the_threshold_gives_way_to_the_loss(make_config) -> None:
    """As in language modelling."""
    said = said_of(make_config("markov", "nope", SIZES))
    assert "at the training length, where it does not reach 0.9 either, so that the mean loss is what tells" in said
    assert "at no longer length 0.1 nats or more above that" in said or "above that at length" in said
    assert "-0.000" not in said


def test_what_was_not_evaluated_is_not_claimed(make_config) -> None:
    within = said_of(make_config("retrieval", "nope", SIZES | {"evaluation.lengths": [16]}))
    assert "Nothing was evaluated at the training length or beyond." in within and "Accuracy" not in within
    beyond = said_of(make_config("retrieval", "nope", SIZES | {"evaluation.lengths": [2 * N]}))
    assert "no length of training was evaluated to compare it with" in beyond
    assert "nothing to explain" not in beyond and "nan" not in beyond


def test_one_example_excludes_nothing(make_config) -> None:
    said = said_of(make_config("markov", "nope", SIZES | {"evaluation.examples": 1}))
    assert "(of one example)" in said and "nan" not in said and "due to neither" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere: holds neither a run, with its run.json, nor runs"),
        ([".", "--threshold=1.5"], "--threshold=1.5: must be a number above 0, 1 at most"),
        ([".", "--least=no"], "--least=no: must be a number above 0"),
    ],
)
def test_bad_requests(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_no_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "runs").mkdir()
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "has no finished run" in capsys.readouterr().err
