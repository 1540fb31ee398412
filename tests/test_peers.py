"""The libraries beside ours: that like is compared with like, and that the ratios are what they say."""

import csv
import math
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

SCRIPT = Path(__file__).parents[1] / "scripts" / "peers.py"
PEERS = runpy.run_path(str(SCRIPT))
Arm, OURS = PEERS["Arm"], PEERS["OURS"]
ARMS = [Arm(encoding, OURS, "default") for encoding in PEERS["ENCODINGS"]] + [Arm(*key) for key in PEERS["PEERS"]]
LENGTH = 24


def name(arm: Any) -> str:
    return "-".join(vars(arm).values())


def config_of(arm: Any) -> Any:
    return PEERS["config_of"](arm.encoding, "tiny", "fp32", 2, LENGTH)


def built(arm: Any) -> torch.nn.Module:
    return arm.build(config_of(arm))


def tokens() -> Tensor:
    return torch.randint(PEERS["SYMBOLS"], (2, LENGTH))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["peers.py", *map(str, arguments)])
    return PEERS["main"]()


# Like with like


@pytest.mark.parametrize("arm", ARMS, ids=name)
def test_models_are_of_one_size_and_begin_alike(arm: Any) -> None:
    ours, parameters = built(Arm(arm.encoding, OURS, "default")), PEERS["parameters_of"]
    model, tokens_BT = built(arm), tokens()
    assert abs(parameters(model) / parameters(ours) - 1) < 0.15
    batch = PEERS["Batch"](tokens_BT, torch.randint(PEERS["SYMBOLS"], (2, LENGTH)))
    step = PEERS["training_step"](arm, config_of(arm), model)
    first, *_, last = [step(batch) for _ in range(12)]
    assert abs(first - math.log(PEERS["SYMBOLS"])) < 0.5 and last < first - 0.2


@pytest.mark.parametrize("arm", ARMS, ids=name)
@torch.no_grad()
def test_models_see_the_past_alone_and_where_it_is(arm: Any) -> None:
    """In training mode too, where dropout would show; of the last layers' answers for the second half of the tokens."""
    model, tokens_BT = built(arm), tokens()
    before = model(tokens_BT)
    changed = tokens_BT.clone()
    changed[:, LENGTH // 2 :] += 1
    changed %= PEERS["SYMBOLS"]
    for mode in (model.train(), model.eval()):
        after = mode(changed)
        torch.testing.assert_close(after[:, : LENGTH // 2], before[:, : LENGTH // 2], rtol=0, atol=1e-5)
        assert (after[:, LENGTH // 2 :] - before[:, LENGTH // 2 :]).abs().amax(-1).min() > 1e-4
    # Without positions the last answer would not change with the order of the tokens before it.
    turned = torch.cat((tokens_BT[:, :-1].flip(1), tokens_BT[:, -1:]), dim=1)
    assert (model(turned)[:, -1] - before[:, -1]).abs().max() > 1e-6


@pytest.mark.parametrize("arm", ARMS, ids=name)
@torch.no_grad()
def test_only_absolute_positions_show_in_a_sequence_of_one_symbol(arm: Any) -> None:
    """However it is attended to, all values are the same: a library that adds a table of its own would be seen."""
    answers_TV = built(arm).eval()(torch.full((1, LENGTH), 3))[0]
    apart = (answers_TV - answers_TV[0]).abs().max()
    assert (apart > 1e-3) == (arm.encoding in ("learned", "sinusoidal"))


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm.variant in ("explicit", "fast path")], ids=name)
@torch.no_grad()
def test_variants_compute_the_same(arm: Any) -> None:
    tokens_BT = tokens()
    expected = built(arm).eval()(tokens_BT)
    for other in ARMS:
        if (other.encoding, other.library) == (arm.encoding, arm.library):
            torch.testing.assert_close(built(other).eval()(tokens_BT), expected, rtol=0, atol=1e-5)


# From beginning to end


def test_measurements_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    out = tmp_path / "peers.csv"
    what = ["--sizes", "tiny", "--encodings", "rope", "t5", "--libraries", "x-transformers", "Llama"]
    how = ["--batches", "2x16", "3x8", "--lengths", "64", "--rounds", "2", "--steps", "1", "--clock", "cpu"]
    assert run(monkeypatch, "--out", out, *what, *how) == 0
    rows = pd.read_csv(out)
    assert list(rows) == PEERS["COLUMNS"] and rows.problem.isna().all() and (rows.seconds > 0).all()
    arms = 2 + 2 + 1 + 1
    assert rows.work.value_counts().to_dict() == {"training": 2 * 2 * 2 * arms, "evaluation": 2 * arms}
    assert rows[rows.work == "training"].loss.notna().all() and (rows[rows.work == "evaluation"].mib >= 0).all()
    printed = capsys.readouterr().out
    assert printed.count("fastest\n") == 5 * 2 and "training, tiny, bf16-mixed, 3 x 8: least" in printed
    assert run(monkeypatch, "--tables", out) == 0
    assert capsys.readouterr().out == printed
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--out", out)
    assert len(pd.read_csv(out)) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batches", "32x"), "argument --batches: : a positive integer"),
        (("--lengths", "-8"), "argument --lengths: -8: a positive integer"),
        (("--encodings", "fire"), "argument --encodings: invalid choice: 'fire'"),
        (("--encodings", "t5", "--libraries", "Llama"), "--libraries Llama: none has t5"),
    ],
)
def test_bad_requests(arguments, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--out", tmp_path / "peers.csv", *arguments)
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_what_does_not_fit_is_named_and_left_alone(tmp_path: Path) -> None:
    """Of 2,048 tokens, four heads have 64 MiB of logits: explicit attention takes 430 MiB, the fused kernel 32.

    As a script, whose models are forked from a process that has computed nothing: what other tests have freed would be
    at hand beyond what is allowed.
    """
    out = tmp_path / "peers.csv"
    what = ["--sizes", "tiny", "--encodings", "rope", "--libraries", "x-transformers", "--batches"]
    how = ["--lengths", "2048", "--rounds", "2", "--mib", "120"]
    command = [sys.executable, SCRIPT, "--out", out, *what, *how]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    counts = pd.read_csv(out).groupby(["library", "variant"]).agg({"seconds": "count", "problem": "count"})
    assert counts.T.to_dict("list") == {
        (OURS, "default"): [2, 0],
        ("x-transformers", "flash"): [2, 0],
        ("x-transformers", "explicit"): [0, 1],
    }
    assert "x-transformers  explicit   takes more than 120 MiB\n" in done.stdout


# What comes of it

SETTING = {"work": "training", "size": "tiny", "precision": "fp32", "batch": 4, "length": 8, "clock": "wall"}


def table_of(seconds: dict[tuple[str, str, str], list[float | None]], **setting: str) -> list[dict[str, Any]]:
    return [
        SETTING
        | setting
        | dict(zip(PEERS["ARM"], arm, strict=True))
        | {"round": turn, "parameters": 100, "seconds": value, "problem": "too large" if value is None else None}
        for arm, values in seconds.items()
        for turn, value in enumerate(values)
    ]


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    rows = table_of(
        {
            ("rope", OURS, "default"): [1.0, 2.0, 4.0],
            ("rope", "Llama", "fused"): [1.5, 2.2, 4.0],  # 1.5, 1.1, 1.0
            ("rope", "x-transformers", "flash"): [1.2, 2.4, 3.6],  # 1.2, 1.2, 0.9
            ("t5", OURS, "default"): [1.0, 1.0, 1.0],
            ("t5", "T5", "explicit"): [1.3, 1.4, 1.8],
            ("t5", "T5", "fused"): [None],
            ("alibi", OURS, "default"): [2.0, 2.0, 2.0],
            ("alibi", "BLOOM", "explicit"): [2.5, 2.5, 2.5],
        }
    )
    rows += table_of({("rope", OURS, "default"): [2.0], ("rope", "Llama", "fused"): [1.0]}, size="small")
    path = tmp_path / "made_up.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, PEERS["COLUMNS"])
        writer.writeheader()
        writer.writerows(rows[::-1])  # the order is no matter
    return path


def test_ratios_are_within_rounds(made_up: Path) -> None:
    table = PEERS["ratios"](pd.read_csv(made_up)).set_index(["size", *PEERS["ARM"]])
    llama = table.loc["tiny", "rope", "Llama", "fused"]
    assert (llama.ratio, llama.low, llama.high, llama.rounds) == pytest.approx((1.1, 1.05, 1.3, 3))
    assert (llama.seconds, llama.our_seconds, llama.parameters) == (2.2, 2.0, 100)
    failed = table.loc["tiny", "t5", "T5", "fused"]
    assert failed.rounds == 0 and failed.problem == "too large" and not failed.fastest
    assert table.loc["small", "rope", "Llama", "fused"].ratio == 0.5
    assert {index[1:3] for index in table.index[table.fastest]} == {("rope", "Llama"), ("t5", "T5"), ("alibi", "BLOOM")}


def test_summary_is_of_the_fastest_peers(made_up: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    table: Callable[..., pd.DataFrame] = PEERS["summary"]
    found = table(PEERS["ratios"](pd.read_csv(made_up))).set_index("size")
    tiny, small = found.loc["tiny"], found.loc["small"]
    assert (tiny.encodings, tiny.encoding, tiny.library) == (3, "rope", "Llama")
    assert (tiny.least, tiny["median"]) == pytest.approx((1.1, 1.25))  # of 1.1, 1.25 and 1.4
    assert (small.least, small["median"], small.encodings) == (0.5, 0.5, 1)
    assert run(monkeypatch, "--tables", made_up) == 0
    printed = capsys.readouterr().out
    assert "training, tiny, fp32, 4 x 8: least 1.10 (rope, Llama), median 1.25 of 3 encodings" in printed
    assert "T5              fused      too large" in printed
