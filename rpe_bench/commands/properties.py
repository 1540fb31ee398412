"""`rpe-bench properties`: what encodings can and cannot do, measured."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.commands import look_here
from rpe_bench.errors import ConfigError

HELP = "what each encoding can and cannot do, measured"
DESCRIPTION = """What each encoding can and cannot do: a table, every cell of which is measured at run time, by building
the encoding and calling it, with the number behind each verdict; and what a rotation does, step by step."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--encodings", metavar="A,B", help="ids, or all of conf/encoding by default")
    parser.add_argument("--bidirectional", action="store_true", help="in an encoder, where a token sees later ones")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write properties.md and properties.csv there")


def main(parsed: Namespace) -> int:
    look_here()
    from rpe_bench.catalogue import encodings, unknown_choice

    known, out = encodings(), parsed.out
    chosen = list(known) if parsed.encodings is None else list(dict.fromkeys(parsed.encodings.split(",")))
    if unknown := [unknown_choice("encoding", name, known) for name in chosen if name not in known]:
        raise ConfigError(*unknown)
    if out is not None:
        # Before a minute of measuring rather than after it.
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out={out}: {error.strerror}") from error
    import torch

    from rpe_bench.catalogue import read
    from rpe_bench.components import load_class
    from rpe_bench.properties import Report

    for name in known if parsed.encodings is None else ():
        try:
            load_class("encoding", read("encoding", name)["target"])
        except ConfigError as error:  # somebody's own, of another folder: no reason to say nothing of all others
            chosen.remove(name)
            print(f"encoding={name} is left out: {error}", file=sys.stderr)
    torch.set_num_threads(1)  # many small calls, in which more threads would wait for each other
    found = Report.of(chosen, not parsed.bidirectional)
    print(found.markdown(), end="")
    if out is not None:
        try:
            written = found.write(out)
        except OSError as error:
            raise ConfigError(f"--out={out}: {error.filename or out}: {error.strerror}") from error
        print("", *written, sep="\n")
    return 0
