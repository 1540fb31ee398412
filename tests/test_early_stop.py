"""Early stopping: the rule, the weights that are kept, and that nothing beyond the training length has a say in it."""

import csv
import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from support import encodings_for

from rpe_bench import catalogue
from rpe_bench.config import Config
from rpe_bench.early_stop import Checked, Checks
from rpe_bench.evaluate import Scores, score, summarise
from rpe_bench.model import Transformer
from rpe_bench.run import build_model, examples_of, execute
from rpe_bench.tasks.base import Batch
from rpe_bench.tasks.copy import Copy
from rpe_bench.train import Data, Progress, State, make_optimiser, train

CPU = torch.device("cpu")


def stopping(**keys: object) -> dict[str, object]:
    """A small run that is checked after every second step of 12."""
    group = {"every": 2, "patience": 2, "examples": 16} | keys
    small = {"model.dim": 8, "model.layers": 1, "recipe.batch_size": 4}
    return small | {"recipe.steps": 12, "recipe.log_every": 5, "recipe.early_stop": group}


def scripted(monkeypatch: pytest.MonkeyPatch, metric: str, values: Sequence[float]) -> None:
    """Let the checks of one run find these values, one after the other."""
    coming = iter(values)

    def found(*arguments: object) -> Scores:
        scores = summarise(*arguments)
        scores.evaluation[metric] = next(coming)
        return scores

    monkeypatch.setattr("rpe_bench.early_stop.summarise", found)


def trained(config: Config) -> tuple[Transformer, State, dict[int, dict[str, torch.Tensor]], list[Progress]]:
    """The model, how training ended, the weights after each step as they were trained, and the log."""
    model, rows, weights = build_model(config), [], {}
    state = State(make_optimiser(model, config.recipe))
    step = state.optimiser.step

    def spied(*arguments: object) -> object:
        result = step(*arguments)
        weights[state.step + 1] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return result

    state.optimiser.step = spied  # type: ignore[method-assign]
    train(config, config.build_task(), model, CPU, rows.append, state)
    return model, state, weights, rows


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# The rule

RULES = [
    # metric, keys, what the checks find at steps 2, 4, 6, ..., the last step, the best, whether it stopped
    ("loss", {}, [3.0, 2.0, 2.5, 2.1, 1.0], 8, 4, True),
    ("loss", {}, [3.0, 2.0, 2.0, 2.0], 8, 4, True),  # as good is no improvement
    ("loss", {}, [3.0, 2.0, 2.5, 1.9, 2.0, 1.8], 12, 12, False),
    ("loss", {"min_improvement": 0.5}, [3.0, 2.6, 2.51], 6, 2, True),
    ("loss", {"min_improvement": 0.5}, [3.0, 2.6, 2.4, 2.0, 1.95], 10, 6, True),  # held against the last improvement
    ("loss", {"patience": 1}, [3.0, 3.1], 4, 2, True),
    ("loss", {"threshold": 1.0}, [3.0, 2.0, 1.0], 6, 6, True),
    ("loss", {"threshold": 1.0, "min_improvement": 0.5}, [1.2, 0.9], 4, 4, True),
    ("loss", {"threshold": 0.5, "patience": None}, [3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 12, 2, False),
    ("loss", {}, [float("inf"), float("inf"), 3.0, 2.0, 2.5, 1.0], 12, 12, False),
    ("exact_match", {}, [0.1, 0.3, 0.2, 0.3], 8, 4, True),
    ("exact_match", {"threshold": 0.9}, [0.1, 0.3, 0.95], 6, 6, True),
    ("token_accuracy", {}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 12, 12, False),
    ("token_accuracy", {"every": 5}, [0.1, 0.2, 0.15], 12, 10, False),  # the last step is a check too
    ("loss", {"every": 50}, [0.1], 12, 12, False),
    ("loss", {"every": 6, "patience": 1}, [2.0, 3.0], 12, 6, False),  # at the last step nothing is left to stop
]


@pytest.mark.parametrize(("metric", "keys", "values", "last", "best", "stopped"), RULES)
@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_rule_and_the_weights_kept(
    make_config,
    monkeypatch: pytest.MonkeyPatch,
    metric: str,
    keys: dict,
    values: list[float],
    last: int,
    best: int,
    stopped: bool,
    keep: str,
) -> None:
    scripted(monkeypatch, metric, values)
    config = make_config("copy", "nope", stopping(metric=metric, keep=keep, **keys))
    model, state, weights, rows = trained(config)
    checked = state.checked
    assert (state.step, checked.best_step, checked.stopped) == (last, best, stopped)
    assert checked.best == checked.rows[[row["step"] for row in checked.rows].index(best)][metric]
    every = keys.get("every", 2)
    assert [row["step"] for row in checked.rows] == [*range(every, last, every), last]
    assert list(weights) == list(range(1, last + 1))
    assert same(model.state_dict(), weights[best if keep == "best" else last])
    assert rows[-1].step == last
    assert checked.weights is None  # nothing that a checkpoint would keep for no use


def test_checks_change_nothing_but_when_training_ends(make_config) -> None:
    plain = make_config("copy", "t5", stopping() | {"recipe.log_every": 1, "recipe.early_stop": None})
    model = build_model(plain)
    rows: list[Progress] = []
    train(plain, plain.build_task(), model, CPU, rows.append)
    watched = make_config("copy", "t5", stopping(patience=99, keep="last") | {"recipe.log_every": 1})
    other, _, _, found = trained(watched)
    assert same(model.state_dict(), other.state_dict())
    assert [(row.step, row.loss) for row in found] == [(row.step, row.loss) for row in rows]
    assert other.training


def test_what_a_check_finds(make_config) -> None:
    config = make_config("retrieval", "rope", stopping(examples=40))
    checks, model, checked = Checks(config, config.build_task()), build_model(config), Checked()
    checks.make(checked, 7, model, CPU)
    [row] = checked.rows
    expected = summarise(48, checks.batch, *score(model, checks.batch, CPU), 0.0).evaluation
    assert row == {"step": 7, "length": 48, "examples": 40} | expected
    assert (checked.best, checked.best_step) == (row["loss"], 7)


def test_a_loss_that_is_not_a_number_is_a_failure(make_config) -> None:
    config = make_config("copy", "rope", stopping())
    model = build_model(config)
    with torch.no_grad():
        model.answers.weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="nan"):
        train(config, config.build_task(), model, CPU, lambda row: None)


def test_a_curriculum_has_reached_the_training_length_before_the_first_check(
    make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, "loss", [1.0, 2.0, 3.0])
    keys = {"recipe.lengths": "curriculum", "recipe.curriculum_share": 0.4}  # 5 of 12 steps
    _, state, _, _ = trained(make_config("copy", "nope", stopping() | keys))
    assert [row["step"] for row in state.checked.rows] == [6, 8, 10]
    assert state.step == 10


# The examples


def rows_of(batch: Batch) -> set[tuple[int, ...]]:
    return set(map(tuple, batch.tokens_BT.tolist()))


@pytest.mark.parametrize("task", ["copy", "adjacency_tutorial"])
def test_the_examples_are_neither_those_of_training_nor_of_evaluation(make_config, task: str) -> None:
    """At the training length, where examples are random enough for none to come twice by chance."""
    keys = {"recipe.train_length": 24, "evaluation.lengths": [24]} | stopping(examples=64)
    configs = [make_config(task, name, keys) for name in encodings_for(task)[:3]]
    batches = [Checks(config, config.build_task()).batch for config in configs]
    first = batches[0]
    assert first.tokens_BT.shape == (64, configs[0].build_task().length(24))
    for batch in batches[1:]:
        assert torch.equal(batch.tokens_BT, first.tokens_BT) and torch.equal(batch.targets_BT, first.targets_BT)
    config = configs[0]
    held = rows_of(first)
    assert len(held) == 64
    assert not held & rows_of(examples_of(config, config.build_task(), 24))
    data = Data(config.build_task(), config.build_positions(), config.recipe, config.seed)
    assert not any(held & rows_of(data.batch(step)) for step in range(30))
    other = make_config(task, encodings_for(task)[0], keys | {"seed": 1})
    assert not held & rows_of(Checks(other, other.build_task()).batch)


def test_what_a_task_holds_back_is_what_is_checked(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(self: Copy, rng: np.random.Generator, examples: int, size: int) -> Batch:
        batch = Copy.sample(self, rng, examples, size)
        batch.tokens_BT.fill_(0)
        return batch

    monkeypatch.setattr(Copy, "held_out", drawn)
    config = make_config("copy", "rope", stopping())
    assert not Checks(config, config.build_task()).batch.tokens_BT.any()


def test_tokens_are_scored_as_in_an_evaluation(make_config) -> None:
    config = make_config("markov", "rope", stopping() | {"task.last": 3, "recipe.train_length": 8})
    batch = Checks(config, config.build_task()).batch
    assert batch.tokens_BT.shape[1] == 8 and (batch.targets_BT >= 0).sum(1).unique().tolist() == [3]


def test_positions_are_remapped(make_config) -> None:
    options = {"positions": catalogue.read("positions", "randomised")}
    config = make_config("copy", "rope", stopping() | options)
    first, again = (Checks(config, config.build_task()).batch.positions for _ in range(2))
    assert first is not None and torch.equal(first, again)
    assert first.max() > 65  # beyond what the task itself has


# Nothing beyond the training length


def test_no_length_beyond_training_is_drawn_before_the_evaluation(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config("copy", "rope", stopping())
    sizes: list[int] = []
    sample = Copy.sample

    def guarded(self: Copy, rng: np.random.Generator, examples: int, size: int) -> Batch:
        if size > 16:
            raise AssertionError(f"drew examples of size {size}, beyond the training length")
        sizes.append(size)
        return sample(self, rng, examples, size)

    monkeypatch.setattr(Copy, "sample", guarded)
    _, state, _, _ = trained(config)
    assert len(state.checked.rows) > 1 and max(sizes) == 16
    with pytest.raises(AssertionError, match="size 32"):  # as the evaluation does
        execute(config)


def test_what_is_evaluated_has_no_say_in_where_training_ends(make_config, tmp_path) -> None:
    found = []
    for number, evaluation in enumerate(({"lengths": [16]}, {"lengths": [24, 40], "seed": 3, "examples": 5})):
        keys = {f"evaluation.{key}": value for key, value in evaluation.items()}
        keys |= {"results_dir": str(tmp_path / str(number))}
        config = make_config("copy", "rope", stopping(metric="exact_match") | keys)
        execute(config)
        facts = json.loads((config.run_dir / "run.json").read_text())
        noted = [facts[name] for name in ("stopped_at_step", "best_step", "best_validation", "evaluated_step")]
        found.append([(config.run_dir / "validation.csv").read_bytes(), noted])
    assert found[0] == found[1]
    assert found[0][1][0] == 6


# The record


@pytest.mark.parametrize("keep", ["best", "last"])
def test_what_a_run_records(make_config, monkeypatch: pytest.MonkeyPatch, keep: str) -> None:
    scripted(monkeypatch, "loss", [3.0, 2.0, 2.5, 2.25])
    config = make_config("copy", "rope", stopping(keep=keep))
    told: list[str] = []
    execute(config, told.append)
    facts = json.loads((config.run_dir / "run.json").read_text())
    noted = {name: facts[name] for name in ("stopped_at_step", "best_step", "best_validation", "evaluated_step")}
    evaluated = 4 if keep == "best" else 8
    assert noted == {"stopped_at_step": 8, "best_step": 4, "best_validation": 2.0, "evaluated_step": evaluated}
    assert "stopped early at step 8/12" in told
    with (config.run_dir / "validation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["length"], row["examples"]) for row in rows] == [(n, "16", "16") for n in "2468"]
    assert [float(row["loss"]) for row in rows] == [3.0, 2.0, 2.5, 2.25]
    # What is in the checkpoint is what was evaluated.
    monkeypatch.undo()
    weights = trained(make_config("copy", "rope", stopping() | {"recipe.early_stop": None}))[2]
    kept = torch.load(config.run_dir / "checkpoint.pt")
    assert kept["step"] == 8 and same(kept["model"], weights[evaluated])
    assert not any(same(kept["model"], weights[step]) for step in weights if step != evaluated)


def test_a_run_that_does_not_stop_early(make_config) -> None:
    config = make_config("copy", "rope", stopping(patience=99))
    execute(config)
    facts = json.loads((config.run_dir / "run.json").read_text())
    assert facts["stopped_at_step"] is None and facts["best_step"] == facts["evaluated_step"]
    plain = make_config("copy", "rope")
    execute(plain)
    facts = json.loads((plain.run_dir / "run.json").read_text())
    assert [facts[name] for name in ("stopped_at_step", "best_step", "best_validation", "evaluated_step")] == [None] * 4
    assert not (plain.run_dir / "validation.csv").exists()


def test_a_stopped_run_killed_while_it_is_evaluated_is_not_trained_again(
    make_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("copy", "nope", stopping(metric="exact_match"))
    with monkeypatch.context() as patched:
        patched.setattr("rpe_bench.run.evaluate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            execute(config)
    written = (config.run_dir / "validation.csv").read_bytes()
    monkeypatch.setattr("rpe_bench.train.loss_of", lambda *_: pytest.fail("trained"))
    execute(config)
    facts = json.loads((config.run_dir / "run.json").read_text())
    assert (facts["stopped_at_step"], facts["evaluated_step"], facts["resumed_from_step"]) == (6, 2, 6)
    assert (config.run_dir / "validation.csv").read_bytes() == written


@pytest.mark.parametrize("keep", ["best", "last"])
def test_wherever_a_run_is_cut_it_ends_with_the_same_weights(
    make_config, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    """Between two checks, at one, and at the last step: what the checks found is in the checkpoint."""
    values = {2: 3.0, 4: 2.0, 6: 2.5, 8: 2.25}
    config = make_config("copy", "t5", stopping(keep=keep))

    def found(size: int, batch: Batch, *rest: torch.Tensor) -> Scores:
        scores = summarise(size, batch, *rest)
        scores.evaluation["loss"] = values[at[0]]
        return scores

    at = [0]
    make = Checks.make

    def spied(self: Checks, checked: Checked, step: int, *rest: object) -> None:
        at[0] = step
        make(self, checked, step, *rest)

    monkeypatch.setattr(Checks, "make", spied)
    monkeypatch.setattr("rpe_bench.early_stop.summarise", found)
    whole, end, _, rows = trained(config)
    assert end.step == 8 and rows[-1].step == 8
    for cut in (1, 3, 4, 8):
        model, logged = build_model(config), []
        state = State(make_optimiser(model, config.recipe))
        kept = None

        def stop(state: State, model: Transformer = model, cut: int = cut) -> None:
            nonlocal kept
            if state.step == cut:
                kept = {"model": model.state_dict()} | state.as_dict()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(config, config.build_task(), model, CPU, logged.append, state, stop)
        model = build_model(config)
        state = State(make_optimiser(model, config.recipe))
        model.load_state_dict(kept["model"])
        state.load(kept)
        train(config, config.build_task(), model, CPU, logged.append, state)
        assert same(model.state_dict(), whole.state_dict())
        assert state.checked == end.checked and state.step == 8
        assert [(row.step, row.loss) for row in logged] == [(row.step, row.loss) for row in rows]


def test_a_checkpoint_from_before_there_was_early_stopping(make_config) -> None:
    config = make_config()
    model = build_model(config)
    state = State(make_optimiser(model, config.recipe), step=3)
    kept = state.as_dict()
    del kept["checked"]
    state.load(kept)
    assert state.step == 3 and state.checked == Checked()
