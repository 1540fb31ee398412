import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rpe_bench.attention import attend, attention_logits
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.rnope import RNoPE
from rpe_bench.encodings.rope import RoPE
from rpe_bench.encodings.sliding_window import SlidingWindow
from rpe_bench.model import Transformer


@pytest.mark.parametrize(
    ("layers", "period", "kinds"), [(5, 2, "WNWNW"), (8, 4, "WWWNWWWN"), (2, 4, "WW"), (1, 2, "W"), (3, 3, "WWN")]
)
def test_layers_alternate(make, layers: int, period: int, kinds: str) -> None:
    built = RNoPE.build(replace(make(RNoPE).geometry, layers=layers), window=5, period=period)
    assert "".join({RNoPE: "W", NoPE: "N"}[type(encoding)] for encoding in built) == kinds
    assert [encoding.geometry.layer for encoding in built] == list(range(layers))
    assert all(encoding.window == 5 for encoding in built if isinstance(encoding, RNoPE))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_formula(make, reference_equals_formula, causal: bool, layout: str) -> None:
    encoding = make(RNoPE, causal=causal, window=4, base=30.0, layout=layout)
    pairs = [(0, 1), (2, 3)] if layout == "interleaved" else [(0, 2), (1, 3)]

    def turned(x: np.ndarray, position: int) -> np.ndarray:
        y = np.empty(4)
        for t, (a, b) in enumerate(pairs):
            turn = np.exp(1j * position * 30.0 ** (-t / 2)) * complex(x[a], x[b])
            y[a], y[b] = turn.real, turn.imag
        return y

    def logit(h, i, j, q, k) -> float:
        return turned(q, i) @ turned(k, j) / 2 if abs(i - j) < 4 else -math.inf

    reference_equals_formula(encoding, logit)


@pytest.mark.parametrize("positions", [None, torch.tensor([3, 0, 30, 30, 4, 5, 90])])
def test_a_wide_window_is_rope(make, positions: torch.Tensor | None) -> None:
    q = torch.randn(1, 2, 7, 4)
    found = attention_logits(make(RNoPE, window=100), q, q, positions)
    assert torch.equal(found, attention_logits(make(RoPE), q, q, positions))


def test_it_is_a_sliding_window_over_what_rope_turned(make) -> None:
    q, k, v = torch.randn(3, 1, 2, 40, 4)
    found = attend(make(RNoPE, window=3), q, k, v, Context(40, True))
    turned = make(RoPE).rotate(q, k)
    expected = attend(make(SlidingWindow, window=3), *turned, v, Context(40, True))
    torch.testing.assert_close(found, expected)


def test_a_model_reaches_beyond_its_windows_in_the_layer_without(make) -> None:
    """Two layers of windows of 3 reach 4 tokens back; the second without a window, all of them."""
    for period, reached in ((2, 20), (4, 5)):
        geometry = replace(make(RNoPE).geometry, layers=2)
        encodings = RNoPE.build(geometry, window=3, period=period)
        model = Transformer(
            vocabulary=20, classes=3, layers=2, dim=geometry.dim, heads=2, causal=True, encodings=encodings
        )
        model.reset_parameters(0)
        model.double()(torch.arange(20)[None])[0, 19].sum().backward()
        assert (model.tokens.weight.grad.abs().sum(1) > 0).sum().item() == reached


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"window": 0}, "window=0 must be at least 1"),
        ({"period": 1}, "period=1 must be at least 2"),
        ({"layout": "pairs"}, "layout=pairs is not one of"),
        ({"head_dim": 5}, "is odd"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(RNoPE, **parameters)
