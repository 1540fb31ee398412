"""What is said of a request that cannot be carried out: one line an error."""

import difflib
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class ConfigError(ValueError):
    """The request was wrong, and nothing was started.

    Attributes:
        errors: one line each, naming what was given, what is allowed, and the key.
    """

    def __init__(self, *errors: str) -> None:
        super().__init__("\n".join(errors))
        self.errors = list(errors)

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, ...]]:
        return type(self), tuple(self.errors)


def nearest(given: str, allowed: Iterable[str], prefix: str = "") -> str:
    """``"; did you mean copy?"``, or nothing where no allowed word resembles what was given."""
    close = difflib.get_close_matches(given, list(allowed), n=1)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


@contextmanager
def blamed_on(where: str) -> Iterator[None]:
    """Make a ConfigError, headed `where`, of whatever is raised by code that a user may have written.

    Broad, since such code may raise anything, and the other jobs of a sweep are to be checked all the same. Its place
    stands in for the traceback, but for a ValueError: that is how a class refuses its parameters.
    """
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        message = next(iter(str(error).strip().splitlines()), "")
        if not isinstance(error, ValueError):
            message = f"{type(error).__name__}: {message}{_place(error)}"
        raise ConfigError(f"{where}: {message}") from error


@contextmanager
def of_extra(extra: str, *packages: str) -> Iterator[None]:
    """Imports of packages that an extra brings: a script that lacks one ends with a line on that, and status 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        print(f"error: needs {' and '.join(packages)}: pip install -e '.[{extra}]'", file=sys.stderr)
        sys.exit(2)


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):  # says so itself
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def message_of(error: BaseException) -> str:
    """An exception's message, on one line."""
    return " ".join(str(error).split())


def one_line(error: BaseException) -> str:
    """An exception's type and message, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
