"""`rpe-bench report`: figures, tables and a dashboard of the runs in a directory."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.errors import ConfigError

HELP = "figures and tables of finished runs, and a page to explore them"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "results_dir", nargs="?", type=Path, default=Path("results"), metavar="RESULTS_DIR", help="results by default"
    )
    parser.add_argument(
        "--highlight",
        default="",
        metavar="A,B",
        help="encodings, or labels of the legend, that are drawn in colour; the others are then grey",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where they go; RESULTS_DIR/report by default")


def main(parsed: Namespace) -> int:
    from rpe_bench.report import ReportError, write_report

    out = parsed.out or parsed.results_dir / "report"
    highlight = [name.strip() for name in parsed.highlight.split(",") if name.strip()]
    try:
        written = write_report(parsed.results_dir, out, highlight)
    except ReportError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"--out={out}: {error.filename or out}: {error.strerror}") from error
    print(written.text, "", *written.paths, sep="\n")
    return 0
