"""What a W&B server is asked without a run: who asks, and whether it has a run whole.

wandb's own client says neither: it takes rows that the server has refused for uploaded. The two queries are among those
that it sends itself.
"""

import base64
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import wandb

SECONDS = 10.0
"""How long one answer is waited for."""


def confine(folder: Path) -> None:
    """Keep wandb to a folder and from reporting on itself, which it takes from the environment alone.

    Its reports use the network even offline, and delay the exit by up to 12 s without one; what it stages for uploading
    would pile up in the home directory. To be called before anything of wandb's is.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_DATA_DIR", str(folder))
    os.environ.setdefault("WANDB_CACHE_DIR", str(folder / "cache"))


def log_in() -> bool:
    """Whether wandb has a key; to be called before what would otherwise ask for one on the terminal."""
    wandb.setup(wandb.Settings(mode="online", silent=True))
    return wandb.login(prompt=False, verify=False)


class ServerError(Exception):
    """The server cannot be reached, or does not know the key; one line."""


@dataclass(frozen=True)
class Server:
    """url: as in WANDB_BASE_URL, without a slash at its end."""

    url: str
    key: str

    @classmethod
    def current(cls) -> Self:
        """The one that wandb is logged in to, or is by its settings. ServerError where there is no key for it."""
        if not log_in():
            raise ServerError("no API key")
        settings = wandb.setup().settings
        if not settings.api_key:  # but an identity token
            raise ServerError("no API key")
        return cls(settings.base_url.rstrip("/"), settings.api_key)

    def place(self, entity: str, project: str) -> str:
        """The name of a project among all servers'."""
        return f"{self.url}/{entity}/{project}"

    def entity(self) -> str:
        """Whose key it is. ServerError where it is nobody's."""
        viewer = self._ask("query Viewer { viewer { entity } }").get("viewer")
        if not viewer:
            raise ServerError(f"{self.url} does not know the API key")
        return str(viewer["entity"])

    def holds(self, entity: str, project: str, run_id: str, record: Mapping[str, Any], wait: float = 0.0) -> bool:
        """Whether it has all of a run as its run.json says that it ended; asked again for up to `wait` seconds.

        Whether it has ended is the last that a server is told of a run.
        """
        query = """query Run($project: String!, $entity: String!, $name: String!) {
            project(name: $project, entityName: $entity) { run(name: $name) { state summaryMetrics } }
        }"""
        end = time.monotonic() + wait
        while True:
            answer = self._ask(query, entity=entity, project=project, name=run_id)
            run = (answer.get("project") or {}).get("run") or {}
            summary = json.loads(run.get("summaryMetrics") or "{}")
            if run.get("state") in ("finished", "failed") and summary.get("finished") == record.get("finished"):
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(0.2)

    def _ask(self, query: str, **variables: str) -> dict[str, Any]:
        """The data of an answer, without what the server has refused of it."""
        login = base64.b64encode(f"api:{self.key}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}"}
        body = json.dumps({"query": query, "variables": variables}).encode()
        try:
            request = urllib.request.Request(f"{self.url}/graphql", body, headers)
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            problem = (
                "does not know the API key" if error.code in (401, 403) else f"answers {error.code} {error.reason}"
            )
            raise ServerError(f"{self.url} {problem}") from error
        except OSError as error:
            raise ServerError(f"{self.url} cannot be reached: {getattr(error, 'reason', error)}") from error
        except ValueError as error:
            raise ServerError(f"{self.url} does not answer as a W&B server does") from error
        return answer.get("data") or {}
