"""Make the figures and tables of the published experiments again, from their tracked tables alone.

    python scripts/figures.py [results/NAME ...]           # write them
    python scripts/figures.py --check [results/NAME ...]   # say what no longer follows; exit status 1 if anything

By default of every folder in results/ with such tables. Run directories are not looked at; to publish an experiment, or
to publish it anew, `rpe-bench report results/NAME --out results/NAME` writes the tables from them.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

from rpe_bench.report.build import not_following, report_on
from rpe_bench.report.load import ReportError
from rpe_bench.report.published import has_tables, read_tables

RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="results/NAME")
    parser.add_argument("--check", action="store_true", help="write nothing: say what no longer follows (status 1)")
    parsed = parser.parse_args()
    amiss = []
    try:
        for folder in parsed.folders or sorted(path for path in RESULTS.iterdir() if has_tables(path)):
            if parsed.check:
                amiss += not_following(folder)
            else:
                print(folder, len(report_on(read_tables(folder), folder).paths), "files")
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*amiss, sep="\n", end="\n" if amiss else "")
    return 1 if amiss else 0


if __name__ == "__main__":
    sys.exit(main())
