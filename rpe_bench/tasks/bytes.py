"""Language modelling of the bytes of a text."""

import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NoReturn

import numpy as np

from rpe_bench.tasks.base import Batch, Task

HELD_OUT = 0.1
"""Share of the files that are held out, as nearly as the hashes of their names have it."""

NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"})
"""Folders in the standard library's that are other packages', or tests and their data; and one that is the language's
documentation as one string, which would be nearly half of all that is held out."""

Listed = tuple[str, int, int]
"""A file: its name relative to the folder, its size in bytes, and when it was changed, in ns."""


class Bytes(Task):
    """Predict the next byte of a text, at every place.

    A window is drawn uniformly from all of `size` + 1 consecutive bytes that lie within one file: the model reads the
    first `size` of them, with nothing before, and each one's target is the next. Files that are shorter have no window
    of that size, so that a larger size sees fewer files.

    The text is a folder, of which all files are used but empty and hidden ones, or by default the source of Python's
    own standard library, without tests and the manual. Its files are split by name: those whose name, relative to the
    folder, has a hash in the lowest tenth are held out (at least one file on either side), and evaluation draws from
    them alone. A single file cannot be split so; it is trained on where `held_out_path` gives another text to evaluate
    on.

    In evaluation every place of a window counts by default: those early in it have little context, at any size. With
    `last`, only so many targets at the end of a window do, and windows of all sizes evaluated end in the same bytes:
    then only the context before them differs from size to size.

    `size` is the number of tokens (size 6 here, of the text "import "; with `last` = 2, evaluation scores 116 and 32):

        index      0    1    2    3    4    5
        tokens   105  109  112  111  114  116
        targets  109  112  111  114  116   32

    A text is read once in a process, and again only where a file's size or date has changed. Its digest, over the names
    and contents of its files, is part of a run's identity; where the files lie is not.
    """

    isolates = "recency"
    default_train_length = 64
    min_size = 4
    causal = True
    places = frozenset({"path", "held_out_path"})

    def __init__(
        self,
        path: str | None = None,
        held_out_path: str | None = None,
        last: int | None = None,
        digest: str | None = None,
    ) -> None:
        """path: the text, a folder or a file; None for the source of Python's standard library.

        held_out_path: a folder or file to evaluate on, all of `path` being trained on; None for files of `path`.

        last: how many targets at the end of a window evaluation scores, at least 1; None for all.

        digest: of the text that is expected; None for whatever is found, whose digest is recorded.

        ValueError where an option is out of range, or the text is missing, empty, not readable or not the expected one.
        """
        self.last = self.checked_last(last)
        self.vocabulary = self.classes = 256
        text = _listed("path", path)
        if held_out_path is not None:
            self.training, self.held_back = _read(*text), _read(*_listed("held_out_path", held_out_path))
        elif len(text[1]) > 1:
            self.training, self.held_back = _split(*text)
        else:
            raise ValueError(
                f"path={path}: is a single file, {text[1][0][0]}, and it is by their names that files are split into"
                " training and held-out ones (give a folder of several, or a text to evaluate on as held_out_path)"
            )
        self.digest = hashlib.sha256(self.training.digest + self.held_back.digest).hexdigest()[:16]
        if digest not in (None, self.digest):
            raise ValueError(f"digest={digest}: is of another text: what is found has digest {self.digest}")

    def length(self, size: int) -> int:
        return size

    def sample(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """Draw windows of the files trained on; tokens and targets are (examples, size). ValueError as check_size."""
        self.check_size(size)
        return _batch(self.training.windows(rng, examples, size + 1))

    def held_out(self, rng: np.random.Generator, examples: int, size: int) -> Batch:
        """As `sample`, of the files held out."""
        self.check_evaluated(size)
        return _batch(self.held_back.windows(rng, examples, size + 1))

    def chance(self, size: int) -> float:
        return 1 / self.classes

    def check_size(self, size: int) -> None:
        super().check_size(size)
        self.training.check(size, "trained on")

    def check_evaluated(self, size: int) -> None:
        Task.check_size(self, size)
        self.check_last(size)
        self.held_back.check(size, "held out")

    def pinned(self) -> dict[str, object]:
        return {"digest": self.digest}


@dataclass(frozen=True)
class Part:
    """Files one after another, of F files and N bytes in all.

    data_N      uint8
    lengths_F   bytes of each
    names       of each
    digest      sha256 over the names and contents
    """

    data_N: np.ndarray
    lengths_F: np.ndarray
    names: tuple[str, ...]
    digest: bytes

    def windows(self, rng: np.random.Generator, examples: int, width: int) -> np.ndarray:
        """(examples, width) bytes: draws from all windows that lie within a file, each as likely as any other."""
        starts_F = np.maximum(self.lengths_F - width + 1, 0)
        upto_F = starts_F.cumsum()
        drawn = rng.integers(upto_F[-1], size=examples)
        file = upto_F.searchsorted(drawn, side="right")
        # The number of a window among all there are, and the bytes at the ends of earlier files where none starts.
        skipped_F = (self.lengths_F - starts_F).cumsum() - (self.lengths_F - starts_F)
        return np.lib.stride_tricks.sliding_window_view(self.data_N, width)[drawn + skipped_F[file]]

    def check(self, size: int, role: str) -> None:
        """Raise ValueError where no file has a window of `size` tokens and one more."""
        longest = int(self.lengths_F.argmax())
        if self.lengths_F[longest] <= size:
            raise ValueError(
                f"the text is too short for size {size}, which takes {size + 1} bytes of one file: the longest {role},"
                f" {self.names[longest]}, has {self.lengths_F[longest]}"
            )


def _batch(windows: np.ndarray) -> Batch:
    return Batch.from_numpy(windows[:, :-1], windows[:, 1:])


def held_out(names: Iterable[str]) -> set[str]:
    """Which of two or more files are held out, by their names alone: some, but not all."""
    hashes = {name: int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8]) / 2**64 for name in names}
    lowest = sum(value < HELD_OUT for value in hashes.values())
    return set(sorted(hashes, key=hashes.__getitem__)[: min(max(lowest, 1), len(hashes) - 1)])


@lru_cache(maxsize=16)
def _split(root: Path, files: tuple[Listed, ...]) -> tuple[Part, Part]:
    """The files trained on, and those held out."""
    chosen = held_out(name for name, _, _ in files)
    kept, held = (tuple(file for file in files if (file[0] in chosen) == held) for held in (False, True))
    return _read(root, kept), _read(root, held)


def _listed(option: str, path: str | None) -> tuple[Path, tuple[Listed, ...]]:
    """The folder of a text and its files, by name; ValueError, naming the option, where there is none to be read."""
    if path is None:
        return _standard_library()
    if not path:  # what a Path takes for the current folder
        raise ValueError(f"{option}: names no file or folder (null stands for the default)")
    try:
        root = Path(path).expanduser()
        kind = root.stat().st_mode
        if stat.S_ISREG(kind):
            root, files = root.parent, list(_regular(root.parent, [root.name]))
        elif stat.S_ISDIR(kind):
            files = list(_walk(root))
        else:
            raise ValueError(f"{option}={path}: is neither a file nor a folder")
    except FileNotFoundError as error:
        if Path(str(error.filename)) == root:
            raise ValueError(f"{option}={path}: there is no such file or folder") from error
        raise ValueError(f"{option}={path}: {error.filename} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise ValueError(f"{option}={path}: {error.filename} cannot be read: {error.strerror}") from error
    if not files:
        raise ValueError(f"{option}={path}: is empty (of a folder, hidden files are not used)")
    return root, tuple(sorted(files))


@cache
def _standard_library() -> tuple[Path, tuple[Listed, ...]]:
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        file
        for file in _walk(root, NOT_THE_LIBRARY)
        # What a build writes down about itself is not the same on two machines.
        if file[0].endswith(".py") and not file[0].startswith(("_sysconfigdata", "config-"))
    ]
    if len(files) < 2:
        raise ValueError(f"the source of Python's standard library is not in {root} (give another text as path)")
    return root, tuple(sorted(files))


def _walk(root: Path, skipped: frozenset[str] = frozenset()) -> Iterable[Listed]:
    """The files of a folder and of those in it, other than hidden and empty ones."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__")) and name not in skipped]
        inner = os.path.relpath(folder, root)
        shown = [name for name in names if not name.startswith(".")]
        yield from _regular(root, shown if inner == "." else [f"{inner}/{name}" for name in shown])


def _regular(root: Path, names: Sequence[str]) -> Iterable[Listed]:
    for name in names:
        found = os.stat(f"{root}/{name}")
        if stat.S_ISREG(found.st_mode) and found.st_size:
            yield name, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=32)
def _read(root: Path, files: tuple[Listed, ...]) -> Part:
    """The contents of files; one copy a process and all that it forks, until a size or date changes."""
    lengths_F = np.array([size for _, size, _ in files], dtype=np.int64)
    data_N = np.empty(lengths_F.sum(), dtype=np.uint8)
    digest = hashlib.sha256()
    first = 0
    for name, size, _ in files:
        content = data_N.data[first : first + size]
        try:
            with open(root / name, "rb") as file:
                whole = file.readinto(content) == size and not file.read(1)
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error
        if not whole:
            raise ValueError(f"{root / name} changed while it was read")
        # With its length, so that no two texts have the same bytes here.
        digest.update(b"%d %s\0%d " % (len(os.fsencode(name)), os.fsencode(name), size))
        digest.update(content)
        first += size
    data_N.flags.writeable = False
    return Part(data_N, lengths_F, tuple(name for name, _, _ in files), digest.digest())
