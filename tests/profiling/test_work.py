"""Floating point operations of a step, against what torch counts."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from rpe_bench import catalogue
from rpe_bench.profiling.cells import Subject, batch_of, build
from rpe_bench.profiling.work import Work, large_products

NOPE = Subject(catalogue.read("encoding", "nope"))


@pytest.mark.parametrize("task", ["copy", "adjacency"])
@pytest.mark.parametrize("causal", [True, False])
def test_operations_are_those_that_torch_counts(make_config, task: str, causal: bool) -> None:
    overrides = {"model.layers": 3, "model.causal": causal, "recipe.batch_size": 4}
    if task == "copy" and not causal:
        pytest.skip("copy needs a causal model")
    config = make_config(task, "nope", overrides)
    model, examples, length = build(config, NOPE, 24), 4, 24
    batch = batch_of(config, NOPE, length, examples)
    products: list[int] = []
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda m, given, out: products.append(2 * m.in_features * out.numel()))
    model(batch.tokens_BT, batch.positions)
    work = Work.of(config, length, examples)
    assert work.linear == 3 * sum(products)
    # The plain kernel multiplies hidden pairs too; its backward pass has two products for each of the forward pass.
    q, k, v = torch.randn(3, examples, config.model.heads, length, 16 // config.model.heads, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()
    assert work.attention + work.masked == 3 * counted.get_total_flops()  # of 3 layers
    assert (work.masked > 0) == causal
    assert not causal or work.attention / (work.attention + work.masked) == 25 / 48


def test_the_floor_follows_the_speeds() -> None:
    work = Work(linear=100.0, attention=10.0, masked=5.0)
    speeds = {"fp32": 10.0, "bf16": 20.0}
    assert work.seconds(speeds, "fp32") == 11
    assert work.seconds(speeds, "fp32", masked=True) == 11.5
    assert work.seconds(speeds, "bf16-mixed") == 5.5


def test_large_products_are_what_they_say() -> None:
    for name, (call, operations) in large_products(torch.device("cpu")).items():
        with FlopCounterMode(display=False) as counted:
            call()
        assert counted.get_total_flops() == operations, name
