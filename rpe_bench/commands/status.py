"""`rpe-bench status`: how far the runs in a directory are, by task and encoding."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.errors import ConfigError

HELP = "how far the runs of a results directory are, also while a sweep goes on"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "results_dir", nargs="?", type=Path, default=Path("results"), metavar="RESULTS_DIR", help="results by default"
    )


def main(parsed: Namespace) -> int:
    """The runs of the directory and, as long as some are not finished, the trials of a search for learning rates."""
    from rpe_bench.schema import SEARCH
    from rpe_bench.status import Status

    trials = parsed.results_dir / SEARCH
    searched = Status.of(trials) if (trials / "runs").is_dir() else None
    if searched is not None and set(searched.states.values()) - {"finished"}:
        print(f"trials of learning rates, in {trials}:", searched, sep="\n")
        if not (parsed.results_dir / "runs").exists():  # before the first choice
            return 0
        print()
    try:
        print(Status.of(parsed.results_dir))
    except (FileNotFoundError, NotADirectoryError) as error:
        problem = f"there is no directory {parsed.results_dir / 'runs'}"
        raise ConfigError(f"no runs in {parsed.results_dir}: {problem}") from error
    return 0
