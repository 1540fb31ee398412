"""What is said of a request that cannot be carried out: one line an error."""

import difflib
from collections.abc import Iterable


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


def one_line(error: BaseException) -> str:
    """An exception's type and message, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
