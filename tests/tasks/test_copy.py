"""The symbols come back in order, once or more, and only what is written is scored."""

import pytest

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.copy import Copy


def answers(task: Copy, tokens: list[int]) -> list[int]:
    """The targets of an example, worked out from its tokens alone."""
    separator = tokens.index(task.sep)
    symbols = tokens[1:separator]
    written = [*symbols, *([task.next, *symbols] * (task.times - 1))]
    assert tokens == [task.bos, *symbols, task.sep, *written[:-1]]
    assert all(0 <= symbol < task.types for symbol in symbols)
    return [IGNORE] * separator + written


def test_worked_example(diagram) -> None:
    task = Copy()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(4)
    assert rows["targets"] == answers(task, rows["tokens"])


def test_worked_example_of_two_copies(diagram) -> None:
    task = Copy(times=2)
    rows = diagram(task, 1)
    assert len(rows["tokens"]) == task.length(4)
    assert rows["targets"] == answers(task, rows["tokens"])


@pytest.mark.parametrize("times", [1, 2, 3])
def test_targets(times: int) -> None:
    task = Copy(types=5, times=times)
    for size in (4, 9, 33):
        batch = task.sample(stream("test", size), 50, size)
        for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
            assert len(tokens) == task.length(size)
            assert targets == answers(task, tokens)
            # Read as a language model's: a target is the next token wherever there is one.
            assert targets[size + 1 : -1] == tokens[size + 2 :]


def test_one_copy_is_what_it_was_before_there_could_be_more() -> None:
    """Numbers that must never change: results made with another version would no longer compare."""
    task = Copy()
    batch = task.sample(stream("train", 0, 0), 2, 4)
    assert (task.classes, task.bos, task.sep, task.vocabulary) == (16, 16, 17, 18)
    assert batch.tokens_BT.tolist() == [[16, 6, 3, 7, 2, 17, 6, 3, 7], [16, 3, 2, 7, 5, 17, 3, 2, 7]]


def test_symbols_are_uniform_at_every_place() -> None:
    task, examples = Copy(types=4), 4000
    symbols = task.sample(stream("test"), examples, 6).targets_BT[:, 7:]
    assert symbols.shape == (examples, 6)
    share = (symbols[:, :, None] == symbols.new_tensor(range(4))).double().mean(dim=0)
    assert ((share - task.chance(6)).abs() < 5 * (0.25 * 0.75 / examples) ** 0.5).all()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_chance_is_that_of_one_symbol_everywhere_and_next_at_its_places(times: int) -> None:
    task, examples, size = Copy(types=4, times=times), 4000, 5
    targets = task.sample(stream("test"), examples, size).targets_BT[:, size + 1 :]
    guess = targets.new_full((targets.shape[1],), 3)
    guess[size :: size + 1] = task.next
    error = (0.25 * 0.75 / (examples * size)) ** 0.5
    assert abs((targets == guess).double().mean() - task.chance(size)) < 5 * error


def test_no_copy_is_refused() -> None:
    with pytest.raises(ValueError, match="^times must be at least 1, got 0$"):
        Copy(times=0)
