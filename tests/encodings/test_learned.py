import pytest
import torch

from rpe_bench.encodings.learned import Learned


def test_row_p_is_added_at_position_p(make) -> None:
    encoding = make(Learned)
    x = torch.randn(2, 5, 8)
    assert torch.equal(encoding.embed(x), x + encoding.table_LD[:5])
    positions = torch.tensor([[63, 0, 1, 2, 3], [4, 4, 9, 8, 7]])
    assert torch.equal(encoding.embed(x, positions), x + encoding.table_LD[positions])


def test_concatenated(make) -> None:
    encoding = make(Learned, combine="concatenate", width=3)
    assert encoding.table_LD.shape == (64, 3)
    x = torch.randn(2, 5, 8)
    expected = torch.cat((x[..., :5], encoding.table_LD[:5].expand(2, 5, 3)), dim=-1)
    assert torch.equal(encoding.embed(x), expected)


def test_the_table_covers_the_longest_evaluated_sequence(make) -> None:
    assert make(Learned).longest == 64 == len(make(Learned).table_LD)
    assert make(Learned, size=20).longest == 20 == len(make(Learned, size=20).table_LD)


def test_initial_values(make) -> None:
    table = make(Learned, head_dim=64, std=0.3).table_LD
    assert table.std().item() == pytest.approx(0.3, rel=0.05)
    assert len(table.unique(dim=0)) == 64


def test_positions_beyond_the_table_are_errors(make) -> None:
    encoding = make(Learned, size=20)
    encoding.embed(torch.zeros(1, 20, 8))
    with pytest.raises(ValueError, match="position 20 .* 20 rows, 0 to 19"):
        encoding.embed(torch.zeros(1, 21, 8))
    with pytest.raises(ValueError, match="position 33 .* 20 rows"):
        encoding.embed(torch.zeros(1, 2, 8), torch.tensor([0, 33]))
    with pytest.raises(ValueError, match="position -1 "):  # which indexing would take for the last row
        encoding.embed(torch.zeros(1, 2, 8), torch.tensor([-1, 0]))
    with pytest.raises(ValueError, match="whole positions"):
        encoding.embed(torch.zeros(1, 2, 8), torch.tensor([0.0, 0.5]))


def test_rows_out_of_reach_learn_nothing(make) -> None:
    encoding = make(Learned)
    encoding.embed(torch.randn(2, 5, 8)).square().sum().backward()
    assert encoding.table_LD.grad.abs().sum(1).nonzero().flatten().tolist() == list(range(5))


@pytest.mark.parametrize(("parameters", "message"), [({"size": 0}, "size=0"), ({"std": -1.0}, "std=-1.0")])
def test_impossible_options_are_refused(make, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Learned, **parameters)
