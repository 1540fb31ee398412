"""The command line: `rpe-bench COMMAND`, by the files of rpe_bench/commands.

Imports nothing heavy before a command needs it: `rpe-bench --help` answers at once.

Exit status: 0 all well; 1 a run failed; 2 the request was wrong, and nothing was started; 130 interrupted.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from rpe_bench.commands import commands, run
from rpe_bench.errors import ConfigError, nearest


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line, by default this process's; returns the exit status."""
    try:
        try:
            return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # or the interpreter would find at its exit that nothing can be written
    except OSError as error:
        # A write to stdout names no file. A reader that has seen enough, such as head, is no news.
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno != errno.EPIPE:
            print(f"error: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    except ConfigError as error:
        print(*(f"error: {line}" for line in error.errors), sep="\n", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _dispatch(arguments: list[str]) -> int:
    # Hydra has its own parser for everything after `run`, --help included.
    if arguments[:1] == ["run"]:
        return run.main(arguments[1:])
    known = commands()
    if not arguments or arguments[0] not in (*known, "-h", "--help"):
        given = arguments[0] if arguments else "rpe-bench"
        problem = "unknown command" if arguments else "needs a command"
        raise ConfigError(f"{given}: {problem}{nearest(given, known)} (commands: {', '.join(known)})")
    parser = Parser("rpe-bench", description="Small Transformers under any positional encoding: how far does each go?")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in known.items():
        description = getattr(command, "DESCRIPTION", None)
        subparser = subparsers.add_parser(name, help=command.HELP, description=description, add_help=command is not run)
        if command is not run:
            command.add_arguments(subparser)
    if arguments[0] not in known:  # --help
        parser.parse_args(arguments)
    # A parser of its own, since options may stand between what else a command takes.
    name = arguments[0]
    return int(known[name].main(subparsers.choices[name].parse_intermixed_args(arguments[1:])))
