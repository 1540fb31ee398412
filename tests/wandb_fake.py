"""A W&B server of a hundred lines, on 127.0.0.1: enough to be sent runs, and to fail in every way a real one can."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Rule = Callable[[int, str], tuple[int, float]]
"""(number of the request, what it asks for) -> status of the answer, and the seconds until then; HUNG_UP is none."""

HUNG_UP = 0
KEY = "0" * 40
"""The one that it knows."""


def well(number: int, what: str) -> tuple[int, float]:
    return 200, 0.0


class Fake(ThreadingHTTPServer):
    """Attributes: runs, what it was told by id, with the files of each committed artifact by its type; rule, how it
    answers; requests, what it was asked for; unknown, what of that it has no answer for."""

    daemon_threads = True
    request_queue_size = 128  # or the kernel lets some of many connections at once wait for a second

    def __init__(self, rule: Rule = well) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rule = rule
        self.requests: list[str] = []
        self.unknown: set[str] = set()
        self.runs: dict[str, dict[str, Any]] = {}
        self.artifacts: list[dict[str, Any]] = []
        self.closed = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that give up are what is tested."""

    def graphql(self, query: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """The data of an answer; None for what it does not know."""
        if "UpsertBucket" in query:
            run = self.runs.setdefault(given["name"], {"summary": {}, "history": [], "media": {}, "artifacts": {}})
            told = {key: given[key] for key in ("groupName", "jobType", "tags", "config") if given.get(key)}
            run |= {"state": "running"} | told
            project = {"name": given["project"], "entity": {"name": given["entity"] or "me"}}
            bucket = {"id": "1", "name": given["name"], "displayName": given["name"], "config": "{}"}
            return {"upsertBucket": {"bucket": {**bucket, "project": project}, "inserted": True}}
        if "query Viewer" in query:
            return {"viewer": {"id": "1", "entity": "me", "flags": "{}", "teams": {"edges": []}}}
        if "query Run(" in query:
            run = self.runs.get(given["name"])
            found = run and {"state": run["state"], "summaryMetrics": json.dumps(run["summary"])}
            return {"project": {"run": found}}
        if "CreateArtifact " in query:
            told = given["input"]
            self.artifacts.append({"run": told["runName"], "type": told["artifactTypeName"], "files": {}})
            known = {"id": str(len(self.artifacts) - 1), "state": "PENDING", "artifactSequence": {"id": "1"}}
            return {"createArtifact": {"artifact": known}}
        if "ArtifactManifest" in query:
            name = "createArtifactManifest" if "CreateArtifactManifest" in query else "updateArtifactManifest"
            return {name: {"artifactManifest": {"id": "1", "file": self.upload("manifest", "manifest")}}}
        if "CreateArtifactFiles" in query:
            files = given["input"]["artifactFiles"]
            nodes = [self.upload(f"artifact/{one['artifactID']}/{one['name']}", one["name"]) for one in files]
            nodes = [{**node, "artifact": {"id": one["artifactID"]}} for node, one in zip(nodes, files, strict=True)]
            return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}
        if "CommitArtifact" in query:
            artifact = self.artifacts[int(given["artifactID"])]
            self.runs[artifact["run"]]["artifacts"].setdefault(artifact["type"], []).append(artifact["files"])
            return {"commitArtifact": {"artifact": {"id": given["artifactID"], "digest": "0"}}}
        if "CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/media/{given['run']}/{name}"} for name in given["files"]]
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
        return None

    def upload(self, path: str, name: str) -> dict[str, Any]:
        """Where a file is to be put."""
        known = {"id": "1", "name": name, "displayName": name, "storagePath": name}
        return {**known, "uploadUrl": f"{self.url}/{path}", "uploadHeaders": [], "uploadMultipartUrls": None}

    def stream(self, run_id: str, told: dict[str, Any]) -> None:
        for name, part in told.get("files", {}).items():
            rows = [json.loads(line) for line in part["content"]]
            if name == "wandb-summary.json":
                self.runs[run_id]["summary"] = rows[-1]
            elif name == "wandb-history.jsonl":
                self.runs[run_id]["history"][part["offset"] :] = rows
        if told.get("complete"):
            self.runs[run_id]["state"] = "finished" if told["exitcode"] == 0 else "failed"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        told = json.loads(body) if self.path.endswith(("/graphql", "/file_stream")) else {}
        what = " ".join(told["query"].split("(")[0].split()) if self.path == "/graphql" else self.path
        self.server.requests.append(what)
        status, seconds = self.server.rule(len(self.server.requests), what)
        if (seconds and self.server.closed.wait(seconds)) or status == HUNG_UP:
            self.close_connection = True
            return
        login = base64.b64encode(f"api:{KEY}".encode()).decode()
        if told and self.headers.get("Authorization") != f"Basic {login}":
            status = 401
        answer: dict[str, Any] = {}
        if status == 200 and self.path == "/graphql":
            data = self.server.graphql(told["query"], told.get("variables") or {})
            answer = {"data": data} if data else {"data": None, "errors": [{"message": "not known here"}]}
            if not data:
                self.server.unknown.add(what)
        elif status == 200 and self.path.endswith("/file_stream"):
            self.server.stream(self.path.split("/")[-2], told)
        elif status == 200 and self.path.startswith("/artifact/"):
            _, _, number, name = self.path.split("/", 3)
            self.server.artifacts[int(number)]["files"][name] = body
        elif status == 200 and self.path.startswith("/media/"):
            _, _, run_id, name = self.path.split("/", 3)
            self.server.runs[run_id]["media"][name] = body
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_GET = do_POST

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serving(rule: Rule = well) -> Iterator[Fake]:
    server = Fake(rule)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()
