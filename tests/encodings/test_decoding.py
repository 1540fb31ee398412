"""Positions are data: token by token, padded on the left, with keys forgotten, an encoding gives what it gives at once.

Every encoding of text and of grids is enrolled by being in conf/encoding.
"""

import math

import pytest
import torch
from support import Case, cases, indices, setting
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from rpe_bench.attention import attend, logits
from rpe_bench.components import make_encoding
from rpe_bench.encodings.base import Context, Encoding

CASES = [(case, case.encoding()) for case in cases()]
STEPWISE = [case for case, encoding in CASES if case.causal and encoding.prefix_consistent]
PAIRWISE = [case for case, encoding in CASES if encoding.pairwise]
T = 11


def loud(case: Case) -> Encoding:
    """Values far from zero, so that nothing holds for want of an effect."""
    encoding = case.encoding().double()
    for number, parameter in enumerate(encoding.parameters()):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return encoding.requires_grad_(False)


def positions_of(encoding: Encoding, chosen: Tensor | list[int]) -> Tensor:
    """Of the chosen tokens of a sequence: (T,), or (B, T, A) of the cells of a grid."""
    chosen = torch.as_tensor(chosen)
    cells = indices(encoding, 2 * T)
    return chosen if cells is None else cells[:, chosen]


def mixed(
    encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, context: Context, hidden: Tensor | None = None
) -> Tensor:
    """Attention of the rows at hand, by its definition; `hidden` keys are hidden from all."""
    q, k = encoding.rotate(q, k, context.positions, context)
    scores = logits(encoding, q[:, :, context.rows], k, context)
    if context.hidden_QS is not None:
        scores = scores.masked_fill(context.hidden_QS, -math.inf)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return encoding.value(scores.softmax(-1), v, context)


@pytest.mark.parametrize("chunk", [1, 3, T])
@pytest.mark.parametrize("case", STEPWISE, ids=str)
def test_token_by_token_is_the_whole_at_once(case: Case, chunk: int) -> None:
    """Each step with the keys so far: none dropped, none at the place of another, no query counted from 0."""
    encoding = loud(case)
    for positions in (None, positions_of(encoding, range(T))):
        given = setting(encoding, T, positions)
        whole = attend(encoding, given.q, given.k, given.v, given.context)
        for start in range(0, T, chunk):
            end = min(start + chunk, T)
            step = given.context.prefix(end).with_(rows=slice(start, end))
            found = mixed(encoding, *(x[:, :, :end] for x in (given.q, given.k, given.v)), step)
            torch.testing.assert_close(found, whole[:, :, start:end], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", PAIRWISE, ids=str)
def test_padding_on_the_left_shifts_no_position(case: Case) -> None:
    """Four tokens before the first, which none sees, at whatever positions."""
    encoding, pad = loud(case), 4
    padded = positions_of(encoding, [0] * pad + list(range(T)))
    given = setting(encoding, pad + T, padded)
    c = given.context
    assert c.x_BTD is not None and c.tokens_BT is not None
    real = c.with_(
        length=T, positions=positions_of(encoding, range(T)), x_BTD=c.x_BTD[:, pad:], tokens_BT=c.tokens_BT[:, pad:]
    )
    hidden = (torch.arange(pad + T) < pad)[None, :]
    found = mixed(encoding, given.q, given.k, given.v, c.with_(rows=slice(pad, None)), hidden)
    expected = mixed(encoding, *(x[:, :, pad:] for x in (given.q, given.k, given.v)), real)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    embedded = encoding.embed(c.x_BTD, c.positions, c.tokens_BT)
    alone = encoding.embed(real.x_BTD, real.positions, real.tokens_BT)
    torch.testing.assert_close(embedded[:, pad:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", PAIRWISE, ids=str)
def test_the_next_position_is_not_the_number_of_keys_kept(case: Case) -> None:
    """Of ten keys four are forgotten; the next query still stands at 10, and not at 6."""
    encoding, kept = loud(case), [0, 5, 6, 7, 8, 9, 10]
    given = setting(encoding, T, positions_of(encoding, range(T)))
    c = given.context
    assert c.x_BTD is not None and c.tokens_BT is not None
    forgotten = torch.ones(T, dtype=torch.bool)
    forgotten[kept] = False
    expected = mixed(encoding, given.q, given.k, given.v, c.with_(rows=slice(10, 11)), forgotten[None, :])
    few = c.with_(
        length=len(kept), positions=positions_of(encoding, kept), x_BTD=c.x_BTD[:, kept], tokens_BT=c.tokens_BT[:, kept]
    )
    found = mixed(encoding, *(x[:, :, kept] for x in (given.q, given.k, given.v)), few.with_(rows=slice(6, 7)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "explicit"),
    [
        *(("rope", False), ("rope_partial", True), ("rope_dynamic_ntk", True), ("rope_longrope", False)),
        *(("xpos", False), ("alibi", False), ("t5", False), ("shaw", False), ("transformer_xl", False)),
        ("deberta", False),
    ],
)
def test_growing_lengths_are_compiled_twice_at_most(name: str, explicit: bool) -> None:
    """Once for the first length, and once for any."""
    encoding = make_encoding(name, dim=16, heads=2, train_length=16, max_length=128, causal=True)
    torch._dynamo.reset()
    counter = CompileCounter()

    def attention(q: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        return attend(encoding, q, q, q, Context(q.shape[2], True, positions))

    compiled = torch.compile(attention, backend=counter)  # type: ignore[arg-type]
    for length in (16, 17, 32, 33, 64):
        q, positions = torch.randn(1, 2, length, 8), torch.arange(length) if explicit else None
        torch.testing.assert_close(compiled(q, positions), attention(q, positions))
    assert counter.frame_count <= 2
    torch._dynamo.reset()
