"""extend, retrofit and drop: which runs they ask for, that these do what they say, and what is refused."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy import stats

from rpe_bench import catalogue
from rpe_bench.cli import main
from rpe_bench.config import Config, Start
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.rope import RoPE
from rpe_bench.encodings.scalings import AnyScaling
from rpe_bench.extension import chosen_scalings, lengths_of, scalings
from rpe_bench.model import Transformer
from rpe_bench.run import execute
from rpe_bench.stage_table import Part, parts_of
from rpe_bench.stages import have_same_examples
from rpe_bench.sweep.attempt import attempt
from rpe_bench.trained import Trained

MakeConfig = Callable[..., Config]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(autouse=True)
def performed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs that the pool is given, which it does one after the other in this process."""
    ids: list[str] = []

    def run_pool(configs: Sequence[Config]) -> None:
        for config in configs:
            ids.append(config.run_id)
            attempt(config)

    monkeypatch.setattr("rpe_bench.stages.run_pool", run_pool)
    return ids


@pytest.fixture
def source(make_config: MakeConfig) -> Config:
    config = make_config("copy_repeated", "rope")
    execute(config)
    return config


def refused(capsys: Capture, *arguments: object) -> list[str]:
    """The lines on stderr of a request that is refused."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return [line.removeprefix("error: ") for line in err.splitlines()]


def done(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def csv_in(folder: Path) -> pd.DataFrame:
    [path] = folder.glob("*.csv")
    return pd.read_csv(path)


def runs_of(config: Config, stage: str) -> dict[str, Config]:
    """The runs of a stage, by their encodings."""
    found = [Trained.at(path).config for path in config.run_dir.parent.glob(f"*-{stage}-*")]
    return {run.encoding.name: run for run in found}


# extend


def test_scalings_are_those_of_the_files_and_of_the_classes() -> None:
    assert chosen_scalings(None) == ["plain", *scalings(), "base"]
    classes = AnyScaling.__origin__.__args__  # type: ignore[attr-defined]
    assert sorted(scalings()) == sorted(cls.__dataclass_fields__["name"].default for cls in classes)


@pytest.mark.parametrize(
    ("factor", "lengths"), [(4, [16, 32, 64]), (3, [16, 32, 48]), (1.5, [16, 24]), (2, [16, 32]), (1.05, [16, 17])]
)
def test_lengths_go_up_to_the_factor(factor: float, lengths: list[int]) -> None:
    assert lengths_of(16, factor) == lengths


def test_extend_compares_scalings_before_and_after_fine_tuning(
    source: Config, capsys: Capture, performed: list[str]
) -> None:
    command = ["extend", source.run_dir, "--factor", 3, "--scalings=plain,yarn,base", "--steps", 2, "recipe.lr=1"]
    command[-1] = "recipe.batch_size=4"  # after the options
    assert done(*command) == 0
    out = capsys.readouterr().out
    assert "mean loss in nats by length (1 seed)" in out and str(source.results_dir / "extend") in out
    rows = csv_in(source.results_dir / "extend")
    assert len(performed) == 6
    assert set(zip(rows["scaling"], rows["stage"], strict=True)) == {
        ("plain", "before"),
        *((name, stage) for name in ("plain", "yarn", "base") for stage in ("zero_shot", "fine_tuned")),
    }

    zero, tuned = runs_of(source, "zero_shot"), runs_of(source, "fine_tuned")
    for name, run in zero.items():
        assert run.recipe.train_length == 16 and run.recipe.steps == 0 and run.evaluation.lengths == [16, 32, 48]
        assert run.recipe.batch_size == 8
        after = tuned[name]
        assert after.encoding == run.encoding
        assert (after.recipe.train_length, after.recipe.steps, after.recipe.batch_size) == (48, 2, 4)
        assert after.recipe.lr == pytest.approx(source.recipe.lr / 10)
        assert after.start == run.start
    assert zero["rope_base"].encoding.base == 300_000
    assert zero["rope_yarn"].encoding.scaling["original_length"] == source.train_tokens
    # Applied, and as at the length that the source was trained at, though the run trains at another.
    first, second = (run.build_encodings()[0] for run in (zero["rope_yarn"], tuned["rope_yarn"]))
    assert isinstance(first, RoPE) and isinstance(second, RoPE)
    theta = [rope.frequencies(torch.arange(9)) for rope in (first, second)]
    plain = zero["rope"].build_encodings()[0]
    assert isinstance(plain, RoPE)
    assert torch.equal(*theta) and not torch.equal(theta[0], plain.frequencies(torch.arange(9)))

    whole = rows[rows["part"] == "whole"].set_index(["scaling", "stage", "length"])["loss"].sort_index()
    shared = [16, 32]
    assert list(whole["plain", "before"].index) == shared
    assert list(whole["plain", "zero_shot"][shared]) == list(whole["plain", "before"])
    assert whole["yarn", "zero_shot", 48] != whole["plain", "zero_shot", 48] != whole["base", "zero_shot", 48]

    performed.clear()
    before = (source.results_dir / "extend").glob("*.csv"), rows
    assert done(*command) == 0
    assert not performed and csv_in(source.results_dir / "extend").equals(before[1])


def test_parts_are_those_of_the_positions_they_name(source: Config) -> None:
    assert parts_of(64, 256) == [
        *(Part(f"trained half {n + 1}", 32 * n, 32 * n + 32) for n in range(2)),
        *(Part(f"quarter {n + 1}", 64 * n, 64 * n + 64) for n in range(4)),
    ]
    assert done("extend", source.run_dir, "--scalings=plain", "--factor=4") == 0
    rows = csv_in(source.results_dir / "extend")
    rows = rows[rows["stage"] == "zero_shot"]
    positions = pd.read_csv(runs_of(source, "zero_shot")["rope"].run_dir / "positions.csv")
    for row in rows[rows["part"] != "whole"].to_dict("records"):
        at = positions[(positions["length"] == row["length"]) & positions["position"].between(row["lo"], row["hi"] - 1)]
        assert row["tokens"] == at["tokens"].sum()
        assert row["loss"] == pytest.approx((at["loss"] * at["tokens"]).sum() / at["tokens"].sum())
        assert row["hi"] <= source.build_task().length(row["length"])
    longest = rows[rows["length"] == 64].set_index("part")
    assert longest.loc["quarter 4", "hi"] == source.build_task().length(64)
    quarters = longest[longest.index.str.startswith("quarter")]
    assert quarters["tokens"].sum() == longest.loc["whole", "tokens"]


def test_a_comparison_that_was_stopped_goes_on(
    source: Config, capsys: Capture, monkeypatch: pytest.MonkeyPatch, performed: list[str]
) -> None:
    command = ["extend", source.run_dir, "--scalings=plain,linear,ntk"]

    def stopped(configs: Sequence[Config]) -> None:
        attempt(configs[0])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("rpe_bench.stages.run_pool", stopped)
        assert done(*command) == 130
    assert not (source.results_dir / "extend").exists()
    capsys.readouterr()
    assert done(*command, "sweep.dry_run=true") == 0
    assert "3 jobs: 1 finished, 2 to run" in capsys.readouterr().out
    assert not performed and not (source.results_dir / "extend").exists()
    assert done(*command) == 0
    assert len(performed) == 2
    assert set(csv_in(source.results_dir / "extend")["scaling"]) == {"plain", "linear", "ntk"}


def test_seeds_are_averaged_and_all_of_them_are_in_the_table(make_config: MakeConfig, capsys: Capture) -> None:
    sources = [make_config("copy", "rope", {"seed": seed}) for seed in (0, 1)]
    for config in sources:
        execute(config)
    out = sources[0].results_dir / "there" / "out.csv"
    paths = [config.run_dir for config in sources]
    assert done("extend", *paths, "--scalings", "linear", "--factor", 2, "--out", out) == 0
    rows = pd.read_csv(out)
    assert set(rows["source"]) == {config.run_id for config in sources} and set(rows["seed"]) == {0, 1}
    loss = rows[(rows["stage"] == "zero_shot") & (rows["length"] == 32) & (rows["part"] == "whole")]["loss"]
    assert len(loss) == 2
    text = capsys.readouterr().out
    assert "2 seeds: mean" in text
    margin = stats.t.ppf(0.975, 1) * loss.sem()
    assert f"{loss.mean():.3f} [{loss.mean() - margin:.3f}, {loss.mean() + margin:.3f}]" in text


# retrofit and drop


def test_drop_takes_the_encoding_away_and_trains_without(source: Config, capsys: Capture) -> None:
    assert done("drop", source.run_dir, "--steps", 2) == 0
    rows = csv_in(source.results_dir / "drop")
    assert list(dict.fromkeys(zip(rows["encoding"], rows["stage"], strict=True))) == [
        ("rope", "before"),
        ("nope", "dropped"),
        ("nope", "recalibrated"),
    ]
    assert rows.groupby("stage")["length"].unique().map(list).to_dict() == dict.fromkeys(
        ("before", "dropped", "recalibrated"), [8, 16, 32]
    )
    dropped, after = (runs_of(source, stage)["nope"] for stage in ("dropped", "recalibrated"))
    weights = [Trained.at(run.run_dir).weights() for run in (source, dropped, after)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert after.start.run_id == dropped.run_id and after.start.steps == 4
    assert any(not torch.equal(weights[1][name], weights[2][name]) for name in weights[1])


def test_retrofit_goes_from_stage_to_stage(make_config: MakeConfig, performed: list[str]) -> None:
    source = make_config("copy", "learned")
    execute(source)
    command = ["retrofit", source.run_dir, "--encoding", "rope", "encoding.base=500", "--pretrain-steps", 2]
    command += ["--finetune-steps", 2, "--finetune-length", 20, "--scaling", "linear", "--factor", 2]
    assert done(*command) == 0
    stages = [run_id.split("-")[2] for run_id in performed]
    assert stages == ["changed", "pretrained", "fine_tuned", "scaled"]
    runs = [Trained.at(source.run_dir.parent / run_id).config for run_id in performed]
    assert [run.start.run_id for run in runs] == [source.run_id, *performed[:-1]]
    assert [run.recipe.train_length for run in runs] == [16, 16, 20, 20]
    assert [run.encoding.base for run in runs] == [500] * 4
    assert runs[-1].encoding.scaling == {"name": "linear", "factor": 2.0}
    assert [run.start.encoding for run in runs] == ["drawn", "kept", "kept", "kept"]
    rows = csv_in(source.results_dir / "retrofit")
    assert list(dict.fromkeys(rows["stage"])) == ["before", *stages]
    performed.clear()
    assert done(*command) == 0
    assert not performed


def test_a_source_that_was_evaluated_at_other_lengths_is_so_once_more(source: Config, performed: list[str]) -> None:
    assert done("drop", source.run_dir, "--steps", 1, "evaluation.lengths=[16,20]") == 0
    assert [run_id.split("-")[2] for run_id in performed] == ["before", "dropped", "recalibrated"]
    rows = csv_in(source.results_dir / "drop")
    assert set(rows[rows["stage"] == "before"]["length"]) == {16, 20}


@pytest.mark.parametrize("override", ["evaluation.examples=16", "evaluation.seed=3"])
def test_what_was_before_is_of_the_same_examples(source: Config, performed: list[str], override: str) -> None:
    assert done("drop", source.run_dir, "--steps", 1, override) == 0
    assert [run_id.split("-")[2] for run_id in performed] == ["before", "dropped", "recalibrated"]
    assert done("extend", source.run_dir, "--factor=2", "--scalings=plain", override) == 0
    assert set(csv_in(source.results_dir / "extend")["stage"]) == {"zero_shot"}


def test_last_tokens_are_those_of_the_longest_examples(make_config: MakeConfig) -> None:
    def evaluated(lengths: list[int], last: int | None) -> Config:
        return make_config("markov", "rope", {"task.last": last, "evaluation.lengths": lengths})

    assert have_same_examples(evaluated([16, 32], 4), evaluated([8, 32], 4))
    assert not have_same_examples(evaluated([16, 32], 4), evaluated([16], 4))
    assert have_same_examples(evaluated([16, 32], None), evaluated([16], None))


def test_what_a_source_was_trained_with_stands_in_the_way_of_nothing(make_config: MakeConfig) -> None:
    recipe = {"schedule": "wsd", "lengths": "curriculum", "optimiser": "sgd", "momentum": 0.5, "betas": None}
    source = make_config("copy_repeated", "rope", {f"recipe.{key}": value for key, value in recipe.items()})
    execute(source)
    assert done("drop", source.run_dir, "--steps", 4) == 0
    assert runs_of(source, "recalibrated")["nope"].recipe.momentum == 0.5
    others = ["recipe.schedule=constant", "recipe.lengths=fixed", "recipe.optimiser=adamw", "recipe.betas=[0.9,0.98]"]
    assert done("extend", source.run_dir, "--factor=2", "--scalings=plain", "--steps=2", *others) == 0
    tuned = runs_of(source, "fine_tuned")["rope"].recipe
    assert tuned.decay_share is tuned.min_lr_ratio is tuned.curriculum_share is tuned.curriculum_start is None
    assert tuned.momentum is None
    linear = ["recipe.schedule=linear", "recipe.min_lr_ratio=0"]
    assert done("extend", source.run_dir, "--factor=2", "--scalings=linear", "--steps=2", *linear) == 0
    tuned = runs_of(source, "fine_tuned")["rope_linear"].recipe
    assert (tuned.schedule, tuned.decay_share, tuned.momentum, tuned.lengths) == ("linear", None, 0.5, "curriculum")


def test_a_scaled_rotation_is_the_same_at_every_stage_of_a_retrofit(
    make_config: MakeConfig, performed: list[str], capsys: Capture
) -> None:
    source = make_config("copy_repeated", "alibi")
    execute(source)
    command = ["retrofit", source.run_dir, "--encoding=rope_yarn", "--pretrain-steps=1", "--finetune-steps=1"]
    assert done(*command) == 0
    runs = [Trained.at(source.run_dir.parent / run_id).config for run_id in performed]
    assert [run.recipe.train_length for run in runs] == [16, 16, 32]
    assert [run.encoding.scaling["original_length"] for run in runs] == [source.train_tokens] * 3
    scaled = make_config("copy_repeated", "rope_yarn")
    execute(scaled)
    capsys.readouterr()
    [line] = refused(capsys, "retrofit", scaled.run_dir, "--encoding=rope_yarn")
    assert line.startswith("encoding=rope_yarn: is what ")


@pytest.mark.parametrize("override", [(), ("evaluation.lengths=[16,20]",)])
def test_where_the_first_change_fails_there_is_no_table(
    source: Config, capsys: Capture, monkeypatch: pytest.MonkeyPatch, override: tuple[str, ...]
) -> None:
    def begin(model: Transformer, start: Start) -> None:
        if isinstance(model.encodings[0], NoPE):
            raise FloatingPointError("the loss is nan")

    monkeypatch.setattr("rpe_bench.run.begin", begin)
    assert done("drop", source.run_dir, "--steps", 1, *override) == 1
    assert "FloatingPointError: the loss is nan" in capsys.readouterr().err
    assert not (source.results_dir / "drop").exists()


def test_a_later_stage_that_is_wrong_is_refused_before_the_first(
    source: Config, capsys: Capture, performed: list[str]
) -> None:
    command = ["retrofit", source.run_dir, "--encoding", "alibi", "--pretrain-steps", 1, "--finetune-steps", 1]
    [line] = refused(capsys, *command, "--finetune-length", 0)
    assert "recipe.train_length=0: must be at least 1" in line
    [line] = refused(capsys, "retrofit", source.run_dir, "--encoding", "learned", *command[4:], "--finetune-length", 99)
    assert line.startswith("encoding=learned: what it learns has other shapes at stage fine_tuned than before it")
    assert not performed


# What is refused


def _of_another_seed(make_config: MakeConfig, seed: int) -> Path:
    """A run of seed 0 that begins with one of another seed."""
    first = make_config("copy_repeated", "alibi", {"seed": seed})
    execute(first)
    second = make_config("copy_repeated", "alibi", {"start.run": str(first.run_dir)})
    execute(second)
    return second.run_dir


def test_requests_that_make_no_sense_are_one_line_and_nothing_is_written(
    source: Config, make_config: MakeConfig, capsys: Capture
) -> None:
    others = {name: make_config("copy", name) for name in ("alibi", "rope", "rope_yarn")}
    for config in others.values():
        execute(config)
    alibi, rope, yarn = (config.run_dir for config in others.values())
    twice = [_of_another_seed(make_config, seed) for seed in (0, 1)]
    Path("a_file").touch()
    files = sorted(source.results_dir.rglob("*"))
    run = source.run_dir
    for arguments, said in [
        (["extend", alibi], f"{alibi}: encoding=alibi has no rotation that could be scaled (as p_rope, rope, "),
        (["extend", yarn], f"{yarn}: the rotation of encoding=rope_yarn is scaled already"),
        (["extend", run, "--factor", 1], "--factor=1: must be a number more than 1"),
        (["extend", run, "--factor", "nan"], "--factor=nan: must be a number more than 1"),
        (["extend", run, "--scalings", "plain,yran"], "--scalings=yran: no such scaling; did you mean yarn? (choose"),
        (["extend", run, "--steps", -1], "--steps=-1: must be at least 0"),
        (["extend", run, "--lr", 1], "--lr=1: is that of fine-tuning, which needs --steps"),
        (["extend", run, "--steps", 1, "--lr", 0, "--scalings=ntk"], "recipe.lr=0.0: must be more than 0"),
        (["extend", run, "--scalings", "ntk", "--base", 5], "--base=5: goes with --scalings=base"),
        (["extend", run, "--scalings", "base", "--base", -5], "base=-5"),
        (["extend", run, run], f"{run}: is the run {source.run_id}, as {run} is"),
        (["extend", run, rope], f"{rope}: is not of the same kind as {run}: task.name, task.target"),
        (["extend", "nowhere", run], "nowhere: is not the directory of a run"),
        (["extend", "recipe.lr=1"], "RUN_DIR: is missing"),
        (["extend", run, "recipe.lr=1"], "recipe.lr=1: is set by --lr"),
        (["extend", run, "seed=1"], "seed=1: is that of the run that is begun with"),
        (["extend", run, "encoding=alibi"], "encoding=alibi: is that of the run that is begun with"),
        (["extend", run, "threads=1,2"], "threads=1,2: one value at a time"),
        (["extend", run, "recipe.batch_sise=1", "--scalings=ntk", "--steps=1"], "recipe.batch_sise=1: unknown key"),
        (["extend", run, "recipe.batch_size=1"], "recipe.batch_size=1: is for stages that train, and none does"),
        (["drop", run, "--steps=1", "recipe.batch_sise=1"], "recipe.batch_sise=1: unknown key"),
        (["extend", run, "recipe.lr=[1"], "recipe.lr=[1: cannot be read"),
        (["extend", run, "--factr", 2], "unrecognized arguments: --factr"),
        (["retrofit", run, "--encoding", "rope"], f"encoding=rope: is what {run} has already"),
        (["retrofit", run, "--encoding", "rpoe"], "encoding=rpoe: no such encoding; did you mean rope?"),
        (["retrofit", run, "--encoding", "vit"], "encoding=vit: takes 2 axes of position"),
        (["retrofit", run, "--encoding", "alibi", "--scaling", "ntk"], "--scaling: encoding=alibi has no rotation"),
        (["retrofit", run, "--encoding", "alibi", "encoding.bse=1"], "encoding.bse=1: unknown key"),
        (["retrofit", run, "--encoding", "alibi", "--pretrain-steps", -1], "--pretrain-steps=-1: must be at least 0"),
        (["drop", run, "--steps", 0], "--steps=0: must be at least 1"),
        (["extend", run, "--factor", 1.01], "--factor=1.01: of the length trained on, 16, must be from 17 to"),
        (["extend", run, "--factor", 1e300], "--factor=1e+300: of the length trained on, 16, must be from 17 to"),
        (["extend", run, "--out", run / "eval.csv"], f"--out={run}/eval.csv: is in the directory of a run"),
        (["extend", run, "--out", run.parent], f"--out={run.parent}: Is a directory"),
        (["extend", run, "--out", ""], "--out=.: Is a directory"),
        (["drop", run, "--steps=1", "--out", "a_file/deeper/t.csv"], "--out=a_file/deeper/t.csv: Not a directory"),
        (["drop", run, "--steps=1", "sweep.lr_search.seeds=[1]"], "sweep.lr_search.seeds=[1]: is for sweeps of"),
        (["retrofit", alibi, "--encoding=rope", "--scaling=ntk,yarn"], "--scaling=ntk,yarn: no such scaling"),
        (["retrofit", alibi, "--encoding=rope", "--factor=2"], "--factor=2: would change nothing without --scaling"),
        (["retrofit", alibi, "--encoding=rope", "--pretrain-lr=1"], "--pretrain-lr=1: would change nothing without"),
        (["retrofit", alibi, "--encoding=rope", "--finetune-lr=1"], "--finetune-lr=1: would change nothing without"),
        (["retrofit", alibi, "--encoding=rope", "--finetune-length=9"], "--finetune-length=9: would change nothing"),
        (["drop", twice[0], twice[1], "--steps=1"], f"{twice[1]}: has seed 0, as {twice[0]} has; one run a seed"),
    ]:
        lines = refused(capsys, *arguments)
        assert any(said in line for line in lines), (arguments, lines)
    assert sorted(source.results_dir.rglob("*")) == files


def test_a_run_without_position_has_nothing_to_drop(make_config: MakeConfig, capsys: Capture) -> None:
    config = make_config("copy", "nope")
    execute(config)
    assert refused(capsys, "drop", config.run_dir, "--steps", 1)[0].startswith("encoding=nope: is what ")


def test_a_run_that_is_not_finished_is_refused(source: Config, capsys: Capture) -> None:
    record = json.loads((source.run_dir / "run.json").read_text())
    (source.run_dir / "run.json").write_text(json.dumps(record | {"status": "failed"}))
    for command in (["extend"], ["drop", "--steps", 1], ["retrofit", "--encoding", "alibi"]):
        assert refused(capsys, *command, source.run_dir) == [f"{source.run_dir}: the run is not finished, but failed"]


def test_every_scaling_of_conf_names_itself() -> None:
    for name in catalogue.encodings():
        scaling = catalogue.read("encoding", name).get("scaling")
        assert not isinstance(scaling, dict) or scaling["name"] in scalings()
