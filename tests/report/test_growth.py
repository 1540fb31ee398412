"""How costs grow, from costs whose growth is known."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import pytest

from rpe_bench.report.growth import claims, growth, learned, order_of, sentences, summary

LENGTHS = (64, 128, 256, 512, 1024)
MIB = 2**20

Cost = Callable[[int], float]


def nothing(length: int) -> float:
    return 0.0


ENCODINGS: dict[str, tuple[str, Cost, Cost]] = {
    # name: place, seconds and MiB beyond those of nope
    "t5": ("distance bias", lambda L: 2e-8 * L**2 + 2e-5 * L, lambda L: L**2 / 4096),
    "alibi": ("distance bias", lambda L: 4e-5 * L, lambda L: L / 16),
    "rope": ("rotation", lambda L: 1e-5 * L, nothing),
    "learned": ("embedding", nothing, lambda L: L / 16),
}
"""Biases are slower than rotations, and these than embeddings; memory is as it is claimed to be."""


def measured(
    encodings: Mapping[str, tuple[str, Cost, Cost]],
    rounds: int = 9,
    noise: float = 0.0,
    lengths: tuple[int, ...] = LENGTHS,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """cells and times of `nope`, 0.1 ms a token and 8 MiB + L / 8, and of encodings that add to it."""
    rng = np.random.default_rng(0)
    cells, times = [], []
    for length in lengths:
        for name, (place, seconds, mib) in {"nope": ("no position", nothing, nothing), **encodings}.items():
            about = {"kind": "training", "length": length, "encoding": name}
            bytes_ = (8 + length / 8 + mib(length)) * MIB
            learned = 64 * length if place == "embedding" else 0
            more = {"place": place, "batch": 4, "peak_bytes": bytes_, "parameters": 1000 + learned}
            cells.append({**about, **more, "seconds": 1.0, "encoding_parameters": learned, "problem": ""})
            for turn in range(rounds):
                took = (1e-4 * length + seconds(length)) * (1 + noise * rng.standard_normal())
                times.append({**about, "round": turn, "seconds": took * (1 + turn)})  # all slow down together
    return pd.DataFrame(cells), pd.DataFrame(times)


def test_ratios_are_of_one_round() -> None:
    cells, times = measured(ENCODINGS)
    found = summary(cells, times).set_index(["encoding", "length"])
    row = found.loc[("alibi", 256)]
    assert row["n"] == 9
    assert row["ratio"] == pytest.approx(1.4) and row["ratio_low"] == pytest.approx(row["ratio_high"])
    assert row["seconds"] == pytest.approx(5 * 1.4e-4 * 256)  # the median of rounds 1 to 9 times as slow
    assert row["more_mib"] == pytest.approx(16) and row["mib"] == pytest.approx(8 + 32 + 16)
    assert found.loc[("nope", 64), "ratio"] == 1


def test_rows_are_in_the_order_of_places() -> None:
    cells, times = measured(ENCODINGS)
    shuffled = cells.sample(frac=1, random_state=0)
    found = summary(shuffled, times)
    assert found["encoding"].tolist()[:5] == ["nope", "learned", "rope", "alibi", "t5"]
    assert found["length"].is_monotonic_increasing


def test_exponents() -> None:
    costs = summary(*measured(ENCODINGS))
    found = growth(costs).set_index(["encoding", "quantity"])
    assert found.loc[("nope", "seconds"), "exponent"] == pytest.approx(1)
    assert found.loc[("t5", "more_mib"), "exponent"] == pytest.approx(2)
    assert found.loc[("t5", "more_mib"), "first"] == 128  # 1 MiB at 64 is no more than counts as seen
    assert found.loc[("alibi", "more_mib"), "exponent"] == pytest.approx(1)
    assert found.loc[("learned", "encoding_parameters"), "exponent"] == pytest.approx(1)
    assert found.loc[("rope", "more_mib"), "order"] == "O(1)" and np.isnan(found.loc[("rope", "more_mib"), "exponent"])
    assert found.loc[("learned", "more_seconds"), "order"] == "O(1)"
    # The whole is fitted over the longest lengths alone, where constants matter least.
    assert found.loc[("nope", "mib"), "first"] == 128 and found.loc[("nope", "mib"), "points"] == 4
    assert 0.8 < found.loc[("nope", "mib"), "exponent"] < 0.95


def test_what_was_seen_at_some_lengths_alone_is_fitted_from_where_it_stays() -> None:
    encodings = {"t5": ("distance bias", nothing, lambda L: 40.0 if L == 64 else 0.0 if L == 128 else L / 8)}
    found = growth(summary(*measured(encodings))).set_index(["encoding", "quantity"]).loc[("t5", "more_mib")]
    assert found["first"] == 256 and found["points"] == 3 and found["exponent"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("exponent", "order"),
    [(0.1, "O(1)"), (0.9, "O(N)"), (1.34, "O(N)"), (1.5, "N^1.50"), (2.3, "O(N^2)"), (3, "N^3.00")],
)
def test_orders(exponent: float, order: str) -> None:
    assert order_of(exponent) == order


def test_claims_that_hold_are_found_to_hold() -> None:
    cells, times = measured(ENCODINGS, noise=0.005)
    found = claims(summary(cells, times), times)
    assert set(found["verdict"]) == {"holds"}, found
    said = sentences(found)
    assert len(said) == 5
    assert said[0] == (
        "training: memory of embeddings grows as O(N): holds for 1 of 1; for learned (N^1.00 from 64 on)"
    )
    assert any(line.startswith("training: distance biases are slower than rotations: holds at every") for line in said)


def test_claims_that_do_not_hold_are_found_out() -> None:
    encodings: dict[str, tuple[str, Cost, Cost]] = {
        "t5": ("distance bias", lambda L: 1e-5 * L, lambda L: L**3 / 2**17),
        "rope": ("rotation", lambda L: 4e-5 * L, lambda L: L / 8),
        "learned": ("embedding", lambda L: 1e-4 * L, lambda L: L**2 / 1024),
    }
    cells, times = measured(encodings, noise=0.005)
    found = claims(summary(cells, times), times)
    assert set(found["verdict"]) == {"does not hold"}, found
    assert "holds for 0 of 1; not for rope (N^1.00 from 64 on)" in sentences(found)[1]


def test_what_cannot_be_told_is_left_open() -> None:
    same = {"t5": ("distance bias", nothing, lambda L: L / 16), "rope": ("rotation", nothing, lambda L: L / 16)}
    cells, times = measured(same, noise=0.05, lengths=(64, 128))
    found = claims(summary(cells, times), times)
    assert set(found["verdict"]) == {"cannot be told"}, found
    assert sentences(found)[0].endswith("O(1): not to be told for rope (too few lengths)")


def test_growth_that_is_not_seen_may_be_there() -> None:
    none = {"t5": ("distance bias", nothing, nothing), "rope": ("rotation", nothing, nothing)}
    cells, times = measured(none)
    found = claims(summary(cells, times), times).set_index(["claim", "of"])["verdict"]
    assert found["memory of distance biases grows as O(N) or O(N^2)", "t5"] == "cannot be told"
    assert found["memory of rotations grows as O(1)", "rope"] == "holds"


def test_what_is_learned_is_told_apart() -> None:
    costs = summary(*measured(ENCODINGS))
    assert learned(costs) == "numbers learned grow with the length in learned (N^1.00)"
    assert learned(costs[costs["encoding"] != "learned"]) == "numbers learned grow with the length in none"


def test_from_which_length_it_holds() -> None:
    crossing = {
        "t5": ("distance bias", lambda L: 1e-7 * L**2, nothing),
        "rope": ("rotation", lambda L: 2e-5 * L, nothing),
    }
    cells, times = measured(crossing)
    [line] = [line for line in sentences(claims(summary(cells, times), times)) if "biases are slower" in line]
    assert "holds from 256 on" in line and "2.024 and 1.200 of nope" in line


def test_what_was_not_measured_is_missing_and_nothing_else() -> None:
    cells, times = measured(ENCODINGS)
    gone = (cells["encoding"] == "t5") & (cells["length"] == 1024)
    cells.loc[gone, ["peak_bytes", "seconds", "parameters", "encoding_parameters"]] = np.nan
    cells.loc[gone, "problem"] = "takes more than 64 MiB"
    times = times[~((times["encoding"] == "t5") & (times["length"] == 1024))]
    costs = summary(cells, times)
    row = costs.set_index(["encoding", "length"]).loc[("t5", 1024)]
    assert row["n"] == 0 and row[["seconds", "ratio", "mib", "more_mib"]].isna().all()
    fit = growth(costs).set_index(["encoding", "quantity"]).loc[("t5", "more_mib")]
    assert fit["last"] == 512 and fit["exponent"] == pytest.approx(2)
