import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rpe_bench.attention import attention_logits
from rpe_bench.components import make_encoding
from rpe_bench.encodings.base import Geometry
from rpe_bench.encodings.rope import RoPE
from rpe_bench.encodings.scalings.base import Scaling
from rpe_bench.encodings.scalings.by_parts import ByParts
from rpe_bench.encodings.scalings.dynamic_ntk import DynamicNTK
from rpe_bench.encodings.scalings.linear import Linear
from rpe_bench.encodings.scalings.llama3 import Llama3
from rpe_bench.encodings.scalings.longrope import LongRoPE
from rpe_bench.encodings.scalings.ntk import NTK
from rpe_bench.encodings.scalings.yarn import YaRN

ALL = [Linear, NTK, DynamicNTK, ByParts, YaRN, LongRoPE, Llama3]


def rope(width: int, trained: int = 2048, base: float = 10_000.0, heads: int = 1, **options: Any) -> RoPE:
    """RoPE of heads of `width` features, trained on so many positions."""
    return RoPE(Geometry(heads * width, heads, trained, 16 * trained, causal=True), base=base, **options)


def frequencies(encoding: RoPE, length: int | None = None) -> list[float]:
    length = encoding.geometry.train_length if length is None else length
    return encoding.frequencies(torch.tensor([length - 1])).flatten().tolist()


def ratios(encoding: RoPE, length: int | None = None) -> list[float]:
    """By how much each frequency is divided."""
    plain = rope(encoding.rotation.width, base=encoding.rotation.base)
    return [a / b for a, b in zip(frequencies(plain), frequencies(encoding, length), strict=True)]


def base_of(encoding: RoPE, length: int | None = None) -> float:
    """The base whose second frequency is that of the encoding."""
    return frequencies(encoding, length)[1] ** (-encoding.rotation.width / 2)


# The formulas, number by number: theta'_t of r features, at a length T, trained on L0


def linear(t: int, r: int, base: float, s: float, L0: int, T: int) -> float:
    return base ** (-2 * t / r) / s


def ntk(t: int, r: int, base: float, s: float, L0: int, T: int) -> float:
    return (base * s ** (r / (r - 2))) ** (-2 * t / r)


def dynamic_ntk(t: int, r: int, base: float, s: float, L0: int, T: int) -> float:
    return ntk(t, r, base, s * T / L0 - (s - 1) if T > L0 else 1.0, L0, T)


def by_rotations(t: int, r: int, base: float, s: float, L0: int, T: int, slow: float = 1, fast: float = 32) -> float:
    theta = base ** (-2 * t / r)
    gamma = min(max((L0 / (2 * math.pi / theta) - slow) / (fast - slow), 0), 1)
    return (1 - gamma) * theta / s + gamma * theta


def by_index(t: int, r: int, base: float, s: float, L0: int, T: int) -> float:
    def dim(n: float) -> float:
        return r * math.log(L0 / (2 * math.pi * n)) / (2 * math.log(base))

    low, high, theta = max(math.floor(dim(32)), 0), min(math.ceil(dim(1)), r - 1), base ** (-2 * t / r)
    ramp = min(max((t - low) / (high - low), 0), 1)
    return theta / s * ramp + theta * (1 - ramp)


def llama3(t: int, r: int, base: float, s: float, L0: int, T: int) -> float:
    theta = base ** (-2 * t / r)
    wavelength = 2 * math.pi / theta
    if wavelength < L0 / 4:
        return theta
    if wavelength > L0:
        return theta / s
    smooth = (L0 / wavelength - 1) / (4 - 1)
    return (1 - smooth) * theta / s + smooth * theta


def longrope(t: int, r: int, base: float, s: float, L0: int, T: int) -> float:
    return base ** (-2 * t / r) / (1 if T <= L0 else s ** (t / (r / 2 - 1)))


FORMULAS: list[tuple[Scaling, Callable[..., float]]] = [
    (Linear(factor=4.0), linear),
    (NTK(factor=4.0), ntk),
    (DynamicNTK(factor=4.0), dynamic_ntk),
    (ByParts(factor=4.0), by_index),
    (ByParts(factor=4.0, ramp="rotations"), by_rotations),
    (YaRN(factor=4.0), by_index),
    (YaRN(factor=4.0, ramp="rotations"), by_rotations),
    (LongRoPE(factor=4.0), longrope),
    (Llama3(factor=4.0), llama3),
]


@pytest.mark.parametrize(("scaling", "formula"), FORMULAS, ids=lambda value: getattr(value, "name", ""))
def test_formula(scaling: Scaling, formula: Callable[..., float]) -> None:
    for width, base, L0 in ((64, 10_000.0, 2048), (16, 10_000.0, 64), (128, 500_000.0, 8192), (8, 100.0, 16)):
        for T in (1, L0 - 1, L0, L0 + 1, 2 * L0, 16 * L0):
            found = frequencies(rope(width, L0, base, scaling=scaling), T)
            expected = [formula(t, width, base, 4.0, L0, T) for t in range(width // 2)]
            assert found == pytest.approx(expected, rel=1e-12)


# Reference values


def test_ntk_changes_the_base_once_and_for_all() -> None:
    for width, base in ((64, 41829.3659), (128, 40889.9424)):
        encoding = rope(width, scaling=NTK(factor=4.0))
        assert base_of(encoding) == pytest.approx(base, rel=1e-8)
        divided = ratios(encoding)
        assert divided[0] == 1.0 and divided[-1] == pytest.approx(4, rel=1e-12)  # the ends, exactly


def test_dynamic_ntk_depends_on_the_length_at_hand() -> None:
    encoding = rope(64, scaling=DynamicNTK(factor=4.0))
    for length, base in ((16, 10_000), (2048, 10_000), (4096, 52664.4343), (8192, 141213.7574)):
        assert base_of(encoding, length) == pytest.approx(base, rel=1e-8)


def test_yarn_by_the_code_and_by_the_paper() -> None:
    code, paper = rope(64, scaling=YaRN(factor=4.0)), rope(64, scaling=YaRN(factor=4.0, ramp="rotations"))
    between = [1.0612, 1.1304, 1.2093, 1.3, 1.4054, 1.5294, 1.6774, 1.8571, 2.08, 2.3636, 2.7368, 3.25]
    assert ratios(code) == pytest.approx([1.0] * 9 + between + [4.0] * 11, abs=5e-5)
    less = [1 - b / a for a, b in zip(frequencies(code), frequencies(paper), strict=True)]
    assert max(less) == less[15] == pytest.approx(0.445, abs=0.001)


def test_llama3_of_the_released_models() -> None:
    """The frequencies used are the scaled ones: computed and then forgotten, all would be kept."""
    divided = ratios(rope(128, base=500_000.0, scaling=Llama3(factor=8.0, original_length=8192)))
    assert divided[:29] == pytest.approx([1] * 29) and divided[35:] == pytest.approx([8] * 29)
    assert divided[29:35] == pytest.approx([1.20748, 1.55341, 2.02631, 2.69453, 3.68425, 5.25733], abs=5e-6)
    divided = ratios(rope(64, base=500_000.0, scaling=Llama3(factor=32.0, original_length=8192)))
    assert [sum(r < 1.0001 for r in divided), sum(r > 31.99 for r in divided)] == [15, 14]


@pytest.mark.parametrize(("factor", "mscale"), [(1, 1), (4, 1.138629), (16, 1.277259), (40, 1.368888)])
def test_temperature_of_yarn(factor: float, mscale: float) -> None:
    """It multiplies queries and keys, and so logits by its square."""
    q, k = torch.randn(2, 1, 1, 9, 64, dtype=torch.float64)
    hot = rope(64, scaling=YaRN(factor=float(factor)))
    plain = rope(64, scaling=ByParts(factor=float(factor)))
    for scaled, unscaled in zip(hot.rotate(q, k), plain.rotate(q, k), strict=True):
        torch.testing.assert_close(scaled, mscale * unscaled, rtol=1e-6, atol=0)
    expected = mscale**2 * attention_logits(plain, q, k)
    torch.testing.assert_close(attention_logits(hot, q, k), expected, rtol=1e-6, atol=0)
    if factor == 4:
        assert hot.amplitude**2 == pytest.approx(1.296477, rel=1e-6)


def test_attention_factor_of_longrope() -> None:
    assert rope(64, 4096, scaling=LongRoPE(factor=32.0)).amplitude == pytest.approx(1.190238, rel=1e-6)
    assert rope(64, 4096, scaling=LongRoPE(factor=1.0)).amplitude == 1


def test_a_given_attention_factor_replaces_the_formula() -> None:
    for cls in (YaRN, LongRoPE):
        assert rope(64, scaling=cls(factor=4.0, attention_factor=1.5)).amplitude == 1.5
        assert rope(64, scaling=cls(factor=4.0, attention_factor=1.0)).preserves_norm


def test_features_that_do_not_turn_keep_their_temperature() -> None:
    encoding = rope(16, rotary=0.5, scaling=YaRN(factor=4.0))
    q = torch.randn(1, 1, 3, 16)
    rotated = encoding.rotate(q, q)[0]
    assert torch.equal(rotated[..., 8:], q[..., 8:])
    torch.testing.assert_close(rotated[..., :8].norm(dim=-1), encoding.amplitude * q[..., :8].norm(dim=-1))


def test_longrope_switches_beyond_the_original_length() -> None:
    short, long = (1.0, 1.5, 2.0, 2.5), (2.0, 4.0, 8.0, 16.0)
    scaling = LongRoPE(factor=4.0, short_factor=short, long_factor=long, original_length=32)
    encoding = rope(8, scaling=scaling)
    assert ratios(encoding, 32) == pytest.approx(short)
    assert ratios(encoding, 33) == pytest.approx(long)
    assert ratios(encoding, 32) == pytest.approx(short)


def test_longrope_of_equal_factors_switches_nothing() -> None:
    short, long = (tuple(number + 1.0 for number in range(4)) for _ in range(2))
    encoding = rope(8, 16, scaling=LongRoPE(factor=4.0, short_factor=short, long_factor=long))
    assert frequencies(encoding, 16) == frequencies(encoding, 17)
    assert encoding.translation_invariant and encoding.prefix_consistent


# The same thing in other words


@pytest.mark.parametrize("cls", ALL)
def test_stretching_by_1_is_rope(cls: type[Scaling]) -> None:
    """But for dynamic NTK, which stretches as far as a length asks: its factor is how far ahead it is of that."""
    length = 16 if cls is DynamicNTK else 50
    q, k = torch.randn(2, 1, 2, length, 16, dtype=torch.float64)
    scaled, plain = rope(16, 16, heads=2, scaling=cls(factor=1.0)), rope(16, 16, heads=2)
    torch.testing.assert_close(attention_logits(scaled, q, k), attention_logits(plain, q, k), rtol=0, atol=1e-12)
    assert scaled.preserves_norm
    assert scaled.translation_invariant == scaled.prefix_consistent == (cls is not DynamicNTK)


def test_dynamic_ntk_by_1_is_ntk_by_as_much_as_the_length_asks() -> None:
    dynamic, fixed = rope(16, 16, scaling=DynamicNTK(factor=1.0)), rope(16, 16, scaling=NTK(factor=3.0))
    assert frequencies(dynamic, 48) == pytest.approx(frequencies(fixed), rel=1e-14)


@pytest.mark.parametrize("cls", [DynamicNTK, LongRoPE])
def test_up_to_the_original_length_it_is_rope(cls: type[Scaling]) -> None:
    encoding, plain = rope(16, 32, scaling=cls(factor=4.0)), rope(16, 32)
    assert frequencies(encoding, 32) == frequencies(plain)
    assert frequencies(encoding, 33) != frequencies(plain)


def test_linear_interpolation_is_rope_at_smaller_positions() -> None:
    q = torch.randn(1, 1, 33, 16, dtype=torch.float64)
    scaled = rope(16, scaling=Linear(factor=4.0)).rotate(q, q)[0]
    torch.testing.assert_close(scaled, rope(16).rotate(q, q, torch.arange(33) / 4)[0], rtol=0, atol=1e-13)


def test_llama3_is_by_parts_within_other_bounds() -> None:
    parts = ByParts(factor=8.0, ramp="rotations", beta_slow=1.0, beta_fast=4.0)
    assert frequencies(rope(64, scaling=parts)) == pytest.approx(
        frequencies(rope(64, scaling=Llama3(factor=8.0))), rel=1e-14
    )


def test_yarn_without_temperature_is_by_parts() -> None:
    assert frequencies(rope(64, scaling=YaRN(factor=4.0))) == frequencies(rope(64, scaling=ByParts(factor=4.0)))


def test_longrope_without_factors_of_its_own_is_ntk_beyond() -> None:
    long = frequencies(rope(64, scaling=LongRoPE(factor=4.0)), 2049)
    assert long == pytest.approx(frequencies(rope(64, scaling=NTK(factor=4.0))), rel=1e-12)


@pytest.mark.parametrize("cls", ALL)
def test_the_width_that_counts_is_the_one_that_turns(cls: type[Scaling]) -> None:
    scaling = cls(factor=4.0)
    partial, narrow = rope(64, rotary=0.25, scaling=scaling), rope(16, scaling=scaling)
    assert frequencies(partial, 4000) == frequencies(narrow, 4000)


@pytest.mark.parametrize("cls", ALL)
def test_pairs_that_stand_still_stay_so(cls: type[Scaling]) -> None:
    some, every = rope(16, proportion=0.5, scaling=cls(factor=4.0)), rope(16, scaling=cls(factor=4.0))
    assert frequencies(some, 4000) == frequencies(every, 4000)[:4] + [0.0] * 4


@pytest.mark.parametrize("cls", [DynamicNTK, ByParts, YaRN, LongRoPE, Llama3])
def test_the_original_length_is_the_one_trained_on_unless_given(cls: type[Scaling]) -> None:
    implied, given = rope(16, 64, scaling=cls(factor=4.0)), rope(16, 999, scaling=cls(factor=4.0, original_length=64))
    assert frequencies(implied, 200) == frequencies(given, 200) != frequencies(rope(16), 200)
    assert implied.amplitude == given.amplitude
    other = Geometry(16, 1, 100, 200, causal=True, train_extents=(64,))  # positions, rather than tokens
    assert frequencies(RoPE(other, scaling=cls(factor=4.0)), 200) == frequencies(given, 200)


def test_a_length_too_short_for_any_pair_to_turn_once_is_interpolated() -> None:
    """The ramp over the index would otherwise run backwards, and keep all pairs but the first."""
    divided = ratios(rope(16, 4, scaling=ByParts(factor=4.0)))
    assert divided == pytest.approx([1.0] + [4.0] * 7)


# What is looked at, and what is kept


def turned(encoding: RoPE, length: int, positions: Tensor | None = None) -> Tensor:
    ones = torch.ones(1 if positions is None or positions.dim() < 2 else len(positions), 1, length, 16)
    return encoding.rotate(ones, ones, positions)[0]


@pytest.mark.parametrize("cls", [DynamicNTK, LongRoPE])
def test_a_long_call_leaves_no_trace_in_a_short_one(cls: type[Scaling]) -> None:
    encoding, fresh = rope(16, 32, scaling=cls(factor=4.0)), rope(16, 32, scaling=cls(factor=4.0))
    before = turned(encoding, 16)
    turned(encoding, 128)
    turned(encoding, 128, torch.arange(128))
    assert torch.equal(turned(encoding, 16), before) and torch.equal(before, turned(fresh, 16))
    assert torch.equal(turned(encoding, 16, torch.arange(16)), before)
    assert torch.equal(turned(encoding, 128), turned(fresh, 128))


@pytest.mark.parametrize("cls", [DynamicNTK, LongRoPE])
def test_the_length_at_hand_is_of_each_sequence_and_not_of_the_batch(cls: type[Scaling]) -> None:
    encoding = rope(16, 32, scaling=cls(factor=4.0))
    short, long = torch.arange(10), torch.arange(10) * 20
    both = turned(encoding, 10, torch.stack((short, long)))
    assert torch.equal(both[0], turned(encoding, 10, short)[0])
    assert torch.equal(both[1], turned(encoding, 10, long)[0])
    shuffled = torch.randperm(10)
    assert torch.equal(turned(encoding, 10, long[shuffled]), both[1:, :, shuffled])


@pytest.mark.parametrize("cls", ALL)
def test_the_last_position_of_the_stretched_range_is_exact(cls: type[Scaling]) -> None:
    """s L0 - 1, also where nothing so far has been kept; and the next."""
    encoding = rope(16, 64, scaling=cls(factor=4.0))
    for position in (255, 256, 10**6):
        found = turned(encoding, 1, torch.tensor([position]))[0, 0, 0].double()
        for t, theta in enumerate(frequencies(encoding, position + 1)):
            cos, sin = (encoding.amplitude * f(position * theta) for f in (math.cos, math.sin))
            assert found[2 * t : 2 * t + 2].tolist() == pytest.approx([cos - sin, sin + cos], abs=3e-7)
    assert torch.equal(turned(encoding, 256)[:, :, 255:], turned(encoding, 256, torch.arange(256))[:, :, 255:])


@pytest.mark.parametrize("cls", ALL)
def test_what_a_scaling_breaks_is_declared(cls: type[Scaling]) -> None:
    encoding = rope(16, 16, scaling=cls(factor=4.0))
    by_length = cls in (DynamicNTK, LongRoPE)
    assert encoding.translation_invariant == encoding.prefix_consistent == (not by_length)
    assert encoding.preserves_norm == (cls not in (YaRN, LongRoPE))
    q, k = torch.randn(2, 1, 1, 20, 16, dtype=torch.float64)
    assert torch.allclose(encoding.rotate(q, k)[0].norm(dim=-1), q.norm(dim=-1)) == encoding.preserves_norm
    whole, cut = attention_logits(encoding, q, k), attention_logits(encoding, q[:, :, :9], k[:, :, :9])
    assert torch.allclose(whole[..., :9, :9], cut) == encoding.prefix_consistent
    shifted = attention_logits(encoding, q[:, :, :9], k[:, :, :9], torch.arange(9) + 100)
    assert torch.allclose(shifted, cut) == encoding.translation_invariant
    assert RoPE.preserves_norm and RoPE.translation_invariant and RoPE.prefix_consistent  # the class's own stay


# Options


@pytest.mark.parametrize("cls", ALL)
def test_a_scaling_from_a_config(cls: type[Scaling]) -> None:
    options: dict[str, Any] = {"dim": 16, "heads": 2, "train_length": 16, "max_length": 32, "causal": True}
    scaling = cls(factor=4.0)
    for given in ({"name": scaling.name, "factor": 4.0}, {"name": scaling.name, "factor": 4}, scaling):
        assert make_encoding("rope", **options, scaling=given).scaling == scaling
    preset = make_encoding(f"rope_{scaling.name}", **options)
    assert preset.scaling == scaling
    assert (preset.layout, preset.rotation.base, preset.rotation.width) == ("interleaved", 10_000, 8)
    assert replace(scaling, factor=2.0).year == cls.year and "arXiv" in cls.source


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        *((cls, {"factor": 0.5}, "factor=0.5 must be at least 1") for cls in ALL),
        (YaRN, {"ramp": "paper"}, "ramp=paper is not one of index, rotations"),
        (YaRN, {"original_length": 0}, "original_length=0 must be at least 1, or null"),
        (DynamicNTK, {"original_length": -1}, "original_length=-1"),
        (Llama3, {"original_length": 0}, "original_length=0"),
        (LongRoPE, {"original_length": 1}, "original_length=1 must be at least 2, or null"),
        (YaRN, {"attention_factor": 0.0}, "attention_factor=0.0 must be positive, or null"),
        (LongRoPE, {"attention_factor": -1.0}, "attention_factor=-1.0"),
        (ByParts, {"beta_slow": 40.0}, "beta_slow=40.0 must lie between 0 and beta_fast=32.0"),
        (Llama3, {"high_freq_factor": 1.0}, "low_freq_factor=1.0 must lie between 0 and high_freq_factor=1.0"),
        (LongRoPE, {"short_factor": (1.0, 0.0)}, r"short_factor=\[1.0, 0.0\] must be positive"),
        (LongRoPE, {"long_factor": ()}, r"long_factor=\[\] must be positive numbers, one a pair"),
    ],
)
def test_impossible_options_are_refused(cls: type[Scaling], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**{"factor": 4.0} | options)


@pytest.mark.parametrize(
    ("width", "trained", "scaling", "message"),
    [
        (2, 16, NTK(factor=4.0), "ntk stretches the slowest of several pairs: 2 rotated features are one pair"),
        (2, 16, DynamicNTK(factor=4.0), "dynamic_ntk stretches"),
        (2, 16, LongRoPE(factor=4.0), "longrope stretches"),
        (8, 16, LongRoPE(factor=4.0, short_factor=(1.0,) * 3), "short_factor has 3 numbers, and must have 4"),
        (8, 16, LongRoPE(factor=4.0, long_factor=(1.0,) * 8), "long_factor has 8 numbers, and must have 4"),
        (8, 1, LongRoPE(factor=4.0), "longrope needs an original_length of at least 2, not 1"),
    ],
)
def test_a_scaling_that_does_not_fit_is_refused(width: int, trained: int, scaling: Scaling, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rope(width, trained, scaling=scaling)
