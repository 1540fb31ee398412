"""`rpe-bench compare`: two encodings on one task, paired by seed and by example, and what can be concluded."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.errors import ConfigError

HELP = "two encodings on a task: differences, tests, and what can be concluded"
DESCRIPTION = """The difference of two encodings at each length, paired by seed and, where runs recorded them, by
evaluation example: its 95 % interval, a permutation test with Holm's correction over the lengths, what can and cannot
be concluded, and how many seeds it would take."""
CHOICES = ("exact_match", "token_accuracy", "loss")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("a", metavar="ENCODING", help="a name, or a label as in reports: 'rope (base=500000)'")
    parser.add_argument("b", metavar="OTHER", help="the encoding that it is compared with")
    parser.add_argument(
        "results_dir", nargs="?", type=Path, default=Path("results"), metavar="RESULTS_DIR", help="results by default"
    )
    parser.add_argument("--task", help="a name or a label; may be left out where but one has both")
    parser.add_argument("--metric", choices=CHOICES, default=CHOICES[0], help=f"{CHOICES[0]} by default")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write the table as CSV and Markdown there, every pair too"
    )


def main(parsed: Namespace) -> int:
    from rpe_bench.report.comparison import compare_runs
    from rpe_bench.report.conclusions import comparison_text, write_comparison
    from rpe_bench.report.load import ReportError

    try:
        found = compare_runs(parsed.results_dir, parsed.a, parsed.b, parsed.task, parsed.metric)
    except ReportError as error:
        raise ConfigError(str(error)) from error
    written = []
    if parsed.out is not None:
        try:
            written = ["", *write_comparison(found, parsed.out)]
        except OSError as error:
            raise ConfigError(f"--out={parsed.out}: {error.filename or parsed.out}: {error.strerror}") from error
    print(comparison_text(found), *written, sep="\n")
    return 0
