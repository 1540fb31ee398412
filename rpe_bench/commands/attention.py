"""`rpe-bench attention`: where the heads of one finished run look, at each length."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.commands import look_here
from rpe_bench.errors import ConfigError

HELP = "where the heads of a finished run look, within the training length and beyond it"
DESCRIPTION = """Where the heads of a finished run look: mean attention distance and entropy of each at every length,
attention by distance, and what an offset does to a logit; as tables (CSV) and figures (PDF, SVG, PNG)."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="of a finished run, under results/runs")
    parser.add_argument("--lengths", metavar="A,B", help="by default those that the run was evaluated at")
    parser.add_argument("--examples", metavar="N", help="of each length; by default 32, or all if there are fewer")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where they go; RUN_DIR/attention by default")


def main(parsed: Namespace) -> int:
    look_here()
    lengths = None if parsed.lengths is None else [_number("--lengths", part) for part in parsed.lengths.split(",")]
    examples = None if parsed.examples is None else _number("--examples", parsed.examples)
    out = parsed.out or parsed.run_dir / "attention"
    import torch

    from rpe_bench.diagnostics.attention_maps import tables
    from rpe_bench.report.attention import text_table, write_attention
    from rpe_bench.trained import Trained

    trained = Trained.at(parsed.run_dir)
    torch.set_num_threads(trained.config.threads)
    found = tables(trained, lengths, examples)
    try:
        written = write_attention(found.frames(), out, trained.config.run_id)
    except OSError as error:
        raise ConfigError(f"--out={out}: {error.filename or out}: {error.strerror}") from error
    print(text_table(found.heads), "", *written, sep="\n")
    return 0


def _number(flag: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ConfigError(f"{flag}={text}: must be a positive whole number")
    return int(text)
