"""Where runs are written: that they can be, and what `sweep.force` and killed processes leave there."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rpe_bench.config import Config
from rpe_bench.errors import ConfigError
from rpe_bench.files import is_whole, write_text
from rpe_bench.locks import Held, clear, hold
from rpe_bench.record import put_in_place
from rpe_bench.sweep.records import is_finished, lock_of


def check_writable(results_dir: Path) -> None:
    """Raise ConfigError where runs could not be written: found before training rather than after."""
    runs = results_dir / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs) as probe:
            probe.write(bytes(2**16))  # a full disk still has room for an empty file
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise ConfigError(f"results_dir={results_dir}: cannot write there: {error.strerror}") from error


def check_places(configs: Sequence[Config]) -> None:
    """Raise ConfigError where runs could not be written or what is there could not be read: before any starts."""
    for results_dir in dict.fromkeys(config.results_dir for config in configs):
        check_writable(results_dir)
    errors = []
    for config in configs:
        try:
            (config.run_dir / "run.json").read_bytes()
        except FileNotFoundError:
            pass
        except OSError as error:  # a file where the directory should be, or the reverse; a name too long
            errors.append(f"{config.run_dir}: cannot hold the run: {error.strerror}")
    if errors:
        raise ConfigError(*errors)


def out_of_room(config: Config) -> str | None:
    """Why no run could be written where this one should have been, if so."""
    try:
        if not is_finished(config):
            check_writable(config.results_dir)
    except ConfigError as error:
        return str(error)
    return None


def mark(configs: Sequence[Config]) -> None:
    """Give each finished run that `sweep.force` wants once more a place beside it, from where it will replace it.

    A request that was cut short goes on with the places that it has left. Which were its own is known by a file that is
    there for as long as any of them is: places of another request do not stand for this one's.
    """
    for forced in not_begun(configs):
        request = _request(forced)
        for config in forced:
            if is_whole(config.run_dir):
                config.work_dir.mkdir(parents=True, exist_ok=True)  # another sweep may want it too
        if request.parent.exists():
            write_text(request, json.dumps([config.run_id for config in forced]) + "\n")


def unmark(configs: Sequence[Config]) -> None:
    """Remove what says that a request under `sweep.force` was begun, once all its places have been taken."""
    for forced in _forced(configs):
        if not any(config.work_dir.exists() for config in forced):
            _request(forced).unlink(missing_ok=True)


def _forced(configs: Sequence[Config]) -> list[list[Config]]:
    """Those under `sweep.force`, by their results directory."""
    by_place: dict[Path, list[Config]] = {}
    for config in configs:
        if config.sweep.force:
            by_place.setdefault(config.results_dir, []).append(config)
    return list(by_place.values())


def not_begun(configs: Sequence[Config]) -> list[list[Config]]:
    """The requests under `sweep.force` but for those that were cut short, and have places left."""

    def is_begun(forced: Sequence[Config]) -> bool:
        return _request(forced).exists() and any(config.work_dir.exists() for config in forced)

    return [forced for forced in _forced(configs) if not is_begun(forced)]


def _request(forced: Sequence[Config]) -> Path:
    digest = hashlib.sha256("\n".join(sorted({config.run_id for config in forced})).encode()).hexdigest()[:16]
    return forced[0].results_dir / "again" / f"{digest}.json"


def tidy(configs: Sequence[Config]) -> None:
    """Remove what killed processes have left behind: their locks, and runs that others have already replaced."""
    by_id = {config.run_id: config for config in configs}
    for place in dict.fromkeys(config.results_dir for config in configs):
        clear(place)
        for old in (place / "again").glob("*.old"):
            config = by_id.get(old.stem)
            if config is not None and config.results_dir == place:
                with contextlib.suppress(Held, OSError), hold(lock_of(config)):
                    put_in_place(config)
        for request in (place / "again").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                if not any((place / "again" / run_id).exists() for run_id in json.loads(request.read_text())):
                    request.unlink()
