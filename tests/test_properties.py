"""Each measurement comes out as it must for encodings of which that is known, and for classes made to fail it."""

import csv
import io
import math
import sys
from pathlib import Path

import pytest
import torch

from rpe_bench import catalogue, properties
from rpe_bench.cli import main
from rpe_bench.errors import ConfigError
from rpe_bench.properties import MEASURES, Case, Measurement, Report, measured

OWN = '''
import torch
from torch import nn

from rpe_bench.encodings.base import Encoding, DistanceBias
from rpe_bench.encodings.path import PaTH


class ByTokens(Encoding):
    """A bias by the ids of the keys."""

    def bias(self, q, k, context):
        return context.tokens_BT.to(q.dtype)[:, None, None, :]


class Drawn(Encoding):
    """Another bias in every call."""

    calls = 0

    def bias(self, q, k, context):
        Drawn.calls += 1
        return context.offset.to(q.dtype) * (1 + Drawn.calls)


class Growing(DistanceBias):
    """Falls with distance, but for one step."""

    def of_offset(self, offset):
        distance = offset.abs().double()
        return (-distance + 1.5 * (distance == 20))[..., None]


class Short(Encoding):
    """Has few positions."""

    def embed(self, x, positions=None, tokens=None):
        last = x.shape[1] - 1 if positions is None else int(positions.max())
        if last > 99:
            raise ValueError(f"position {last} lies beyond 99")
        return x


class Broken(Encoding):
    def rotate(self, q, k, positions=None, context=None):
        raise RuntimeError("no idea")


class Reflecting(PaTH):
    """Its transitions are reflections, which keep norms."""

    def transitions(self, context):
        w, beta = super().transitions(context)
        return w, torch.full_like(beta, 2)


class Whole(DistanceBias):
    """Holds a bias for each pair of tokens, and its square on the way."""

    def of_offset(self, offset):
        return offset.abs().double()[..., None]

    def bias(self, q, k, context):
        return -super().bias(q, k, context)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The options of a class of OWN."""
    (tmp_path / "own_properties.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "own_properties", raising=False)
    return lambda name: {"name": name, "target": f"own_properties.{name}"}


def measure(name: str, encoding: object, causal: bool = True) -> Measurement:
    return MEASURES[name](Case.of(encoding, causal))


@pytest.mark.parametrize(
    ("encoding", "causal", "number"),
    [
        ("nope", True, 1),
        ("rope", True, 128),
        ("rope", False, 128),
        ("alibi", True, 128),
        ("alibi", False, 65),  # on both sides of the middle the same
        ("t5", True, 32),
        ("relative_bias", True, 17),
        ("relative_bias", False, 33),
        ("axial_rope", True, 128),
    ],
)
def test_unique(encoding: str, causal: bool, number: int) -> None:
    found = measure("unique", encoding, causal)
    assert (found.number, found.verdict) == (number, "yes" if number == 128 else "no")


@pytest.mark.parametrize(
    ("name", "encoding", "verdict"),
    [
        ("deterministic", "rope", "yes"),
        ("deterministic", "nope", "yes"),
        ("deterministic", "learned", "no"),
        ("deterministic", "cope", "no"),  # whose table is all zeros until it is trained
        ("relative", "rope", "yes"),
        ("relative", "axial_rope", "yes"),
        ("relative", "sinusoidal", "no"),
        ("relative", "fire", "no"),  # far from the start alone
        ("relative", "nope", "-"),
        ("relative", "path", "yes"),  # past the tokens whose convolutions reach before the first
        ("relative", "selective_rope", "yes"),
        ("decays", "alibi", "yes"),
        ("decays", "kerple", "yes"),
        ("decays", "fox", "yes"),
        ("decays", "nope", "-"),
        ("decays", "sandwich", "no"),
        ("decays", "rope", "no"),
        ("decays", "t5", "no"),
        ("longer_input", "rope", "yes"),
        ("longer_input", "kerple", "yes"),
        ("longer_input", "relative_bias", "yes"),
        ("longer_input", "learned", "no"),
        ("longer_input", "t5", "no"),
        ("longer_input", "vit", "yes"),  # resized from cells that training has all met
        ("longer_input", "swin", "no"),
        ("more_axes", "rope", "no"),
        ("more_axes", "axial_rope", "yes"),
        ("more_axes", "nope", "-"),
        ("translation_invariant", "rope", "yes"),
        ("translation_invariant", "axial_rope", "yes"),
        ("translation_invariant", "sinusoidal", "no"),
        ("translation_invariant", "rope_dynamic_ntk", "no"),
        ("translation_invariant", "rope_longrope", "no"),
        ("prefix_consistent", "sinusoidal", "yes"),
        ("prefix_consistent", "fire", "yes"),
        ("prefix_consistent", "rope_dynamic_ntk", "no"),
        ("pairwise", "rope", "yes"),
        ("pairwise", "fox", "no"),
        ("pairwise", "cope", "no"),
        ("preserves_norm", "rope", "yes"),
        ("preserves_norm", "rope_yarn", "no"),
        ("preserves_norm", "xpos", "no"),
        ("preserves_norm", "alibi", "-"),
        ("preserves_norm", "fox", "-"),  # a bias beside q and k, which keep what they are
        ("preserves_norm", "path", "no"),
        ("preserves_norm", "pope", "no"),
        ("preserves_norm", "selective_rope", "yes"),
        ("needs_tokens", "rope", "no"),
        ("memory", "nope", "none"),
        ("memory", "rope", "linear"),
        ("memory", "alibi", "linear"),
        ("memory", "relative_bias", "quadratic"),
    ],
)
def test_verdicts(name: str, encoding: str, verdict: str) -> None:
    assert measure(name, encoding).verdict == verdict


def test_numbers_behind_verdicts(own) -> None:
    # 22 buckets hold the distances up to 31, and another ten those beyond; four heads.
    assert measure("longer_input", "t5").number == 40
    assert measure("longer_input", "learned").number == (512 - 32) * 64
    assert measure("parameters", "t5").number == 32 * 4
    assert measure("parameters", "learned").number == 2048 * 64
    assert measure("parameters", "relative_bias").number == 2 * 33 * 4  # one table a layer
    grows = measure("decays", own("Growing"))
    # From distance 19 to 20 alone: in 16 rows of 4 examples, 4 heads and 5 draws.
    assert (grows.verdict, grows.number) == ("no", 16 * 4 * 4 * 5)
    assert measure("preserves_norm", "rope_yarn").number == pytest.approx(0.1 * math.log(4))
    memory = measure("memory", own("Whole"))
    assert memory.verdict == "quadratic" and 1.7 < memory.number < 2


def test_what_only_a_class_made_for_it_does(own) -> None:
    assert measure("needs_tokens", own("ByTokens")).verdict == "yes"
    assert measure("deterministic", own("Drawn")).verdict == "no"
    assert measure("preserves_norm", own("Reflecting")).verdict == "yes"
    short = own("Short")
    refused = measure("longer_input", short)
    assert refused.verdict == "no" and "position 511 lies beyond 99" in refused.what
    assert "shift by 1, 17" in measure("translation_invariant", short).what
    assert "1000" not in measure("translation_invariant", short).what


def test_held_bytes_are_those_that_are_there_at_once() -> None:
    there = torch.zeros(1000)
    with properties._Held([there]) as count:
        one = there + 1
        del one
        two = there + 1
        view = two.view(10, 100)[2:]
        there += 1
        assert count.now == 4000
        three = torch.zeros(500)
    assert (count.most, count.now) == (6000, 6000)
    del two, view, three
    assert count.now == 0


def test_equal_infinities_are_no_change_and_others_are() -> None:
    one = torch.tensor([0.0, -math.inf, 2.0, 4.0])
    assert properties.change(one, one) == 0
    assert properties.change(one, torch.tensor([0.0, -math.inf, 3.0, 4.0])) == 0.25
    assert properties.change(one, torch.tensor([0.0, 1.0, 2.0, 4.0])) == math.inf


def test_nothing_of_the_process_changes_a_number() -> None:
    first = Report.of(["t5", "fox"])
    torch.manual_seed(1)
    torch.rand(3)
    again = Report.of(["t5", "fox"])
    assert (first.markdown(), first.csv()) == (again.markdown(), again.csv())


def test_the_report(tmp_path: Path) -> None:
    report = Report.of(["rope", "cope"], causal=False)
    assert report.left_out == ["cope"]
    text = report.markdown()
    assert "Left out, since they have no meaning in such a model: cope." in text
    assert "| rope " in text and "| cope " not in text
    rows = list(csv.DictReader(io.StringIO(report.csv())))
    assert [row["property"] for row in rows] == list(MEASURES)
    assert all(row["encoding"] == "rope" and row["verdict"] and row["number"] and row["what"] for row in rows)
    assert all("|" not in cell for row in rows for cell in row.values())
    written = report.write(tmp_path / "new" / "folder")
    assert [path.read_text() for path in written] == [text, report.csv()]


def test_markdown_is_a_table_whose_rows_are_as_long_as_its_head() -> None:
    lines = [line for line in Report.of(["rope", "nope"]).markdown().splitlines() if line.startswith("| ")]
    tables = [line.count("|") for line in lines]
    assert tables[:3] == [len(properties.HEADINGS) + 2] * 3
    assert len({len(line) for line in lines[:3]}) == 1


def test_an_encoding_that_breaks_is_one_line(own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties.catalogue, "read", lambda group, name: own("Broken"))
    with pytest.raises(ConfigError) as error:
        Report.of(["broken"])
    assert error.value.errors[0].startswith("encoding=broken: RuntimeError: no idea (own_properties.py, line ")


def test_measured_names_what_an_encoding_declares() -> None:
    found = measured("alibi")
    assert list(found) == list(MEASURES)
    assert {name for name, one in found.items() if one.verdict == "yes"} == {
        "unique",
        "deterministic",
        "relative",
        "decays",
        "longer_input",
        "translation_invariant",
        "prefix_consistent",
        "pairwise",
    }


# What a rotation does


def cells(text: str, heading: str) -> list[list[str]]:
    """The rows of the table under a heading."""
    lines = text[text.index(heading) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| "))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


def test_the_rotation_by_steps_is_that_of_the_formula() -> None:
    head, *rows = cells(properties.rotation_by_steps((1, 2, 3, 4), steps=6), "## A rotation")
    assert head == ["p", "angle", "features 0, 1", "norm", "angle", "features 2, 3", "norm", "norm of all"]
    for p, row in enumerate(rows):
        assert row[0] == str(p)
        for (a, b), angle, (said_angle, said, norm) in (
            ((1, 2), p, row[1:4]),
            ((3, 4), p / 100, row[4:7]),
        ):
            turned = a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)
            assert [float(part) for part in said.strip("()").split(",")] == pytest.approx(turned, abs=1e-6)
            assert float(said_angle) == pytest.approx(angle)
            assert float(norm) == pytest.approx(math.hypot(a, b), abs=1e-6)
        assert float(row[7]) == pytest.approx(math.sqrt(30), abs=1e-6)
    assert len(rows) == 6


def test_dot_products_depend_on_the_difference_alone() -> None:
    positions = (0, 1, 2, 3, 1000, 1001, 1002, 1003)
    text = properties.dot_products(positions)
    head, *rows = cells(text, "## Dot products")
    assert head[1:] == [str(n) for n in positions]
    q, k = (1, 2, 3, 4), (2, -1, 1, 3)
    for m, row in zip(positions, rows, strict=True):
        for n, said in zip(positions, row[1:], strict=True):
            expected = 0.0
            for pair, theta in enumerate((1.0, 0.01)):
                one, other = complex(*q[2 * pair : 2 * pair + 2]), complex(*k[2 * pair : 2 * pair + 2])
                angle = (m - n) * theta
                expected += (one * other.conjugate() * complex(math.cos(angle), math.sin(angle))).real
            assert float(said) == pytest.approx(expected, abs=1e-5)
    _, *groups = cells(text, "The same by m - n")
    assert sum(int(pairs) for _, pairs, _, _ in groups) == len(positions) ** 2
    assert all(float(spread) < 1e-12 for _, _, _, spread in groups)


# The command


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["properties", "--encodings", "nope,rope,nope", "--out", str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    shown = (tmp_path / "new" / "properties.md").read_text()
    assert out.startswith(shown)
    assert out.removeprefix(shown).split() == [str(tmp_path / "new" / f"properties.{kind}") for kind in ("md", "csv")]
    assert shown.count("| nope ") == 1
    assert "m - n" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--encodings rop", "encoding=rop: no such encoding; did you mean rope? (choose from alibi"),
        ("--encodings rope,", "encoding=: no such encoding (choose from alibi"),
        ("--encodings custom", "encoding=custom: no such encoding"),
        ("--out /dev/null/x", "--out=/dev/null/x: Not a directory"),
        ("--encoding", "argument --encodings: expected one argument"),
        ("--axes 2", "unrecognized arguments: --axes 2"),
        ("rope", "unrecognized arguments: rope"),
    ],
)
def test_a_wrong_request_is_one_line(capsys: pytest.CaptureFixture[str], arguments: str, said: str) -> None:
    assert main(["properties", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"error: {said}")


def test_help_says_what_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["properties", "--help"])
    assert not ended.value.code
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured at run time" in shown and "--bidirectional" in shown and "--out DIR" in shown


def test_a_class_that_cannot_be_found_is_left_out_of_all_and_said_to_be_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = catalogue.read
    monkeypatch.setattr(catalogue, "encodings", lambda: ["ghost", "nope"])
    ghost = {"name": "ghost", "target": "nowhere.Ghost"}
    monkeypatch.setattr(catalogue, "read", lambda group, name: ghost if name == "ghost" else read(group, name))
    assert main(["properties"]) == 0
    said = capsys.readouterr()
    assert "\n| nope " in said.out and "ghost" not in said.out
    assert said.err == "encoding=ghost is left out: encoding.target=nowhere.Ghost: there is no module nowhere\n"
    assert main(["properties", "--encodings", "ghost"]) == 2
