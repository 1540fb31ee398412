"""`rpe-bench serve`: the dashboard of a results directory, current while its runs go on."""

import errno
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.errors import ConfigError

HELP = "the dashboard of a results directory in a browser, current while a sweep goes on"
PORT = 8642


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "results_dir", nargs="?", type=Path, default=Path("results"), metavar="RESULTS_DIR", help="results by default"
    )
    parser.add_argument("--port", default=str(PORT), metavar="N", help=f"on 127.0.0.1; {PORT} by default, 0 for any")


def main(parsed: Namespace) -> int:
    port = _port(parsed.port)
    from rpe_bench.report import ReportError
    from rpe_bench.report.server import Server

    try:
        server = Server(parsed.results_dir, port)
    except ReportError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        hint = " (0: any free one)" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"--port={port}: {error.strerror}: choose another{hint}") from error
    with server:
        print(f"{server.url} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ConfigError(f"--port={text}: must be a whole number from 0 to 65535")
    return int(text)
