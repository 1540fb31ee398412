"""What a list of encodings says, read from source alone, is what the classes do once they are imported."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rpe_bench import catalogue, facts
from rpe_bench.components import arguments
from rpe_bench.properties import Case

DECLARED = (*facts.PROPERTIES, "axes", "year", "source", "learns")


@pytest.mark.parametrize("name", catalogue.encodings())
def test_no_cell_says_what_the_class_does_not(name: str) -> None:
    found = facts.facts(name)
    encoding = Case.of(name).probe().modules[0]
    options = catalogue.read("encoding", name)
    known = {"self": encoding, "geometry": encoding.geometry, **arguments("encoding", options)}
    assert not found.problem
    changes = [encoding.in_effect] if encoding.in_effect else encoding.changes()
    assert [place for place in found.changes if place != "scale"] == changes
    truth = {attribute: getattr(encoding, attribute) for attribute in DECLARED}
    truth |= {"scale": encoding.scale != encoding.geometry.head_dim**-0.5, "longest": encoding.longest is not None}
    for attribute, value in truth.items():
        said = found.declared[attribute]
        if attribute in found.conditions:
            word, _, condition = found.conditions[attribute].partition(" ")
            if word == "in":  # some cases
                continue
            said = bool(eval(condition, {}, known)) == (word == "if")
        elif attribute == "longest":
            said = said is not None
        elif attribute in ("year", "source") and said != value:  # a strategy has a paper of its own
            said = value if any(isinstance(option, dict) for option in found.options.values()) else said
        assert said == value, attribute


def test_the_list_takes_no_torch_and_no_time() -> None:
    code = "import sys, rpe_bench.cli as cli\ncli.main(['list', 'encodings'])\nassert 'torch' not in sys.modules\n"
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5  # of the processor, whatever else the machine is doing


@pytest.mark.parametrize(
    ("name", "changes", "properties"),
    [
        ("nope", "nothing", "translation-invariant, prefix-consistent, any axes"),
        ("alibi", "bias", "translation-invariant, prefix-consistent, decays"),
        ("t5", "bias, scale", "translation-invariant, prefix-consistent"),
        ("rope", "rotation", "translation-invariant, prefix-consistent, norm-preserving"),
        ("rope_dynamic_ntk", "rotation", "norm-preserving"),
        ("axial_rope", "rotation", "translation-invariant, prefix-consistent, norm-preserving, 2 axes"),
        ("sinusoidal", "embedding", "prefix-consistent"),
        ("learned", "embedding", "prefix-consistent, bounded"),
        ("fox", "bias", "translation-invariant, prefix-consistent, decays, any axes"),  # written as a rotation
    ],
)
def test_rows_of_the_table(name: str, changes: str, properties: str) -> None:
    row = dict(zip(facts.COLUMNS, facts.facts(name).row(), strict=True))
    assert (row["changes"], row["properties"]) == (changes, properties)


# Classes that the package does not have

OWN = """
from abc import ABC

from torch import Tensor

from rpe_bench.encodings.base import DistanceBias as Base, Encoding


class Mixin(ABC):
    year = 1999
    needs_tokens = True


class Plain(Encoding):
    pass


class Bias(Base):
    source = "Me"
    decays = True

    def of_offset(self, offset):
        return -offset.abs().double()[..., None]


class Heir(Mixin, Bias):
    translation_invariant: bool = False
    axes = None


class Options(Encoding):
    def __init__(self, geometry, mode: str = "far", steps: int = 3, loud: bool = False, near: bool | None = None):
        super().__init__(geometry)
        self.steps = steps
        if mode not in ("near", "far"):
            raise ValueError(mode)
        if mode == "near" and not loud:
            self.decays = True
        elif steps > 2:
            self.causal_only = True
        if geometry.causal:
            self.scale = 2.0
        self.translation_invariant = self.prefix_consistent = self.steps == 1
        self.preserves_norm = geometry.dim > 7
        if geometry.layers > 1:
            self.needs_tokens = True
        near = geometry.causal
        self.pairwise = bool(near)
        if near:
            self.axes = 2
        self.longest = geometry.max_length if loud else None

    def rotate(self, q, k, positions=None, context=None):
        return q, k


class Fixed(Options):
    def __init__(self, geometry, loudness: float = 1.0):
        super().__init__(geometry, "near", steps=1, loud=loudness > 2)


class Computed(Encoding):
    @property
    def causal_only(self):
        return self.geometry.dim > 7

    def __init__(self, geometry):
        super().__init__(geometry)
        for name in ("decays", "preserves_norm"):
            setattr(self, name, geometry.dim > 7)


class Stranger:
    pass
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of YAMLs, besides a module of classes that Python finds."""
    (tmp_path / "of_my_own.py").write_text(OWN)
    (tmp_path / "encoding").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(catalogue, "CONF", tmp_path)
    catalogue.tree.cache_clear()
    facts._node.cache_clear()
    facts._ancestry.cache_clear()
    return tmp_path / "encoding"


def row(folder: Path, target: str, options: str = "") -> dict[str, str]:
    (folder / "own.yaml").write_text(f"name: own\ntarget: {target}\n{options}")
    return dict(zip(facts.COLUMNS, facts.facts("own").row(), strict=True))


def test_a_class_that_says_nothing_leaves_blanks(own: Path) -> None:
    said = {
        "name": "own",
        "changes": "nothing",
        "learns": "0",
        "properties": "translation-invariant, prefix-consistent",
    }
    assert row(own, "of_my_own.Plain") == dict.fromkeys(facts.COLUMNS, "") | said


def test_what_base_classes_say_is_inherited(own: Path) -> None:
    assert row(own, "of_my_own.Heir") == {
        "name": "own",
        "year": "1999",
        "changes": "bias",
        "learns": "0",
        "options": "",
        "properties": "prefix-consistent, decays, needs tokens, any axes",
        "source": "Me",
    }


@pytest.mark.parametrize(
    ("options", "properties"),
    [
        ("", "causal only, {unclear}"),
        ("mode: near", "decays, {unclear}"),
        ("steps: 1", "translation-invariant, prefix-consistent, {unclear}"),
        ("mode: near\nloud: true\nsteps: 2", "{unclear}, bounded"),
    ],
)
def test_options_decide_and_what_they_do_not_is_said(own: Path, options: str, properties: str) -> None:
    found = row(own, "of_my_own.Options", options)
    unclear = "norm-preserving if geometry.dim > 7, needs tokens if geometry.layers > 1"
    properties += ", axes in some cases"
    assert found["properties"] == properties.format(unclear=unclear)
    assert found["changes"] == "rotation, scale if geometry.causal"


def test_arguments_that_a_class_gives_its_base_are_followed(own: Path) -> None:
    found = row(own, "of_my_own.Fixed", "loudness: 1.0")["properties"]
    assert found.startswith("translation-invariant, prefix-consistent, decays, norm-preserving if")
    assert "bounded" not in found
    assert ", bounded," in row(own, "of_my_own.Fixed", "loudness: 3.0")["properties"]


def test_what_only_running_it_would_tell_is_marked(own: Path) -> None:
    sometimes = row(own, "of_my_own.Computed")["properties"]
    for word in ("causal only", "decays", "norm-preserving"):
        assert f"{word} in some cases" in sometimes


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere.Class", "(no module nowhere)"),
        ("of_my_own.Clas", "(no class Clas in of_my_own)"),
        ("of_my_own.Stranger", "(Stranger is no Encoding)"),
    ],
)
def test_a_class_that_cannot_be_found_has_a_row_that_says_so(own: Path, target: str, said: str) -> None:
    assert row(own, target)["properties"] == said


# The table


def test_other_programs_are_given_cells_and_no_blanks_to_align_them() -> None:
    rows = [facts.facts(name).row() for name in catalogue.encodings()]
    lines = facts.table(rows, None).splitlines()
    assert [line.split("\t") for line in lines] == [list(facts.COLUMNS), *map(list, rows)]


@pytest.mark.parametrize("width", [60, 80, 120, 160, 240])
def test_the_table_fits_the_terminal_and_loses_nothing(width: int) -> None:
    rows = [facts.facts(name).row() for name in catalogue.encodings()]
    wide = [" ".join(line.split("\t")) for line in facts.table(rows, None).splitlines()]
    fitted = facts.table(rows, width).splitlines()
    assert len(wide) == len(rows) + 1
    assert max(map(len, fitted)) <= width
    for name, line in zip(catalogue.encodings(), wide[1:], strict=True):
        assert line.split()[0] == name
    words = sorted("".join(wide[1:]).replace(" ", ""))
    headings = sorted("".join(facts.COLUMNS))
    found = sorted("".join(fitted).replace(" ", ""))
    if len(fitted[0].split()) > 1:  # columns
        assert found == sorted(words + headings)
