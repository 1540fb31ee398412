"""The small tools that encodings share."""

import pytest
import torch

from rpe_bench import attention_logits, make_encoding
from rpe_bench.encodings.base import whole


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
