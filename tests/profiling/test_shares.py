"""Parts of a step and kinds of operator: all of the time, each under its name."""

import pytest
import torch
from torch import nn

from rpe_bench import catalogue
from rpe_bench.model import Block
from rpe_bench.profiling.cells import Subject
from rpe_bench.profiling.shares import GROUPS, Step, Stopwatch, group_of, shares
from rpe_bench.report.shares import text


def subject(name: str, **options: object) -> Subject:
    return Subject(catalogue.read("encoding", name) | options)


@pytest.mark.parametrize(
    ("operator", "group"),
    [
        *(("aten::mm", "matrix products"), ("aten::addmm", "matrix products"), ("aten::add_", "arithmetic")),
        *(("aten::_log_softmax", "loss"), ("aten::_softmax_backward_data", "softmax"), ("aten::exp", "arithmetic")),
        *(("aten::expand", "views and allocation"), ("aten::t", "views and allocation"), ("aten::tril", "arithmetic")),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "fused attention"),
        *(("aten::native_layer_norm_backward", "layer norms"), ("aten::_fused_adamw_", "optimiser and clipping")),
        *(("aten::_foreach_mul_", "optimiser and clipping"), ("AddmmBackward0", "Python and dispatch")),
        ("mkldnn::_linear_pointwise", "matrix products"),
        ("autograd::engine::evaluate_function: MmBackward0", "Python and dispatch"),
    ],
)
def test_operators_are_grouped(operator: str, group: str) -> None:
    assert group_of(operator) == group


class Time:
    """A clock that goes on by what it is told, and by a little whenever it is looked at."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1e-6
        return self.seconds


def test_a_stopwatch_loses_no_time() -> None:
    clock = Time()
    watch = Stopwatch(clock)
    watch.start("one")
    for part, spent in (("two", 3.0), ("one", 1.0), ("", 2.0)):
        clock.seconds += spent
        watch.switch(part)
    assert watch.parts == {"one": pytest.approx(5, abs=1e-4), "two": pytest.approx(1, abs=1e-4)}


def test_the_parts_of_a_step_are_named_and_are_all_of_it(make_config) -> None:
    clock = Time()
    step = Step(make_config("copy", "nope"), subject("t5"), 32, clock)
    step()
    start = clock.seconds
    parts = step()
    children = [name for name, child in Block(16, 2).named_children() if not isinstance(child, nn.LayerNorm)]
    names = {f"forward: {name}" for name in (*children, "tokens", "answers", "norms", "rest")}
    assert set(parts) == names | {"loss", "backward", "clipping", "optimiser", "batch and clearing of gradients"}
    assert all(spent > 0 for spent in parts.values())
    assert sum(parts.values()) == pytest.approx(clock.seconds - start, abs=3e-6)


def test_what_takes_long_is_found_under_its_name(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time()
    step = Step(make_config("copy", "nope", {"recipe.accumulate": 2}), subject("nope"), 16, clock)

    def takes(seconds: float, owner: object, name: str) -> None:
        plain = getattr(owner, name)

        def slow(*given: object, **named: object) -> object:
            clock.seconds += seconds
            return plain(*given, **named)

        monkeypatch.setattr(owner, name, slow)

    takes(1, step._model.blocks[0].mlp, "forward")
    takes(10, step._model.encodings[0], "embed")
    takes(100, torch.Tensor, "backward")
    takes(1000, step._optimiser, "step")
    found = {part: round(spent) for part, spent in step().items() if round(spent)}
    # Twice, for two micro-batches; what comes before the loss's own gradient is the loss's.
    assert found == {"forward: mlp": 2, "forward: rest": 20, "loss": 200, "optimiser": 1000}


def test_shares_of_all_kinds(make_config) -> None:
    config = make_config("copy", "nope", {"recipe.batch_size": 4})
    chosen = [subject("nope"), subject("t5"), subject("learned", size=8)]
    rows, refused = shares(config, chosen, [24], 3)
    assert set(refused) == {"learned at 24"}
    assert {row["encoding"] for row in rows} == {"nope", "t5"}
    of_t5 = [row for row in rows if (row["encoding"], row["length"]) == ("t5", 24)]
    for turn in range(3):
        values = {row["quantity"]: row["value"] for row in of_t5 if row["round"] == turn}
        assert sum(v for k, v in values.items() if k.startswith("part: ")) == pytest.approx(values["step"])
        assert 0 < values["floor"] < values["floor, masked pairs too"] < values["step"]
        assert values["sampling"] > 0 and values["step in bf16-mixed"] > 0
    operators = {row["quantity"]: row["value"] for row in of_t5 if row["quantity"].startswith("operator: ")}
    assert sum(operators.values()) == pytest.approx(1)
    assert {f"operator: {group}" for group in ("matrix products", "softmax", "layer norms", "GELU")} <= set(operators)
    assert set(operators) <= {
        f"operator: {g}" for g in (*GROUPS, "arithmetic", "views and allocation", "Python and dispatch")
    }
    for row in rows:
        if row["quantity"] == "step in bf16-mixed":
            row["value"] = next(
                2 * other["value"] for other in rows if other == row | {"quantity": "step", "value": other["value"]}
            )
    said = text(rows, "here")
    assert said.count("     0.50 [0.50, 0.50]  of the time that it takes in bf16-mixed\n") == 2
    assert said.startswith("here\n\nnope, 24 tokens: ") and "t5, 24 tokens: " in said
    assert "  matrix products" in said and "  backward" in said and "median and quartiles of 3 rounds" in said
