"""What holds for every remap, with every encoding: each file of conf/positions and conf/encoding is enrolled by being
there."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from support import cases
from torch import Tensor

from rpe_bench import catalogue
from rpe_bench.components import build_encodings, build_positions, load_class
from rpe_bench.encodings.base import Geometry
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.positions.base import Frame, Remap
from rpe_bench.seeds import stream
from rpe_bench.tasks.base import Batch

REMAPS = catalogue.choices("positions")
TRAIN, LONG = 12, 40
DIGITS = (0, 1, 2, 3, 4)
TEXT = Frame((TRAIN,), (LONG,), DIGITS)
GRID = Frame((6, 6), (7, 7), DIGITS)
SHAPES = [(2, 6), (3, 4), (4, 3), (6, 2)]

Draw = Callable[[Remap, Batch, str], Tensor | None]
DRAWS: list[Draw] = [
    lambda remap, batch, key: remap.training(batch, stream(key)),
    lambda remap, batch, key: remap.evaluation(batch, stream(key)),
]


def batch_of(frame: Frame, length: int = TRAIN, examples: int = len(SHAPES)) -> Batch:
    rng = stream("tokens", length)
    text = Batch.from_numpy(rng.integers(12, size=(examples, length)), rng.integers(5, size=(examples, length)))
    if frame.axes == 1:
        return text
    cells = [[(y, x) for y in range(rows) for x in range(columns)] for rows, columns in SHAPES[:examples]]
    return replace(text, positions=torch.tensor(cells))


@dataclass(frozen=True)
class Remapped:
    """One choice of conf/positions on text or on a grid."""

    name: str
    frame: Frame

    def __str__(self) -> str:
        return f"{self.name}-{'text' if self.frame.axes == 1 else 'grid'}"

    def build(self) -> Remap:
        options = catalogue.read("positions", self.name)
        small = {"range": 64} if "range" in options else {}  # tables of grids have the square of it
        return build_positions(options | small, self.frame)


ALL = [Remapped(name, frame) for name in REMAPS for frame in (TEXT, GRID) if (name, frame) != ("raster", TEXT)]


@pytest.fixture(params=ALL, ids=str)
def remapped(request: pytest.FixtureRequest) -> Remapped:
    return request.param


@pytest.fixture(params=DRAWS, ids=["training", "evaluation"])
def draw(request: pytest.FixtureRequest) -> Draw:
    return request.param


@pytest.mark.parametrize("name", REMAPS)
def test_the_yaml_shows_every_option_at_its_default(name: str) -> None:
    options = catalogue.read("positions", name)
    signature = inspect.signature(load_class("positions", options["target"]))
    assert options.pop("name") == name and options.pop("target")
    assert {n: p.default for n, p in signature.parameters.items() if n != "frame"} == options


def test_positions_have_the_shape_and_extent_that_the_remap_says(remapped: Remapped, draw: Draw) -> None:
    remap, batch = remapped.build(), batch_of(remapped.frame)
    extents = remap.train_extents if draw is DRAWS[0] else remap.max_extents
    assert len(extents) == len(remap.train_extents) == len(remap.max_extents) == remap.axes
    assert all(train <= longest for train, longest in zip(remap.train_extents, remap.max_extents, strict=True))
    for key in map(str, range(20)):
        positions = draw(remap, batch, key)
        if positions is None:
            continue
        B, T = batch.tokens_BT.shape
        shapes = ((T,), (B, T)) if remap.axes == 1 else ((B, T, remap.axes),)
        assert tuple(positions.shape) in shapes
        assert positions.dtype in ((torch.int64, torch.float64) if remap.fractions else (torch.int64,))
        columns = positions.reshape(-1, remap.axes) if remap.axes > 1 else positions.reshape(-1, 1)
        assert (columns >= 0).all() and (columns < torch.tensor(extents)).all()


def test_positions_are_a_function_of_the_batch_and_the_generator(remapped: Remapped, draw: Draw) -> None:
    batch = batch_of(remapped.frame)
    before, state = batch.tokens_BT.clone(), torch.get_rng_state()
    first, again = draw(remapped.build(), batch, "key"), draw(remapped.build(), batch, "key")
    assert (first is None and again is None) or torch.equal(first, again)
    assert torch.equal(batch.tokens_BT, before) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("part", [slice(1, 3), torch.tensor([3, 0])], ids=["slice", "indices"])
def test_examples_keep_their_positions_in_a_part_of_a_batch(remapped: Remapped, draw: Draw, part) -> None:
    """Also where as many examples as tokens share one row of positions."""
    batch = batch_of(remapped.frame, TRAIN, TRAIN if remapped.frame.axes == 1 else len(SHAPES))
    positions = draw(remapped.build(), batch, "key")
    chosen = replace(batch, positions=positions).rows(part).to(torch.device("cpu")).positions
    if positions is None or positions.dim() == 1:
        assert chosen is positions or torch.equal(chosen, positions)
    else:
        assert torch.equal(chosen, positions[part])


PAIRS = [
    (remapped, case.name)
    for remapped in ALL
    for case in cases()
    if case.causal and case.cls.axes in (None, remapped.build().axes)
]


@pytest.mark.parametrize(("remapped", "encoding"), PAIRS, ids=lambda value: str(value))
def test_every_encoding_takes_them(remapped: Remapped, encoding: str) -> None:
    """A training step at positions of training, and scores at those of evaluation; or fractions are refused."""
    remap, batch = remapped.build(), batch_of(remapped.frame)
    geometry = Geometry(
        dim=16,
        heads=2,
        train_length=TRAIN,
        max_length=LONG,
        causal=True,
        layers=2,
        axes=remap.axes,
        train_extents=remap.train_extents,
        max_extents=remap.max_extents,
        digits=remap.frame.digits,
    )
    sizes = {"vocabulary": 12, "classes": 5, "layers": 2, "dim": 16, "heads": 2, "causal": True}
    model = Transformer(**sizes, encodings=build_encodings(catalogue.read("encoding", encoding), geometry))
    model.reset_parameters(0)
    loss = loss_of(model, replace(batch, positions=remap.training(batch, stream("positions"))))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    long = batch_of(remapped.frame, LONG) if remapped.frame.axes == 1 else batch
    positions = remap.evaluation(long, stream("evaluation positions"))
    with torch.no_grad():
        try:
            found = loss_of(model.eval(), replace(long, positions=positions))
        except ValueError as error:
            assert positions is not None and positions.is_floating_point() and "fractions" in str(error)
            return
        assert found.isfinite()
