import torch

from rpe_bench.attention import attend
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE


def test_formula(make, reference_equals_formula) -> None:
    for causal in (True, False):
        reference_equals_formula(make(NoPE, causal=causal), lambda h, i, j, q, k: q @ k / 2)


def test_positions_change_nothing(make) -> None:
    encoding = make(NoPE)
    x, q, k, v = torch.randn(1, 5, 8), *torch.randn(3, 1, 2, 5, 4)
    positions = torch.tensor([7, 1, 0, 0, 30])
    assert torch.equal(encoding.embed(x, positions), x)
    grid = torch.stack((positions, positions), dim=-1)[None]
    bare = attend(encoding, q, k, v, Context(5, True))
    for given in (positions, grid):
        assert torch.equal(attend(encoding, q, k, v, Context(5, True, given)), bare)
