"""The whole measurement, and how it goes on."""

from collections import Counter
from pathlib import Path

import pytest

from rpe_bench import catalogue
from rpe_bench.profiling import measure as module
from rpe_bench.profiling.account import Account
from rpe_bench.profiling.cells import Cell, Subject
from rpe_bench.profiling.first import First, Limits
from rpe_bench.profiling.measure import Request, measure


def request_of(
    config, names: str, lengths: dict[str, list[int]], rounds: int = 3, limits: Limits | None = None
) -> Request:
    subjects = [Subject(catalogue.read("encoding", name)) for name in names.split(",")]
    return Request(config, subjects, lengths, rounds, limits or Limits(20, 512))


@pytest.fixture
def config(make_config):
    return make_config("copy", "nope", {"recipe.batch_size": 2})


@pytest.fixture
def no_fork(monkeypatch: pytest.MonkeyPatch) -> dict[Cell, First]:
    """First calls that are not made, and what is said of them instead."""
    known: dict[Cell, First] = {}
    monkeypatch.setattr(
        module, "first_call", lambda config, subject, cell, limits: known.get(cell, First(0.01, 0, 1, 1))
    )
    return known


def test_every_encoding_takes_its_turn_once_a_round(config, tmp_path: Path) -> None:
    request = request_of(config, "nope,rope,t5,learned", {"training": [8], "evaluation": [8, 16]}, 5)
    account = Account(tmp_path, request.identity())
    measure(request, account)
    assert Account(tmp_path, request.identity()).finished
    assert len(account.cells) == 12 and not any(cell["problem"] for cell in account.cells.values())
    assert all(cell["peak_bytes"] >= 0 and cell["seconds"] > 0 for cell in account.cells.values())
    assert Counter((t["kind"], t["length"], t["round"]) for t in account.times) == {
        (kind, length, turn): 4
        for kind, length in (("training", 8), ("evaluation", 8), ("evaluation", 16))
        for turn in range(5)
    }
    orders = {tuple(t["encoding"] for t in account.times[4 * n : 4 * n + 4]) for n in range(15)}
    assert len(orders) > 3 and all(sorted(order) == ["learned", "nope", "rope", "t5"] for order in orders)
    assert all(t["seconds"] > 0 for t in account.times)


def test_a_profile_that_was_cut_short_goes_on(config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(config, "nope,t5", {"training": [8, 12]}, 4)
    add_round = Account.add_round

    def interrupted(account: Account, rows: list) -> None:
        if len(account.times) == 10:
            raise KeyboardInterrupt
        add_round(account, rows)

    monkeypatch.setattr(Account, "add_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(request, Account(tmp_path, request.identity()))
    monkeypatch.setattr(Account, "add_round", add_round)
    account = Account(tmp_path, request.identity())
    before, cells = list(account.times), dict(account.cells)
    assert len(before) == 10 and not account.finished
    monkeypatch.setattr(module, "first_call", None)  # all are known
    measure(request, account)
    assert account.times[:10] == before and account.cells == cells
    assert Counter((t["length"], t["round"]) for t in account.times) == {(L, n): 2 for L in (8, 12) for n in range(4)}


def test_what_takes_long_is_given_fewer_rounds_or_left_out(config, tmp_path: Path, no_fork: dict[Cell, First]) -> None:
    no_fork[Cell("training", 8, "rope")] = First(4.9, 0, 1, 1)
    no_fork[Cell("training", 8, "t5")] = First(6.9, 0, 1, 1)
    request = request_of(config, "nope,rope,t5", {"training": [8]}, 9)
    account = Account(tmp_path, request.identity())
    measure(request, account)
    assert Counter(t["encoding"] for t in account.times) == {"nope": 9, "rope": 4}
    problems = {cell.encoding: row["problem"] for cell, row in account.cells.items()}
    assert problems == {"nope": "", "rope": "", "t5": "a call takes 6.9 s, too long for 3 in 20 s"}


def test_what_is_refused_or_too_large_is_named_and_not_tried_longer(
    config, tmp_path: Path, no_fork: dict[Cell, First]
) -> None:
    no_fork[Cell("training", 8, "t5")] = First(problem="takes more than 512 MiB")
    request = request_of(config, "nope,t5", {"training": [8, 12], "evaluation": [12]})
    account = Account(tmp_path, request.identity())
    measure(request, account)
    problems = {cell: row["problem"] for cell, row in account.cells.items() if cell.encoding == "t5"}
    assert list(problems.values()) == ["takes more than 512 MiB", "at 8: takes more than 512 MiB", ""]
    assert {t["kind"] for t in account.times if t["encoding"] == "t5"} == {"evaluation"}


def test_without_a_baseline_nothing_is_timed(config, tmp_path: Path, no_fork: dict[Cell, First]) -> None:
    no_fork[Cell("training", 8, "nope")] = First(30.0, 0, 1, 1)
    request = request_of(config, "nope,rope", {"training": [8]})
    account = Account(tmp_path, request.identity())
    measure(request, account)
    assert (
        not account.times and account.cells[Cell("training", 8, "rope")]["problem"] == "is not timed, since nope is not"
    )


def test_a_request_says_what_its_numbers_depend_on(config) -> None:
    base = request_of(config, "nope,rope", {"training": [8]})
    same = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"examples": 1})})
    assert request_of(same, "nope,rope", {"training": [8]}).identity() == base.identity()
    wider = config.model_copy(update={"model": config.model.model_copy(update={"dim": 32})})
    others = [
        request_of(wider, "nope,rope", {"training": [8]}),
        request_of(config.model_copy(update={"threads": 2}), "nope,rope", {"training": [8]}),
        request_of(config, "nope,alibi", {"training": [8]}),
        request_of(config, "nope,rope", {"training": [9]}),
        request_of(config, "nope,rope", {"training": [8]}, 4),
    ]
    identities = [repr(request.identity()) for request in (base, *others)]
    assert len(set(identities)) == len(identities)
    assert "16 wide" not in base.about() and "width 16" in base.about() and "at most 3 rounds" in base.about()
