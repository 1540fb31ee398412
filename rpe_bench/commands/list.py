"""`rpe-bench list`: what there is to choose from."""

import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from rpe_bench.commands import look_here
from rpe_bench.errors import ConfigError, nearest

HELP = "what there is to choose from: encodings, tasks, positions, models, recipes, experiments"
LISTS = {
    "encodings": "encoding",
    "tasks": "task",
    "positions": "positions",
    "models": "model",
    "recipes": "recipe",
    "experiments": "experiment",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", metavar="WHAT", help=f"{', '.join(LISTS)}; all of them by default")


def main(parsed: Namespace) -> int:
    look_here()
    if parsed.what and parsed.what not in LISTS:
        known = ", ".join(LISTS)
        raise ConfigError(f"{parsed.what}: cannot be listed{nearest(parsed.what, LISTS)} (choose from {known})")
    if parsed.what == "encodings":
        list_encodings()
    else:
        list_choices([parsed.what] if parsed.what else list(LISTS))
    return 0


def list_choices(names: Sequence[str]) -> None:
    """The ids of groups with a line on each."""
    from rpe_bench.catalogue import choices, summary

    for name in names:
        group = LISTS[name]
        ids = choices(group)
        width = max(map(len, ids), default=0)
        if len(names) > 1:
            print(name)
        for choice in ids:
            print(f"{'  ' * (len(names) > 1)}{choice:{width}}  {summary(group, choice)}".rstrip())


def list_encodings() -> None:
    """A table of the encodings, as wide as the terminal; tab-separated lines where it goes into a file or a pipe."""
    from rpe_bench.catalogue import choices, encodings, summary
    from rpe_bench.facts import facts, table

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    known = encodings()
    print(table([facts(name).row() for name in known], width))
    print("\nlearned by a module: D is the model's width, H its heads, K a head's width, L positions")
    for name in sorted(set(choices("encoding")) - set(known)):
        print(f"\n{name}: {summary('encoding', name)}")
