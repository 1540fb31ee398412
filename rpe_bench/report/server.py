"""The page of `rpe_bench.report.dashboard`, kept current over a directory whose runs go on, for this machine alone."""

import os
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rpe_bench.report.dashboard import as_json, dashboard_data, page
from rpe_bench.report.load import ReportError, load_results, stamps

ADDRESS = "127.0.0.1"

REST = 4
"""Looking at the runs again waits for this many times as long as it took the last time: the cores are for the sweep."""

ATTENTION = "attention/attention.csv"
"""What changes in a run that has its attention looked at."""


class Watched:
    """The data of a results directory, read again when its runs have changed and someone asks."""

    def __init__(self, results_dir: Path) -> None:
        self._results_dir = results_dir
        self._lock = threading.Lock()
        self._seen: object = None
        self._data: dict[str, Any] = {}
        self._version = 0
        self._ready_at = 0.0

    def current(self) -> tuple[dict[str, Any], str]:
        """The data and their version. ReportError where there are no runs any more."""
        with self._lock:
            if time.monotonic() >= self._ready_at:
                self._look()
            return self._data, str(self._version)

    def _look(self) -> None:
        started = time.monotonic()
        seen = _state(self._results_dir)
        if not self._version or seen != self._seen:
            # What is written while this reads makes another state, which is seen the next time.
            self._data = dashboard_data(load_results(self._results_dir), self._results_dir)
            self._seen, self._version = seen, self._version + 1
        self._ready_at = time.monotonic() + REST * (time.monotonic() - started)


def _state(results_dir: Path) -> tuple[int, dict[str, tuple[str, int]]]:
    """How long the ledger is, which says what is missing; what the files of each run are, and when its attention was
    last looked at."""
    try:
        found = stamps(results_dir)
    except OSError as error:
        raise ReportError(f"no runs in {results_dir}: {error.strerror}") from error
    runs = results_dir / "runs"
    ledger = results_dir / "ledger.jsonl"
    length = ledger.stat().st_size if ledger.exists() else 0
    return length, {name: (files, _written(f"{runs}/{name}/{ATTENTION}")) for name, files in found.items()}


def _written(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


class Server(ThreadingHTTPServer):
    """Serves `/`, the page, and `/data.json?after=VERSION`: newer data, or 204 where there are none.

    port: 0 for any that is free. OSError where it can't be had; ReportError where there are no runs.
    """

    daemon_threads = True

    def __init__(self, results_dir: Path, port: int) -> None:
        self.watched = Watched(results_dir)
        self.watched.current()
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        # Another site's name may be made to lead here, so that a page of its own could read what this says.
        if self.headers.get("Host", "").partition(":")[0] not in (ADDRESS, "localhost"):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", f"ask {self.server.url}\n")
        asked = urlsplit(self.path)
        if asked.path not in ("/", "/data.json"):
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is / and /data.json\n")
        try:
            data, version = self.server.watched.current()
        except ReportError as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n")
        if asked.path == "/":
            self._answer(HTTPStatus.OK, "text/html", page(data, version))
        elif parse_qs(asked.query).get("after") == [version]:
            self._answer(HTTPStatus.NO_CONTENT, "application/json", "")
        else:
            self._answer(HTTPStatus.OK, "application/json", as_json(data), version)

    def _answer(self, status: HTTPStatus, kind: str, text: str, version: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if version:
            self.send_header("X-Version", version)
        self.end_headers()
        try:
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the page was closed or reloaded meanwhile

    def log_message(self, format: str, *args: Any) -> None:
        """The page asks every few seconds, which is no news."""
