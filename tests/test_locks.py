"""Locks: one holder at a time, whoever dies, wherever it ran, and whatever the clocks say."""

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from rpe_bench import locks
from rpe_bench.locks import Held, Watch, hold, is_alive, look, machine, start_of

FORK = get_context("fork")


def of_another_host(path: Path, token: str = "1") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"host": "far", "pid": 1, "machine": "far", "started": 1, "token": token}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return locks.lock_path(tmp_path / "results", "run")


def child(act: Callable[[], Any]) -> Any:
    process = FORK.Process(target=act)
    process.start()
    return process


def test_a_lock_is_held_within_its_block_alone(path: Path) -> None:
    watch = Watch()
    assert look(path) is None and not watch.is_held(path)
    with hold(path):
        seen = look(path)
        assert seen is not None and seen.owner["pid"] == os.getpid() and not seen.is_dead
        assert watch.is_held(path)
        with pytest.raises(Held, match=f"process {os.getpid()} on "), hold(path):
            pytest.fail("two holders")
        assert watch.is_held(path)
    assert look(path) is None and not watch.is_held(path)
    assert list(path.parent.iterdir()) == []


def test_a_killed_holder_is_recognised_at_once(path: Path) -> None:
    def act() -> None:
        with hold(path):
            os.kill(os.getpid(), signal.SIGKILL)

    child(act).join()
    assert path.exists()
    assert not Watch().is_held(path)
    child(act).join()
    with hold(path):
        pass
    process = child(act)
    while not ((seen := look(path)) and seen.is_dead):
        time.sleep(0.01)  # not waited for: it stays behind as a zombie
    with hold(path):
        pass
    process.join()


def test_what_the_killed_have_left_is_cleared(path: Path, tmp_path: Path) -> None:
    locks.clear(tmp_path / "results")  # where there is nothing

    def act() -> None:
        with hold(path):
            os.kill(os.getpid(), signal.SIGKILL)

    child(act).join()
    far, mine = path.with_name("far"), path.with_name("mine")
    of_another_host(far)
    with hold(mine):
        locks.clear(tmp_path / "results")
        assert not path.exists() and far.exists() and mine.exists()


def test_the_lock_of_a_dead_process_is_held_by_nobody_where_it_cannot_be_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(lambda: _die_with(path)).join()

    def refuse(*_: object) -> bool:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(locks, "remove", refuse)
    assert not locks.Watch().is_held(path) and path.exists()


def _die_with(path: Path) -> None:
    with hold(path):
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_the_killed_have_left_of_a_lock_is_cleared_too(path: Path, tmp_path: Path) -> None:
    mine = {"pid": os.getpid(), "machine": machine(), "started": start_of(os.getpid())}
    contents = {
        ".dead.1": mine | {"started": 0},
        ".mine.1": mine,
        ".far.1": {"machine": "far"},
        ".old.1": {"machine": "far"},
        locks.GUARD: {},
    }
    path.parent.mkdir(parents=True)
    for name, owner in contents.items():
        (path.parent / name).write_text(json.dumps(owner))
    for name in (".old.1", locks.GUARD):
        os.utime(path.parent / name, (0, 0))
    locks.clear(tmp_path / "results")
    assert {file.name for file in path.parent.iterdir()} == {".mine.1", ".far.1", locks.GUARD}


def test_another_process_with_the_same_number_is_not_the_holder(path: Path) -> None:
    me = os.getpid()
    started = start_of(me)
    assert started is not None and is_alive(me, started)
    assert not is_alive(me, started - 1)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"host": "here", "pid": me, "machine": machine(), "started": started - 1, "token": "1"}))
    with hold(path):
        pass


def test_a_suspended_process_of_this_host_keeps_its_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        with hold(path):
            os.kill(os.getpid(), signal.SIGSTOP)

    process = child(act)
    while look(path) is None:
        time.sleep(0.01)
    now = 1000.0
    monkeypatch.setattr(locks.time, "monotonic", lambda: now)
    watch = Watch()
    assert watch.is_held(path)
    now += 2 * locks.STALE
    assert watch.is_held(path)
    process.kill()
    process.join()
    assert not watch.is_held(path)


def test_a_process_of_another_host_is_dead_when_its_heart_has_stopped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(locks.time, "monotonic", lambda: now)
    of_another_host(path)
    watch = Watch()
    assert watch.is_held(path)
    now += locks.STALE - 1
    assert watch.is_held(path)
    os.utime(path, (0, 0))  # a beat, by a clock that was set back
    now += 2
    assert watch.is_held(path)
    now += locks.STALE - 1
    assert watch.is_held(path)
    with pytest.raises(Held), hold(path):
        pytest.fail("taken from one who may live")
    now += 1
    assert not watch.is_held(path) and not path.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_lock_that_says_nothing_is_one_of_which_no_more_is_known(
    path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(content)
    watch = Watch()
    assert watch.is_held(path)
    monkeypatch.setattr(locks, "STALE", 0)
    assert not watch.is_held(path)


def test_a_lock_is_not_taken_from_one_who_has_just_taken_it(path: Path) -> None:
    of_another_host(path, "dead")
    dead = look(path)
    assert dead is not None
    of_another_host(path, "alive")
    assert not locks.remove(path, dead)
    seen = look(path)
    assert seen is not None and seen.owner["token"] == "alive"
    assert {file.name for file in path.parent.iterdir()} == {".guard", "run"}


def test_a_holder_beats_and_stops_where_it_has_lost_its_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.02)
    stopped = []
    monkeypatch.setattr(locks.os, "kill", lambda pid, number: stopped.append(number))
    with hold(path):
        first = look(path)
        deadline = time.monotonic() + 10
        while look(path) == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert look(path) != first and not stopped
        of_another_host(path)
        while not stopped and time.monotonic() < deadline:
            time.sleep(0.01)
    assert stopped == [signal.SIGKILL]  # whatever it still wrote would be in the way of the other
    assert path.exists()  # it is another's


def test_of_many_that_find_a_dead_lock_one_takes_it_at_a_time(path: Path, tmp_path: Path) -> None:
    """Each holder notes when it began and ended; no two overlap."""
    log = tmp_path / "log"

    def act() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                with hold(path):
                    with log.open("a") as file:
                        file.write("+")
                    time.sleep(0.002)
                    with log.open("a") as file:
                        file.write("-")
                    os.kill(os.getpid(), signal.SIGKILL)
            except Held:
                time.sleep(0.001)

    def killed_holder() -> None:
        with hold(path):
            os.kill(os.getpid(), signal.SIGKILL)

    child(killed_holder).join()
    processes = [child(act) for _ in range(12)]
    for process in processes:
        process.join()
    assert log.read_text() == "+-" * 12
