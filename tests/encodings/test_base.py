"""The small tools that encodings share."""

import pytest
import torch

from rpe_bench import attention_logits, make_encoding
from rpe_bench.attention import attend
from rpe_bench.encodings.base import Context, DistanceBias, Encoding, Geometry, whole
from rpe_bench.encodings.scalings.base import Rotation
from rpe_bench.encodings.scalings.linear import Linear


def test_whole_positions_become_integers_and_fractions_are_refused() -> None:
    assert whole(torch.tensor([-3.0, 2.0**40])).tolist() == [-3, 2**40]
    with pytest.raises(ValueError, match="fractions"):
        whole(torch.tensor([1.0, 1.5]))


@pytest.mark.parametrize("name", ["learned", "relative_bias", "t5"])
def test_tables_take_no_position_between_two_rows(name: str) -> None:
    encoding = make_encoding(name, dim=8, heads=2, train_length=4, max_length=8, causal=True)
    positions = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="fractions"):
        encoding.embed(torch.zeros(1, 3, 8), positions)
        attention_logits(encoding, *torch.zeros(2, 1, 2, 3, 4), positions)


SIZES = {"dim": 8, "heads": 2, "train_length": 4, "max_length": 8, "causal": True}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"heads": 3}, "heads=3 must divide dim=8"),
        ({"heads": 0}, "heads=0 must be a positive integer"),
        ({"dim": 8.0}, "dim=8.0 must be a positive integer"),
        ({"max_length": -1}, "max_length=-1 must be a positive integer"),
        ({"causal": None}, "causal=None must be true or false"),
    ],
)
def test_a_model_that_cannot_be_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        Geometry(**{**SIZES, **wrong})


@pytest.mark.parametrize("name", ["nope", "rope", "t5", "alibi"])
@pytest.mark.parametrize("shape", [(2,), (3, 2), (5, 3), (3, 1), (2, 2, 1)])
def test_positions_of_another_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    encoding = make_encoding(name, **SIZES)
    q = torch.zeros(2, 2, 3, 4)
    with pytest.raises(ValueError, match=r"^positions .* do not fit 2 examples of 3 tokens"):
        attention_logits(encoding, q, q, torch.zeros(shape, dtype=torch.long))


class OfHeads(DistanceBias):
    """A bias whose last axis is of the given size, or left out."""

    def __init__(self, geometry: Geometry, *last: int) -> None:
        super().__init__(geometry)
        self.last = last

    def of_offset(self, offset: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*offset.shape, *self.last)


@pytest.mark.parametrize("last", [(), (3,), (2, 1)])
@pytest.mark.parametrize("positions", [None, torch.arange(3)])
def test_a_bias_of_other_heads_is_refused(last: tuple[int, ...], positions: torch.Tensor | None) -> None:
    # Attention reads it in strides, by which the first of 3 heads would serve both.
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(
        ValueError, match=r"^OfHeads.of_offset: offsets \(.*\) must give \(.*2\) or \(.*1\), and gave \("
    ):
        attend(OfHeads(Geometry(**SIZES), *last), q, q, q, Context(3, True, positions))
    for fitting in (1, 2):
        attend(OfHeads(Geometry(**SIZES), fitting), q, q, q, Context(3, True, positions))


@pytest.mark.parametrize("name", ["learned", "sinusoidal", "rope", "t5", "alibi", "relative_bias"])
def test_a_grid_is_no_text(name: str) -> None:
    encoding = make_encoding(name, **SIZES)
    positions, q = torch.zeros(2, 2, 2, dtype=torch.long), torch.zeros(2, 2, 2, 4)
    with pytest.raises(ValueError, match="takes one axis of position, and was given 2"):
        encoding.embed(torch.zeros(2, 2, 8), positions)
        attention_logits(encoding, q, q, positions)


def seen(encoding: Encoding, positions: torch.Tensor | None, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What the encoding makes of fixed embeddings, queries, keys and values."""
    q = torch.arange(24, dtype=dtype).view(1, 2, 3, 4) / 10
    with torch.no_grad():
        x = encoding.embed(torch.zeros(1, 3, 8, dtype=dtype), positions)
        attended = attend(encoding, q, q, q, Context(3, True, positions))
    return torch.cat([x.flatten(), attended.flatten()])


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("rope", "rotation", Rotation(100.0, 4, 4)),
        ("rope", "scaling", Linear(factor=4.0)),
        ("rope", "turning", 1),
        ("xpos", "rotation", Rotation(100.0, 4, 4)),
        ("xpos", "scale_base", 3.0),
        ("xpos", "gamma", 2.0),
        ("sinusoidal", "base", 100.0),
        ("alibi", "slopes", [1.0, 2.0]),
    ],
)
def test_tables_follow_what_they_are_made_of(name: str, attribute: str, value: object) -> None:
    """A table that is kept is never that of another base or other slopes."""
    encoding = make_encoding(name, **SIZES)
    before = seen(encoding, None)
    assert hasattr(encoding, attribute)
    setattr(encoding, attribute, value)
    assert not torch.allclose(seen(encoding, None), before)
    torch.testing.assert_close(seen(encoding, None), seen(encoding, torch.arange(3)))


@pytest.mark.parametrize("name", ["rope", "xpos", "sinusoidal", "alibi", "transformer_xl", "sinusoidal_relative_key"])
def test_a_table_of_one_precision_serves_no_other(name: str) -> None:
    single, double = torch.float32, torch.float64
    for first, then in ((single, double), (double, single)):
        encoding = make_encoding(name, **SIZES)
        seen(encoding, None, first)
        found = seen(encoding, None, then)
        assert found.dtype == then and torch.equal(found, seen(make_encoding(name, **SIZES), None, then))
