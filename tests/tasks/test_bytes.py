"""What is read is the text, what is held out is so by name, and a run knows which text it was."""

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from rpe_bench.cli import main
from rpe_bench.config import Config
from rpe_bench.errors import ConfigError
from rpe_bench.run import examples_of, execute
from rpe_bench.seeds import stream
from rpe_bench.sweep.pool import run_pool
from rpe_bench.tasks import bytes as module
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.bytes import Bytes, held_out
from rpe_bench.train import Data

TINY = {"evaluation.lengths": [8, 32], "recipe.train_length": 16, "evaluation.examples": 16}


def write(folder: Path, texts: dict[str, bytes]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty files of 40 to 330 bytes, all bytes of a file being of its own: b % 30 is its number."""
    rng = np.random.default_rng(0)
    texts = {}
    for number in range(30):
        values = rng.integers(8, size=40 + 10 * number) * 30 + number
        texts[f"{'inner/' * (number % 3)}file{number}"] = values.astype(np.uint8).tobytes()
    return write(tmp_path / "text", texts)


def files_of(part: module.Part) -> dict[str, bytes]:
    ends = part.lengths_F.cumsum()
    pieces = zip(part.names, ends - part.lengths_F, ends, strict=True)
    return {name: part.data_N[first:end].tobytes() for name, first, end in pieces}


def test_worked_example(diagram, tmp_path: Path) -> None:
    text = tmp_path / "a"
    text.write_bytes(b"import ")
    task = Bytes(str(text), held_out_path=str(text), last=2)
    rows = diagram(task)
    batch = task.held_out(stream("test"), 1, 6)
    assert batch.tokens_BT.tolist() == [rows["tokens"]] and batch.targets_BT.tolist() == [rows["targets"]]
    assert batch.ending(6, 2).targets_BT.tolist() == [[IGNORE] * 4 + [116, 32]]


# The split


def test_every_file_is_on_one_side(folder: Path) -> None:
    task = Bytes(str(folder))
    trained, held = files_of(task.training), files_of(task.held_back)
    assert trained and held and not trained.keys() & held.keys()
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert trained | held == found and len(found) == 30


def test_the_split_is_by_name_alone(folder: Path) -> None:
    """Not by where a file lies, by its contents, or by what other files there are."""
    before = set(files_of(Bytes(str(folder)).held_back))
    for number, path in enumerate(sorted(folder.rglob("file*"))):
        path.write_bytes(b"other" * (20 + number))
    (folder / "one more").write_bytes(b"text")
    moved = folder.rename(folder.with_name("moved"))
    assert set(files_of(Bytes(str(moved)).held_back)) - {"one more"} == before


def test_a_tenth_is_held_out() -> None:
    names = [f"package/module{n}.py" for n in range(5000)]
    assert abs(len(held_out(names)) / 5000 - 0.1) < 5 * (0.09 / 5000) ** 0.5
    few = held_out(names[:50])
    assert few == held_out(names) & set(names[:50]) == held_out(reversed(names[:50]))


def test_there_is_always_something_on_either_side() -> None:
    for n in range(200):
        assert len(held_out({f"a{n}", f"b{n}"})) == 1


def test_training_and_evaluation_draw_from_their_own_files(folder: Path) -> None:
    task = Bytes(str(folder))
    numbers = [
        {int(name.rpartition("file")[2]) for name in part.names if part.lengths_F[part.names.index(name)] > 50}
        for part in (task.training, task.held_back)
    ]
    for draw, allowed in zip((task.sample, task.held_out), numbers, strict=True):
        batch = draw(stream("test"), 3000, 50)
        files = torch.cat((batch.tokens_BT, batch.targets_BT), 1) % 30
        assert (files == files[:, :1]).all()  # none runs over from one file into the next
        assert set(files[:, 0].tolist()) == allowed


@pytest.mark.parametrize("last", [None, 5])
def test_a_run_trains_on_some_files_and_is_evaluated_on_the_others(make_config, folder: Path, last: int | None) -> None:
    config = make_config("bytes", "nope", TINY | {"task.path": str(folder), "task.last": last})
    task = config.build_task()
    data = Data(task, config.build_positions(), config.recipe, config.seed)
    trained = torch.cat([data.batch(step).tokens_BT[:, 0] % 30 for step in range(50)])
    tested = torch.cat([examples_of(config, task, size).tokens_BT[:, 0] % 30 for size in (8, 32)])
    names = {int(name.rpartition("file")[2]) for name in task.held_back.names}
    assert set(tested.tolist()) <= names and not set(trained.tolist()) & names
    assert len(set(trained.tolist())) > 15


def test_windows_are_uniform(tmp_path: Path) -> None:
    """Over all that lie within a file: a file has a chance in proportion to how many fit, and so has each place."""
    lengths, width = {"a": 9, "b": 4, "c": 5, "d": 30, "e": 5}, 5
    texts = {name: bytes(range(32 * n, 32 * n + size)) for n, (name, size) in enumerate(lengths.items())}
    text = write(tmp_path / "text", texts)
    task = Bytes(str(text), held_out_path=str(text))
    draws = 20_000
    batch = task.sample(stream("test"), draws, width - 1)
    assert torch.equal(batch.targets_BT, batch.tokens_BT + 1)
    counts = batch.tokens_BT[:, 0].bincount(minlength=256)
    starts = [32 * n + start for n, size in enumerate(lengths.values()) for start in range(size - width + 1)]
    assert counts.nonzero().flatten().tolist() == starts and len(starts) == 33
    p = 1 / len(starts)
    assert ((counts[starts] / draws - p).abs() < 5 * (p * (1 - p) / draws) ** 0.5).all()


def test_the_standard_library_without_its_tests() -> None:
    task = Bytes()
    names = set(task.training.names) | set(task.held_back.names)
    assert {"argparse.py", "json/decoder.py", "email/message.py"} <= names and len(names) > 300
    assert all(name.endswith(".py") and "test" not in name.split("/")[:-1] for name in names)
    assert not any(name.startswith(("site-packages/", "dist-packages/", "_sysconfigdata", "pydoc_")) for name in names)
    assert files_of(task.training)["argparse.py"] == Path(sys.modules["argparse"].__file__).read_bytes()
    assert 0.03 < task.held_back.data_N.size / task.training.data_N.size < 0.3
    for part in (task.training, task.held_back):  # no file is most of what there is
        assert part.lengths_F.max() < part.data_N.size / 8


def test_hidden_and_empty_files_are_not_used(folder: Path) -> None:
    digest = Bytes(str(folder)).digest
    write(folder, {".hidden": b"x", ".git/config": b"x", "__pycache__/a.pyc": b"x", "empty": b""})
    os.mkfifo(folder / "pipe")
    assert Bytes(str(folder)).digest == digest


# Its identity


def test_the_digest_is_of_names_and_contents(folder: Path, tmp_path: Path) -> None:
    first = Bytes(str(folder)).digest
    copy = write(tmp_path / "elsewhere", {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("f*[0-9]")})
    assert Bytes(str(copy)).digest == first
    (copy / "file0").rename(copy / "file0b")
    renamed = Bytes(str(copy)).digest
    (copy / "file0b").rename(copy / "file0")
    # A byte that moves from the end of one file to the start of the next.
    last, following = sorted(copy.glob("file*"))[:2]
    text = last.read_bytes()
    last.write_bytes(text[:-1])
    following.write_bytes(text[-1:] + following.read_bytes())
    assert len({first, renamed, Bytes(str(copy)).digest}) == 3
    swapped = Bytes(str(folder), held_out_path=str(copy)).digest
    assert swapped != Bytes(str(copy), held_out_path=str(folder)).digest


def test_one_byte_makes_another_run(make_config, folder: Path) -> None:
    keys = TINY | {"task.path": str(folder)}
    config = make_config("bytes", "rope", keys)
    assert config.task.model_dump()["digest"] == Bytes(str(folder)).digest
    same = make_config("bytes", "rope", TINY | {"task.path": f"{folder}/../text"})
    assert same.run_id == config.run_id and same.task != config.task
    for name in ("file0", sorted(held_out(str(p.relative_to(folder)) for p in folder.rglob("file*")))[0]):
        before = make_config("bytes", "rope", keys).run_id
        data = bytearray((folder / name).read_bytes())
        data[7] ^= 1
        (folder / name).write_bytes(data)
        assert make_config("bytes", "rope", keys).run_id != before
        with pytest.raises(ConfigError, match="^task=bytes: digest=.*: is of another text"):
            make_config("bytes", "rope", keys | {"task.digest": config.task.model_dump()["digest"]})


def test_options_belong_to_the_identity_places_do_not(make_config, folder: Path) -> None:
    keys = TINY | {"task.path": str(folder)}
    config = make_config("bytes", "rope", keys)
    assert make_config("bytes", "rope", keys | {"task.last": 8}).run_id != config.run_id
    assert config.identity()["task"].keys() == {"name", "target", "last", "digest"}
    assert config.as_dict()["task"]["path"] == str(folder)


def test_a_run_keeps_the_digest_and_is_refused_another_text(make_config, folder: Path) -> None:
    config = make_config("bytes", "nope", TINY | {"task.path": str(folder)})
    execute(config)
    loaded = Config.load(config.run_dir / "config.yaml")
    assert loaded == config and loaded.build_task().digest == config.task.model_dump()["digest"]
    (folder / "file0").write_bytes(b"something else")
    with pytest.raises(ValueError, match="is of another text"):
        loaded.build_task()


@pytest.mark.parametrize("by_name", [True, False])
def test_a_text_is_read_once_for_all_jobs(
    make_config, folder: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    read = []

    def spying(*arguments: object, **options: object) -> object:
        read.append(arguments[0])
        return open(*arguments, **options)

    monkeypatch.setattr(module, "open", spying, raising=False)
    keys = TINY | {"task.path": str(folder), "recipe.steps": 1}
    if not by_name:
        keys["task.held_out_path"] = str(folder / "file27")
    configs = [make_config("bytes", "nope", keys | {"seed": seed}) for seed in range(5)]
    files = 30 if by_name else 31
    assert len(read) == files

    def work(config: Config) -> None:
        execute(config)
        os.write(1, f"rpe-bench: read {len(read)} files\n".encode())

    said = []
    monkeypatch.setattr("rpe_bench.sweep.progress.Progress.say", lambda self, lines: said.extend(lines))
    run_pool(configs[:2], work)
    assert said == [f"rpe-bench: read {files} files"] * 2


def test_building_the_task_again_is_quick() -> None:
    Bytes()
    seconds = []
    for _ in range(20):
        start = time.process_time()
        Bytes()
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1e-3  # a sweep's parent does so several times for each job


# The same last tokens at every size


def test_all_sizes_end_in_the_same_tokens(make_config, folder: Path) -> None:
    keys = {"task.path": str(folder), "task.last": 5, "recipe.train_length": 16, "evaluation.lengths": [5, 16, 40, 100]}
    config = make_config("bytes", "nope", keys)
    task = config.build_task()
    batches = {size: examples_of(config, task, size) for size in (5, 16, 40, 100)}
    longest = batches[100]
    assert len(longest.tokens_BT.unique(dim=0)) > 16
    for size, batch in batches.items():
        assert batch.tokens_BT.shape == (32, size)
        assert torch.equal(batch.tokens_BT, longest.tokens_BT[:, -size:])
        assert torch.equal(batch.targets_BT[:, -5:], longest.targets_BT[:, -5:])
        assert ((batch.targets_BT != IGNORE).sum(1) == 5).all() and (batch.targets_BT[:, -5:] != IGNORE).all()
    again = make_config("bytes", "rope", keys | {"seed": 3})
    assert torch.equal(examples_of(again, task, 40).tokens_BT, batches[40].tokens_BT)


def test_by_default_every_token_counts_and_sizes_have_their_own_examples(make_config, folder: Path) -> None:
    config = make_config("bytes", "nope", TINY | {"task.path": str(folder)})
    task = config.build_task()
    short, long = (examples_of(config, task, size) for size in (8, 32))
    assert (short.targets_BT != IGNORE).all() and (long.targets_BT != IGNORE).all()
    assert not torch.equal(short.tokens_BT, long.tokens_BT[:, -8:])
    assert torch.equal(short.tokens_BT[:, 1:], short.targets_BT[:, :-1])


def test_a_run_scores_the_last_tokens_alone(make_config, folder: Path) -> None:
    config = make_config("bytes", "nope", TINY | {"task.path": str(folder), "task.last": 3})
    execute(config)
    scored = [line.split(",")[:3] for line in (config.run_dir / "positions.csv").read_text().splitlines()[1:]]
    places = [(8, 5), (8, 6), (8, 7), (32, 29), (32, 30), (32, 31)]
    assert scored == [[str(size), str(place), "16"] for size, place in places]


# What is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "{0}/none"}, "path={0}/none: there is no such file or folder"),
        ({"path": "{0}/file0"}, "path={0}/file0: is a single file, file0, and it is by their names that files are"),
        ({"path": ""}, "path: names no file or folder (null stands for the default)"),
        ({"path": "/dev/null"}, "path=/dev/null: is neither a file nor a folder"),
        ({"path": "{0}/nothing"}, "path={0}/nothing: is empty"),
        ({"path": "{0}/hollow"}, "path={0}/hollow: is empty"),
        ({"path": "{0}/broken"}, "path={0}/broken: {0}/broken/link cannot be read: No such file or directory"),
        ({"path": "{0}/file0/more"}, "path={0}/file0/more: {0}/file0/more cannot be read: Not a directory"),
        ({"path": "{0}", "held_out_path": "{0}/none"}, "held_out_path={0}/none: there is no such file or folder"),
        ({"path": "{0}", "last": 0}, "last must be at least 1, or null for all, got 0"),
        ({"path": "{0}", "digest": "0123"}, "digest=0123: is of another text: what is found has digest "),
    ],
)
def test_a_text_that_will_not_do(make_config, folder: Path, options: dict[str, object], said: str) -> None:
    write(folder, {"nothing": b"", "hollow/.hidden": b"x", "broken/a": b"text"})
    (folder / "broken" / "link").symlink_to(folder / "gone")
    if options["path"] != "{0}/broken":
        (folder / "broken" / "link").unlink()
    keys = {f"task.{k}": v.format(folder) if isinstance(v, str) else v for k, v in options.items()}
    with pytest.raises(ConfigError) as caught:
        make_config("bytes", "nope", keys)
    (line,) = caught.value.errors
    assert line.startswith(f"task=bytes: {said.format(folder)}") and "\n" not in line


def test_a_file_that_may_not_be_read(make_config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(module, "open", forbid, raising=False)
    with pytest.raises(ConfigError, match=r"^task=bytes: .*/file\d+ cannot be read: Permission denied$"):
        make_config("bytes", "nope", {"task.path": str(folder)})


def test_a_text_that_is_too_short(make_config, tmp_path: Path) -> None:
    names = [f"file{n}" for n in range(4)]
    (held,) = held_out(names)
    text = write(tmp_path / "text", {name: b"x" * (20 if name == held else 40) for name in names})
    for train_length, lengths, said in (
        (40, [8], "recipe.train_length=40: the text is too short for size 40, which takes 41 bytes of one file: the"),
        (39, [20], "evaluation.lengths=[20]: the text is too short for size 20, which takes 21 bytes of one file: the"),
    ):
        keys = {"task.path": str(text), "recipe.train_length": train_length, "evaluation.lengths": lengths}
        with pytest.raises(ConfigError) as caught:
            make_config("bytes", "nope", keys)
        assert caught.value.errors[0].startswith(said) and len(caught.value.errors) == 1
    assert f"the longest held out, {held}, has 20" in caught.value.errors[0]
    keys = {"task.path": str(text), "recipe.train_length": 16, "evaluation.multiples": [0.5, 1, 2]}
    assert make_config("bytes", "nope", keys).evaluation.lengths == [8, 16]


def test_nothing_starts_where_the_text_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "task=bytes", "task.path=none", "logger=csv"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "task=bytes: path=none: there is no such file or folder" in said
    assert not list(tmp_path.iterdir())


def test_sizes_with_too_few_targets_are_not_evaluated(make_config, folder: Path) -> None:
    keys = TINY | {"task.path": str(folder), "task.last": 9}
    with pytest.raises(ConfigError, match=r"^evaluation.lengths=\[8, 32\]: size 8 is too small: last=9 targets"):
        make_config("bytes", "nope", keys)
    keys |= {"evaluation.lengths": None, "evaluation.multiples": [0.5, 1, 2]}
    assert make_config("bytes", "nope", keys).evaluation.lengths == [16, 32]


def test_the_digest_by_hand(tmp_path: Path) -> None:
    write(tmp_path / "a", {"x": b"trained", "y": b"on"})
    write(tmp_path / "b", {"z": b"held out"})
    parts = [hashlib.sha256(text).digest() for text in (b"1 x\x007 trained1 y\x002 on", b"1 z\x008 held out")]
    task = Bytes(str(tmp_path / "a"), held_out_path=str(tmp_path / "b"))
    assert task.digest == hashlib.sha256(b"".join(parts)).hexdigest()[:16]
