from dataclasses import replace

import pytest
import torch
from grids import grid
from torch import Tensor

from rpe_bench.attention import attend, attention_logits
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.swin import Swin

GOLDEN_2x3 = [
    [7, 6, 5, 2, 1, 0],
    [8, 7, 6, 3, 2, 1],
    [9, 8, 7, 4, 3, 2],
    [12, 11, 10, 7, 6, 5],
    [13, 12, 11, 8, 7, 6],
    [14, 13, 12, 9, 8, 7],
]
"""The row of the table for the cells of a 2 x 3 grid, queries down and keys across."""


def rows(encoding: Swin, positions: Tensor) -> Tensor:
    return encoding.row(Context(positions.shape[1], False, positions).offset)[0]


def test_golden_rows(make) -> None:
    """Fifteen rows; with 2 M_y - 1 for the stride there would be eleven."""
    found = rows(make(Swin, window=[2, 3]), grid(2, 3))
    assert found.tolist() == GOLDEN_2x3
    assert len(found.unique()) == 15


@pytest.mark.parametrize("window", [(2, 3), (3, 2), (1, 5), (7, 7)])
def test_every_row_is_reached_and_none_beyond(make, window: tuple[int, int]) -> None:
    encoding = make(Swin, window=list(window))
    found = rows(encoding, grid(*window)).unique()
    assert found.tolist() == list(range(len(encoding.table_NH)))
    assert len(encoding.table_NH) == (2 * window[0] - 1) * (2 * window[1] - 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(make, reference_equals_formula, causal: bool, per_head: bool) -> None:
    encoding = make(Swin, std=1.0, window=[3, 6], causal=causal, per_head=per_head)
    table, cells = encoding.table_NH.detach().double().numpy(), grid(3, 5)[0].tolist()

    def logit(h, i, j, q, k) -> float:
        (y_i, x_i), (y_j, x_j) = cells[i], cells[j]
        return q @ k / 2 + table[(y_i - y_j + 2) * 11 + x_i - x_j + 5, h if per_head else 0]

    reference_equals_formula(encoding, logit, 15, grid(3, 5, 2))


def test_each_example_has_its_own_grid(make) -> None:
    """Examples of the same layout share what is computed; which of them have it must not matter."""
    layouts = [grid(4, 5), grid(2, 10), grid(4, 5), grid(5, 4), grid(2, 10)]
    encoding = make(Swin, std=1.0, window=[10, 10])
    q, k = torch.randn(2, 5, 2, 20, 4)
    found = attention_logits(encoding, q, k, torch.cat(layouts))
    for b, layout in enumerate(layouts):
        alone = attention_logits(encoding, q[b : b + 1], k[b : b + 1], layout)
        torch.testing.assert_close(found[b : b + 1], alone, rtol=0, atol=1e-6)
    assert (found[0] - found[3]).abs().max() > 0.1


def test_chunks_of_queries_keep_no_rows(make) -> None:
    encoding, context = make(Swin, causal=False), Context(20, False, grid(4, 5))
    q = torch.zeros(1, 2, 20, 4)
    whole = encoding.bias(q, q, context.with_(memo={}))
    parts = [encoding.bias(q, q, context.with_(rows=slice(start, start + 7))) for start in (0, 7, 14)]
    assert torch.equal(torch.cat(parts, dim=2), whole)
    assert all(tensor.numel() <= 40 for kept in context.memo.values() for tensor in kept[1])


def test_what_layers_share_belongs_to_its_positions(make) -> None:
    encoding, context, q = make(Swin), Context(20, False, grid(4, 5)), torch.zeros(1, 2, 20, 4)
    first = encoding.bias(q, q, context)
    other = context.with_(positions=grid(4, 5).flip(1))
    assert torch.equal(encoding.bias(q, q, other), first.flip(2, 3))
    assert torch.equal(encoding.bias(q, q, context), first)


def test_a_zero_table_is_no_position(make) -> None:
    q = torch.randn(1, 2, 20, 4)
    found = attention_logits(make(Swin, std=0.0), q, q, grid(4, 5))
    assert torch.equal(found, attention_logits(make(NoPE), q, q))


def test_offsets_beyond_the_window_are_errors(make) -> None:
    encoding, q = make(Swin, window=[3, 5]), torch.zeros(1, 2, 2, 4)
    assert encoding.longest == 5
    for far in ([2, 4], [-2, -4]):
        attention_logits(encoding, q, q, torch.tensor([[[100, 100], [100 + far[0], 100 + far[1]]]]))
    with pytest.raises(ValueError, match="an offset of 3 rows lies beyond a window of 3: 0 to 2 either way"):
        attention_logits(encoding, q, q, torch.tensor([[[0, 0], [3, 0]]]))
    with pytest.raises(ValueError, match="an offset of 7 columns lies beyond a window of 5: 0 to 4 either way"):
        attention_logits(encoding, q, q, torch.tensor([[[0, 7], [0, 0]]]))
    with pytest.raises(ValueError, match="whole positions"):
        attention_logits(encoding, q, q, torch.tensor([[[0, 0], [0, 0.5]]]))


def test_the_window_is_the_largest_evaluated_grid(make) -> None:
    encoding = make(Swin)
    assert encoding.geometry.max_extents == (8, 8) and encoding.window == (8, 8) and encoding.longest == 8
    uneven = Swin(replace(encoding.geometry, max_extents=(4, 16)))
    assert uneven.window == (4, 16) and uneven.longest == 16


def test_rows_that_a_grid_does_not_reach_learn_nothing(make) -> None:
    encoding = make(Swin, causal=False, window=[4, 4])
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    attend(encoding, q, k, v, Context(6, False, grid(2, 3))).square().sum().backward()
    touched = encoding.table_NH.grad.abs().sum(1).nonzero().flatten().tolist()
    assert touched == [(dy + 3) * 7 + dx + 3 for dy in range(-1, 2) for dx in range(-2, 3)]


def test_one_table_for_all_layers_or_one_a_layer(make) -> None:
    geometry = replace(make(Swin).geometry, layers=3)
    assert len(Swin.build(geometry, shared=True)) == 1
    assert len({id(module.table_NH) for module in Swin.build(geometry)}) == 3


def test_initial_values(make) -> None:
    table = make(Swin, heads=16, std=0.5).table_NH
    assert table.shape == (225, 16)
    assert table.std().item() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"std": -0.1}, "std=-0.1"),
        ({"window": [0, 3]}, r"window=\[0, 3\] must be two positive integers"),
        ({"window": [3]}, r"window=\[3\]"),
        ({"window": [3, 2.5]}, r"window=\[3, 2.5\]"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Swin, **parameters)


def test_an_index_is_no_cell(make) -> None:
    q = torch.randn(1, 2, 4, 4)
    with pytest.raises(ValueError, match="was given none"):
        attention_logits(make(Swin), q, q)
