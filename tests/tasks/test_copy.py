"""The symbols come back in order, and only the copy is scored."""

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.copy import Copy


def answers(task: Copy, tokens: list[int]) -> list[int]:
    """The targets of an example, worked out from its tokens alone."""
    separator = tokens.index(task.sep)
    symbols = tokens[1:separator]
    assert tokens == [task.bos, *symbols, task.sep, *symbols[:-1]]
    assert all(0 <= symbol < task.classes for symbol in symbols)
    return [IGNORE] * separator + symbols


def test_worked_example(diagram) -> None:
    task = Copy()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(4)
    assert rows["targets"] == answers(task, rows["tokens"])


def test_targets() -> None:
    task = Copy(types=5)
    for size in (4, 9, 33):
        batch = task.sample(stream("test", size), 50, size)
        for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
            assert targets == answers(task, tokens)
            # Read as a language model's: a target is the next token wherever there is one.
            assert targets[size + 1 : -1] == tokens[size + 2 :]


def test_symbols_are_uniform_at_every_place() -> None:
    task, examples = Copy(types=4), 4000
    symbols = task.sample(stream("test"), examples, 6).targets_BT[:, 7:]
    assert symbols.shape == (examples, 6)
    share = (symbols[:, :, None] == symbols.new_tensor(range(4))).double().mean(dim=0)
    assert ((share - task.chance(6)).abs() < 5 * (0.25 * 0.75 / examples) ** 0.5).all()
