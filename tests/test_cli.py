"""The command line as a user meets it: what it answers, in how many lines, with which exit status."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import finish

from rpe_bench import catalogue
from rpe_bench.cli import main
from rpe_bench.commands import commands
from rpe_bench.config import Config, EarlyStop

TINY = ["logger=csv", "model.dim=8", "model.heads=1", "recipe.batch_size=2", "recipe.steps=2"]
TINY += ["evaluation.examples=2", "evaluation.lengths=[4]"]

COMMANDS = ", ".join(commands())

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # Hydra's --info adds one
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configs of the runs that a test asks for; they count as finished."""
    configs: list[Config] = []

    def execute(config: Config, tell: object) -> None:
        finish(config)
        configs.append(config)

    monkeypatch.setattr("rpe_bench.run.execute", execute)
    return configs


def refused(capsys: Capture, *arguments: str) -> list[str]:
    """The lines on stderr of a request that is refused."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" or "--cfg" in arguments
    assert all(line.startswith("error: ") for line in err.splitlines())
    return [line.removeprefix("error: ") for line in err.splitlines()]


# Without torch


def test_help_answers_at_once_and_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'pydantic', 'hydra', 'omegaconf', 'wandb', 'matplotlib'}"
    code = "import sys, time, rpe_bench.cli as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    code += f"print(sorted({heavy} & sys.modules.keys()), time.process_time())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *said, last = answer.stdout.splitlines()
    assert {"run", "list", "report"} <= {line.split()[0] for line in said if line}
    loaded, seconds = last.split()
    # Of the processor, since others may share the machine.
    assert loaded == "[]" and float(seconds) < 0.5


def test_the_package_and_the_lists_import_no_torch() -> None:
    code = "import sys, rpe_bench, rpe_bench.cli as cli\ncli.main(['list'])\nassert 'torch' not in sys.modules\n"
    code += "import rpe_bench; rpe_bench.make_encoding; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_list_shows_every_choice_with_a_line_on_it(capsys: Capture) -> None:
    assert main(["list", "encodings"]) == 0
    head, *lines, _, legend, blank, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "year", "changes", "learns", "options", "properties", "source"]
    assert [line.split()[0] for line in lines] == catalogue.encodings()
    assert "Su et al. 2021, arXiv 2104.09864" in next(line for line in lines if line.startswith("rope\t"))
    assert legend.startswith("learned by a module: D is ")
    assert (blank, last[:27]) == ("", "custom: a class of your own")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "RoFormer" in next(line for line in lines if line.startswith("  rope "))
    assert [line for line in lines if not line.startswith(" ")] == [
        "encodings",
        "tasks",
        "positions",
        "models",
        "recipes",
        "experiments",
    ]
    assert any("copy" in line and "[relative offset]" in line for line in lines)


def test_a_class_says_what_it_is_where_its_module_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding/mine.yaml").write_text("name: mine\ntarget: silent_module.Mine\n")
    (tmp_path / "silent_module.py").write_text('class Mine:\n    """Of\n    mine.\n\n    More."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalogue, "CONF", tmp_path)
    assert catalogue.summary("encoding", "mine") == "Of mine."


# What is wrong on the command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", f"rpe-bench: needs a command (commands: {COMMANDS})"),
        ("rnu", f"rnu: unknown command; did you mean run? (commands: {COMMANDS})"),
        ("--foo", f"--foo: unknown command (commands: {COMMANDS})"),
        (
            "list encodngs",
            "encodngs: cannot be listed; did you mean encodings?"
            " (choose from encodings, tasks, positions, models, recipes, experiments)",
        ),
        ("report --uot x", "unrecognized arguments: --uot (see rpe-bench report --help)"),
        ("run --multrun", "--multrun: unknown flag; did you mean --multirun? (flags: "),
        ("run --cfg jb", "argument --cfg/-c: invalid choice: 'jb'"),
        ("run --cfg job -m", "--multirun and --cfg: one at a time"),
        ("run --resolve", "--resolve: goes with --cfg or --help"),
        ("run --config-path=a.yaml", "--config-path=a.yaml: is a directory"),
        ("run --config-dir=nowhere", "Additional config directory"),
        ("run rope", "rope: is no override, which reads key=value"),
        ("run =rope", "=rope: is no override, which reads key=value"),
        ("run recipe.lr=[1", "recipe.lr=[1: cannot be read: "),
        ("run recipe.optimiser=lion", "recipe.optimiser=lion: must be one of adamw, adam or sgd"),
        ("run recipe.momentum=0.5", "recipe.momentum=0.5: has no part in recipe.optimiser=adamw, but in sgd"),
        ("run recipe.accumulate=3", "recipe.accumulate=3: must divide recipe.batch_size=64"),
        (
            "run recipe.lengths=curriculum recipe.curriculum_start=20",
            "recipe.curriculum_start=20: must be from 4, the smallest size of task=copy, to recipe.train_length=16",
        ),
        (
            "run recipe.early_stop.patience=2 recipe.early_stop.evry=5",
            "recipe.early_stop.evry=5: unknown key; did you mean recipe.early_stop.every?",
        ),
        ("run task=cpy", "task=cpy: no such task; did you mean copy? (choose from addition"),
        ("run task=3", "task=3: no such task (choose from addition"),
        ("run task=[copy,retrieval]", "task=[copy,retrieval]: a run has one task"),
        ("run tsk=copy", "tsk=copy: unknown key; did you mean task?"),
        ("run +seeed=3", "seeed=3: unknown key; did you mean seed?"),
        ("run encoding.bse=3", "encoding.bse=3: unknown key; did you mean encoding.base?"),
        ("run +encoding.bse=3", "encoding.bse=3: unknown key; did you mean encoding.base?"),
        ("run ++encoding.bse=3", "encoding.bse=3: unknown key; did you mean encoding.base?"),
        ("run encoding/rope=3", "encoding/rope: Could not override"),
        ("run ~encoding.bse", "Could not delete from config. 'encoding.bse' does not exist"),
        ("run ~recipe.lr", "recipe.lr: is missing"),
        ("run seed=0,1", "seed=0,1: several values make a sweep, which needs -m"),
        ("run encoding.base=1,2", "encoding.base=1,2: several values make a sweep, which needs -m"),
        ("run seed=range(3)", "seed=range(3): several values make a sweep, which needs -m"),
        ("run seed=${sed}", "seed: Interpolation key 'sed' not found"),
        ("run seed=???", "seed: Missing mandatory value"),
        ("run hydra.foo=1", "hydra.foo: Could not override 'hydra.foo': Key 'foo' not in 'HydraConf'"),
        ("run +hydra.foo=1", "hydra.foo: Could not override 'hydra.foo': Key 'foo' not in 'HydraConf'"),
        ("run -m hydra/sweeper=basic seed=0,1", "hydra/sweeper=basic: a sweep goes with hydra/sweeper=resuming"),
        ("run +experiment=demo,adjacency", "experiment=demo,adjacency: one experiment at a time"),
        ("run experiment=[demo,adjacency]", "experiment=[demo,adjacency]: one experiment at a time"),
        ("run encoding.name=foo", "encoding.name: is the id of the choice, which is made by encoding=ID (a class of"),
        ("run +recipe.name=foo", "recipe.name: is the id of the choice, which is made by recipe=ID"),
        ("run logger.project=é", """logger.project=é: cannot be read; quote it: 'logger.project="é"'"""),
        ("run --shell-completion", "--shell-completion: Expecting one subcommand"),
        (
            "run encoding=custom",
            "encoding=custom: needs encoding.target, the dotted path of your class, such as my_pack",
        ),
        ("run encoding=custom encoding.wide=3", "encoding=custom: needs encoding.target"),
        ("run encoding=custom encoding.target=nowhere.X", "encoding.target=nowhere.X: there is no module nowhere"),
        (
            "run encoding=custom encoding.target=rpe_bench.encodings.rope.RoPE encoding.bse=3",
            "encoding.bse=3: unknown key",
        ),
        (
            "run -m encoding=rope,custom encoding.target=a.B",
            "encoding.target: is one encoding's, but encoding=rope,custom",
        ),
        ("run -m encoding=glob(zz*)", "encoding=glob(zz*): matches no encoding (choose from alibi"),
        ("run -m tsk=1 seed=0,1", "all 2 jobs: tsk=1: unknown key; did you mean task?"),
        ("run +experiment=none", "experiment=none: no such experiment"),
        ("run recipe.steps=-5", "recipe.steps=-5: must be at least 1"),
        ("run results_dir=", "results_dir=: must name a directory"),
        ("run results_dir=/dev/null/x", "results_dir=/dev/null/x: cannot write there: Not a directory"),
        ("run -m hydra/launcher=poool", "hydra/launcher=poool: no such hydra/launcher; did you mean pool?"),
        ("run -m recipe.lr=interval(0,1)", "recipe.lr=interval(0,1): has no end of values"),
        ("run -m seed=range(0)", "seed=range(0): an empty range leaves nothing to run"),
        ("run -m encoding=rop", "encoding=rop: no such encoding; did you mean rope?"),
        ("run --cfg job recipe.stps=5", "recipe.stps=5: unknown key; did you mean recipe.steps?"),
    ],
)
def test_one_line_and_nothing_started(
    capsys: Capture, tmp_path: Path, executed: list[Config], arguments: str, said: str
) -> None:
    [line] = refused(capsys, *arguments.split())
    assert line.startswith(said)
    assert not executed
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_is_held_to_the_same_keys(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "bad.yaml").write_text("# @package _global_\nrecipe: {stps: 3}\n")
    (folder / "gone.yaml").write_text("# @package _global_\ndefaults: [{override /task: cpy}]\n")
    (folder / "listed.yaml").write_text(
        "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: [0, 1]}}}\n"
    )
    (folder / "word.yaml").write_text("# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {grids: [copy]}}\n")
    (folder / "broken.yaml").write_text("# @package _global_\nseed: [\n")
    flags = ["run", f"--config-dir={tmp_path / 'conf'}"]
    [line] = refused(capsys, *flags, "+experiment=bad")
    assert line.startswith("recipe.stps=3: unknown key; did you mean recipe.steps?")
    [line] = refused(capsys, *flags, "experiment=gone")
    assert line.startswith("task=cpy: no such task; did you mean copy?")
    [line] = refused(capsys, *flags, "experiment=listed")
    assert line == "seed=[0, 1]: must be an integer"
    [line] = refused(capsys, *flags, "experiment=word")
    assert line.startswith("In 'experiment/word': ValidationError raised while composing config: ")
    [line] = refused(capsys, *flags, "experiment=broken")
    assert "experiment/broken.yaml" in line
    [line] = refused(capsys, *flags, "+experiment=bd")
    assert line.startswith("experiment=bd: no such experiment; did you mean bad?")


def test_a_sweep_is_checked_as_a_whole_and_every_bad_job_listed(
    capsys: Capture, tmp_path: Path, executed: list[Config]
) -> None:
    lines = refused(capsys, "run", "-m", "encoding=rope,rop,alibi", "recipe.steps=5,-3", "hydra/launcher=basic")
    assert [line.split(": ")[:2] for line in lines] == [
        ["encoding=rope recipe.steps=-3", "recipe.steps=-3"],
        ["encoding=rop recipe.steps=5", "encoding=rop"],
        ["encoding=rop recipe.steps=-3", "encoding=rop"],
        ["encoding=alibi recipe.steps=-3", "recipe.steps=-3"],
    ]
    assert not executed
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_of_another_kind_is_not_taken_for_a_run(capsys: Capture, tmp_path: Path) -> None:
    kinds = {"sweeper": "basic", "launcher": "basic", "hydra_logging": "none", "job_logging": "none"}
    (tmp_path / "other.yaml").write_text(f"defaults: {[{f'override hydra/{k}': v} for k, v in kinds.items()]}\n")
    assert main(["run", "--config-dir=.", "--config-name=other", "-m", "seed=0,1"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "error: a sweep goes with hydra/sweeper=resuming"


def test_a_long_sweep_says_that_it_is_checked(capsys: Capture) -> None:
    assert main(["run", "-m", "recipe.steps=range(21)", "recipe.batch_size=0"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "checking 21 jobs",
        "error: all 21 jobs: recipe.batch_size=0: must be at least 1",
        "error: recipe.steps=0: must be at least 1",
    ]


@pytest.mark.parametrize(
    ("command", "to", "status", "said"),
    [
        ("list", "/dev/full", 1, "error: cannot write: No space left on device\n"),
        ("list", "closed pipe", 1, ""),
        ("report results --out /dev/null/x", "/dev/null", 2, "error: --out=/dev/null/x: "),
    ],
)
def test_what_cannot_be_written_is_no_traceback(
    capsys: Capture, tmp_path: Path, command: str, to: str, status: int, said: str
) -> None:
    if command.startswith("report"):
        assert main(["run", *TINY]) == 0
    if to == "closed pipe":
        end, stdout = os.pipe()
        os.close(end)
    else:
        stdout = os.open(to, os.O_WRONLY)
    script = [sys.executable, "-m", "rpe_bench", *command.split()]
    done = subprocess.run(script, stdout=stdout, stderr=subprocess.PIPE, text=True)
    os.close(stdout)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1 if said else 0)
    assert done.stderr.startswith(said)


# What is right


@pytest.mark.parametrize("path", ["é", "~/x", "a=b [1]", 'a"b\\', "2026", '"as it was"'])
@pytest.mark.parametrize("flags", [[], ["-m", "hydra/launcher=basic"]])
def test_a_path_needs_no_quotes(executed: list[Config], path: str, flags: list[str]) -> None:
    assert main(["run", *flags, f"results_dir={path}", "logger=csv"]) == 0
    assert [str(config.results_dir) for config in executed] == [path.strip('"') if path[0] == '"' else path]


def test_keys_of_early_stopping_may_be_set_one_by_one_or_all_at_once(executed: list[Config]) -> None:
    main(["run", "recipe.early_stop.every=7", "recipe.early_stop.patience=2", "logger=csv"])
    assert main(["run", "recipe.early_stop={every:7,patience:2}", "logger=csv"]) == 0
    [config] = executed  # the second finds its run finished
    assert config.recipe.early_stop == EarlyStop(every=7, patience=2)


def test_one_run(executed: list[Config]) -> None:
    main(["run", "task=copy", "encoding=t5", "seed=3", "logger=csv"])
    [config] = executed
    assert (config.task.name, config.encoding.name, config.seed) == ("copy", "t5", 3)
    assert config.device in ("cpu", "cuda") and config.recipe.train_length == 16


@pytest.mark.parametrize("override", ["encoding.width=3", "+encoding.width=3", "++encoding.width=3"])
def test_a_parameter_that_the_yaml_does_not_list_needs_no_plus(
    executed: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    (tmp_path / "broad.py").write_text(
        "from rpe_bench.encodings.base import Encoding\n"
        "class Broad(Encoding):\n"
        "    def __init__(self, geometry, width: int = 1):\n"
        "        super().__init__(geometry)\n"
    )
    monkeypatch.delitem(sys.modules, "broad", raising=False)
    main(["run", "encoding=nope", "encoding.target=broad.Broad", override, "logger=csv"])
    assert [config.encoding.model_dump()["width"] for config in executed] == [3]
    widths = override.replace("3", "4,5")
    main(["run", "-m", "encoding=nope", "encoding.target=broad.Broad", widths, "logger=csv", "hydra/launcher=basic"])
    assert [config.encoding.model_dump()["width"] for config in executed] == [3, 4, 5]


@pytest.fixture
def my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of a user's own in the current directory."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").write_text(
        "from rpe_bench.encodings.base import Encoding\n"
        "class MyEncoding(Encoding):\n"
        "    def __init__(self, geometry, width: int, loud: bool = False):\n"
        "        super().__init__(geometry)\n"
        "class Other(Encoding):\n"
        "    pass\n"
        "class t5(Encoding):\n"
        "    pass\n"
    )
    monkeypatch.delitem(sys.modules, "my_package", raising=False)


CUSTOM = ["run", "encoding=custom", "logger=csv"]


def test_a_class_of_ones_own_runs_under_its_own_name(executed: list[Config], my_package: None) -> None:
    mine = [*CUSTOM, "encoding.target=my_package.MyEncoding"]
    assert main([*mine, "encoding.width=3"]) == 0
    assert main([*mine, "encoding.width=4", "encoding.name=wide"]) == 0
    assert main([*CUSTOM, "encoding.target=my_package.Other"]) == 0
    assert main([*CUSTOM, "encoding.target=my_package.t5", "encoding.name=small_t5"]) == 0
    target = "my_package.MyEncoding"
    assert [config.encoding.model_dump() for config in executed] == [
        {"name": "MyEncoding", "target": target, "width": 3, "loud": False},
        {"name": "wide", "target": target, "width": 4, "loud": False},
        {"name": "Other", "target": "my_package.Other"},
        {"name": "small_t5", "target": "my_package.t5"},
    ]
    assert [config.run_id.split("-")[1] for config in executed] == ["MyEncoding", "wide", "Other", "small_t5"]


def test_classes_of_ones_own_make_a_sweep(executed: list[Config], my_package: None) -> None:
    sweep = [*CUSTOM, "-m", "encoding.target=my_package.MyEncoding", "encoding.width=3,4", "hydra/launcher=basic"]
    main(sweep)
    assert [(c.encoding.name, c.encoding.model_dump()["width"]) for c in executed] == [
        ("MyEncoding", 3),
        ("MyEncoding", 4),
    ]
    main([*CUSTOM, "-m", "encoding.target=my_package.Other,rpe_bench.encodings.nope.NoPE", "hydra/launcher=basic"])
    assert [config.encoding.name for config in executed[2:]] == ["Other", "NoPE"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("MyEncoding", ["encoding.width: is missing: encoding=MyEncoding has no default for it"]),
        ("MyEncoding encoding.width=x", ["encoding.width=x: must be an integer"]),
        (
            "MyEncoding encoding.width=3 encoding.lout=true",
            ["encoding.lout=true: unknown key; did you mean encoding.loud? (keys of encoding=MyEncoding: width, loud)"],
        ),
        ("MyEncodin", ["encoding.target=my_package.MyEncodin: my_package has no MyEncodin; did you mean MyEncoding?"]),
        ("t5", ["encoding.target=my_package.t5: has the name of encoding=t5; give it encoding.name too"]),
        ("Other encoding.name=[x]", ["encoding.name=[x]: must be text"]),
    ],
)
def test_what_is_wrong_with_a_class_of_ones_own_is_one_line(
    capsys: Capture, executed: list[Config], my_package: None, arguments: str, said: list[str]
) -> None:
    assert refused(capsys, *CUSTOM, *f"encoding.target=my_package.{arguments}".split()) == said
    assert not executed


def test_a_pattern_of_encodings_leaves_out_the_one_that_waits_for_a_class(executed: list[Config]) -> None:
    assert "custom" in catalogue.choices("encoding")
    main(["run", "-m", "encoding=glob([cope,cust*,alibi])", "logger=csv", "hydra/launcher=basic"])
    assert [config.encoding.name for config in executed] == ["alibi", "cope"]


def test_flags_may_stand_anywhere(executed: list[Config]) -> None:
    main(["run", "encoding=rope,alibi", "hydra/launcher=basic", "--multirun", "seed=0,1", "logger=csv"])
    assert [(config.encoding.name, config.seed) for config in executed] == [
        ("rope", 0),
        ("rope", 1),
        ("alibi", 0),
        ("alibi", 1),
    ]


@pytest.mark.parametrize("flag", ["-m", "--config-dir=conf"])  # the latter only repeats what is there
def test_an_experiment_may_be_a_sweep_by_itself(executed: list[Config], tmp_path: Path, flag: str) -> None:
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults: [{override /encoding: t5}, {override /logger: csv}]\n"
        "recipe: {steps: 7}\n"
        "hydra:\n"
        "  mode: MULTIRUN\n"
        "  sweeper: {params: {seed: 'range(2)', encoding.num_buckets: '8,16', task: 'copy,retrieval'}}\n"
    )
    more = ["task=copy", "hydra.sweeper.params.seed=1,2", "hydra/launcher=basic"]
    main(["run", "--config-dir=conf", flag, "+experiment=mine", *more])
    assert {config.recipe.steps for config in executed} == {7}
    assert [(c.task.name, c.seed, c.encoding.model_dump()["num_buckets"]) for c in executed] == [
        ("copy", 1, 8),
        ("copy", 1, 16),
        ("copy", 2, 8),
        ("copy", 2, 16),
    ]


def test_a_sweep_may_be_a_union_of_grids(executed: list[Config], tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# @package _global_\n"
        "hydra:\n"
        "  mode: MULTIRUN\n"
        "  sweeper:\n"
        "    params: {seed: '0,1', recipe.steps: 5}\n"
        "    grids:\n"
        "    - {task: copy, recipe.steps: 9}\n"
        "    - {task: retrieval, encoding: 't5,alibi', evaluation.lengths: [8, 9]}\n"
    )
    main(["run", "--config-dir=conf", "experiment=mine", "logger=csv", "hydra/launcher=basic", "recipe.batch_size=7"])
    assert [(c.task.name, c.encoding.name, c.seed, c.recipe.steps) for c in executed] == [
        ("copy", "rope", 0, 9),
        ("copy", "rope", 1, 9),
        ("retrieval", "t5", 0, 5),
        ("retrieval", "alibi", 0, 5),
        ("retrieval", "t5", 1, 5),
        ("retrieval", "alibi", 1, 5),
    ]
    assert {config.recipe.batch_size for config in executed} == {7}
    assert executed[-1].evaluation.lengths == [8, 9]


def test_hydras_own_flags(capsys: Capture, tmp_path: Path, executed: list[Config]) -> None:
    assert main(["run", "--cfg", "job", "task=retrieval"]) == 0
    assert "name: retrieval" in capsys.readouterr().out
    assert main(["run", "--cfg", "job", "--package", "recipe", "recipe.steps=7"]) == 0
    assert "steps: 7" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["run", "--help"])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "encoding: alibi, " in shown and "batch_size: 64" in shown
    assert main(["run", "--info", "searchpath"]) == 0
    assert not executed
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_is_one_line_and_status_1(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: Config, tell: object) -> None:
        raise ArithmeticError("lost\ncount")

    monkeypatch.setattr("rpe_bench.run.execute", fail)
    assert main(["run", *TINY]) == 1
    out, err = capsys.readouterr()
    [line] = err.splitlines()
    assert "ArithmeticError: lost count (see results/runs/" in line
    [record] = tmp_path.glob("results/runs/*/run.json")
    assert "ArithmeticError" in record.read_text() and "Traceback" in record.read_text()


def test_an_interrupted_run_is_status_130(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(config: Config, tell: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rpe_bench.run.execute", interrupt)
    assert main(["run", *TINY]) == 130
    assert capsys.readouterr().err.endswith("interrupted; the same command takes it up again\n")


def test_report_says_what_it_wrote_and_that_there_is_nothing_to_report(capsys: Capture) -> None:
    [line] = refused(capsys, "report", "nowhere")
    assert "nowhere" in line
    assert main(["run", *TINY]) == 0
    capsys.readouterr()
    assert main(["report", "results", "--out", "out"]) == 0
    out = capsys.readouterr().out
    assert "copy" in out
    written = [Path(line) for line in out.splitlines() if line.startswith("out/")]
    assert written and all(path.is_file() for path in written)


def test_a_run_for_real(tmp_path: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rpe_bench", "run", "task=copy", *TINY]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    first = run()
    assert (first.returncode, first.stderr) == (0, "")
    [evaluation] = tmp_path.glob("results/runs/*/eval.csv")
    written = evaluation.stat().st_mtime_ns, evaluation.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    again = run()
    assert again.returncode == 0 and "finished already" in again.stdout
    assert (evaluation.stat().st_mtime_ns, evaluation.read_bytes()) == written


def test_ctrl_c_while_a_run_is_composed_ends_it_whatever_is_being_imported(tmp_path: Path) -> None:
    code = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    pass\n"
    (tmp_path / "absorbing.py").write_text(code + "from rpe_bench.encodings.nope import *\n")
    arguments = ["encoding=custom", "encoding.target=absorbing.NoPE", "results_dir=there"]
    done = subprocess.run(
        [sys.executable, "-m", "rpe_bench", "run", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not (tmp_path / "there").exists()
