"""Every kind of failure is named as what it is, and noise as none."""

import numpy as np
import pandas as pd
import pytest

from rpe_bench.diagnostics.failure import Effect, cause, effect, first_failing, first_rise, onset

N, LONGEST = 64, 512
POSITION = np.arange(LONGEST)


def positions(loss: np.ndarray, noise: float = 0.07, seed: int = 0) -> pd.DataFrame:
    drawn = np.random.default_rng(seed).normal(size=LONGEST)
    return pd.DataFrame({"position": POSITION, "loss": loss + noise * drawn})


def shapes(begins: int, rise: float) -> dict[str, np.ndarray]:
    """Losses that leave 1.7 after `begins`, towards `rise` more at the end."""
    beyond = np.maximum(POSITION - begins + 1, 0)
    end = beyond[-1]
    return {
        "step": 1.7 + rise * (beyond > 0),
        "fast": 1.7 + rise * (1 - np.exp(-beyond / 5)),
        "linear": 1.7 + rise * beyond / end,
        "logarithmic": 1.7 + rise * np.log1p(beyond / N) / np.log1p(end / N),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rise", [0.5, 3.0])
@pytest.mark.parametrize(
    ("shape", "begins", "named"),
    [
        ("step", N, "first position"),
        ("fast", N, "first position"),
        ("step", 110, "later"),
        ("fast", 110, "later"),
        ("linear", N, "gradual"),
        ("logarithmic", N, "gradual"),
        ("linear", 150, "gradual"),
    ],
)
def test_each_shape_is_named(shape: str, begins: int, named: str, rise: float, seed: int) -> None:
    found = onset(positions(shapes(begins, rise)[shape], seed=seed), N)
    assert found is not None and found.shape == named
    assert found.level == pytest.approx(1.7, abs=0.05) and found.noise == pytest.approx(0.07, rel=0.6)
    late = {"linear": 0.2 * LONGEST, "logarithmic": 0.2 * LONGEST}.get(shape, 4)
    assert begins - 4 <= found.position <= begins + late


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.07, 0.5])
def test_noise_alone_is_no_failure(noise: float) -> None:
    """Nor is a loss that falls with more context, nor one that is a little higher for certain."""
    falling = 1.7 + 0.5 * np.exp(-POSITION / 20)
    named = []
    for seed in range(60):
        for loss in (np.full(LONGEST, 1.7), falling, 1.7 + 0.05 * (POSITION >= N)):
            found = onset(positions(loss, noise, seed), N)
            assert found is not None and (found.shape == "none") == (found.position is None)
            named += [found] * (found.shape != "none")
    assert not named


def test_noise_that_lasts_is_no_failure() -> None:
    """Texts are hard over stretches: the loss of a position is like that of the one before."""
    named = 0
    for seed in range(100):
        drawn = 0.07 * np.random.default_rng(seed).normal(size=LONGEST)
        for t in range(1, LONGEST):
            drawn[t] = 0.5 * drawn[t - 1] + 0.75**0.5 * drawn[t]
        named += onset(positions(1.7 + drawn, 0.0), N).shape != "none"
    assert named <= 1


def test_a_rise_that_heals_is_no_failure() -> None:
    loss = 1.7 + 2.0 * ((POSITION >= N) & (POSITION < 2 * N))
    assert onset(positions(loss), N).shape == "none"


def test_the_order_of_the_rows_and_outliers_before_change_nothing() -> None:
    table = positions(shapes(N, 2.0)["step"])
    assert onset(table.sample(frac=1, random_state=0), N) == onset(table, N)
    spoilt = table.assign(loss=table["loss"] + 5.0 * table["position"].isin([40, 55]))
    assert onset(spoilt, N).position == N


def test_a_trace_before_is_not_the_rise() -> None:
    """However certain it is."""
    loss = 1.7 + 0.1 * (POSITION >= N) + 2.5 * (POSITION >= 110)
    found = onset(positions(loss, noise=0.01), N)
    assert (found.shape, found.position) == ("later", 110)


def test_too_few_positions_say_nothing() -> None:
    table = positions(shapes(N, 2.0)["step"])
    assert onset(table[table["position"] >= N - 7], N) is None
    assert onset(table[table["position"] < N + 7], N) is None
    assert onset(table[table["position"].between(N - 8, N + 7)], N) is not None
    assert onset(table.iloc[:0], N) is None


def test_the_least_rise_is_what_is_asked_for() -> None:
    table = positions(shapes(N, 0.3)["step"], noise=0.01)
    assert onset(table, N, least=0.2).shape == "first position" and onset(table, N, least=0.4).shape == "none"


def test_the_first_failing_length() -> None:
    rows = pd.DataFrame({"length": [128, 8, 64, 16, 32], "token_accuracy": [0.95, 0.1, 0.6, 0.97, 0.9]})
    assert first_failing(rows, 16, 0.9) == (64, 0.6)
    assert first_failing(rows, 8, 0.9) == (8, 0.1)
    assert first_failing(rows, 128, 0.9) is None
    assert first_failing(rows, 16, 0.95) == (32, 0.9)


def test_effects_are_paired_by_example() -> None:
    rng = np.random.default_rng(0)
    difficulty, added = rng.normal(2, 5, size=50), rng.normal(0.5, 0.1, size=50)
    plain = pd.DataFrame({"intervention": "plain", "example": range(50), "loss": difficulty})
    moved = pd.DataFrame({"intervention": "shifted", "example": range(50), "loss": difficulty + added})
    found = effect(pd.concat([plain, moved.sample(frac=1, random_state=1)]), "shifted")
    assert found.mean == pytest.approx(added.mean()) and found.error == pytest.approx(added.std(ddof=1) / 50**0.5)


def test_a_cause_is_what_harms() -> None:
    none, little, much, more = Effect(0.0, 0.0), Effect(0.05, 0.001), Effect(2.0, 0.1), Effect(5.0, 0.1)
    assert cause(much, none) == cause(much, much) == cause(more, much) == "positions"
    assert cause(much, more) == "both"
    assert cause(none, much) == cause(little, much) == "distances"
    assert cause(none, little) == "length"
    assert cause(Effect(0.05, 0.001), none, least=0.02) == "positions"


@pytest.mark.parametrize("unsure", [Effect(0.5, 0.4), Effect(0.08, 0.05), Effect(3.0, float("nan"))])
def test_what_few_examples_cannot_tell_is_left_open(unsure: Effect) -> None:
    """A single example has no standard error."""
    none, much = Effect(0.0, 0.0), Effect(2.0, 0.1)
    assert cause(unsure, none) == cause(none, unsure) == cause(unsure, unsure) == cause(unsure, much) == "unclear"


def test_losses_of_single_tokens_are_no_failure() -> None:
    """They are skewed: most are small, and a few are large; so are means over few examples."""
    named, seeds = 0, 200
    for seed in range(seeds):
        drawn = np.random.default_rng(seed).exponential(size=LONGEST)
        named += onset(pd.DataFrame({"position": POSITION, "loss": drawn}), N).shape != "none"
    assert named <= 0.02 * seeds


def test_a_rise_too_slow_for_the_noise_is_gradual_from_nowhere() -> None:
    loss = 1.7 + 0.4 * np.maximum(POSITION - N, 0) / (LONGEST - N)
    found = onset(positions(loss, noise=0.3), N)
    assert (found.shape, found.position) == ("gradual", None)
    assert found.rise > 3 * found.error and found.error == pytest.approx(0.3 * (1 / 32 + 1 / 112) ** 0.5, rel=0.4)


def test_the_first_length_with_a_higher_loss() -> None:
    rows = pd.DataFrame({"length": [256, 32, 64, 128], "loss": [1.8, 0.5, 1.2, 1.25]})
    assert first_rise(rows, 64) == (256, 1.8) and first_rise(rows, 64, 0.04) == (128, 1.25)
    assert first_rise(rows, 64, 0.7) is None and first_rise(rows, 256) is None
