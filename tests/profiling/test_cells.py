"""What is called, for every encoding."""

import pytest
import torch
from support import Case, cases

from rpe_bench import catalogue
from rpe_bench.evaluate import loss_of
from rpe_bench.profiling.cells import Clock, Subject, batch_of, build, examples_of, lengths_of, prepared


def subject(name: str, **options: object) -> Subject:
    return Subject(catalogue.read("encoding", name) | options)


@pytest.mark.parametrize("case", [case for case in cases() if case.causal], ids=str)
def test_a_step_trains_and_an_evaluation_does_not(make_config, case: Case) -> None:
    config = make_config("copy", "nope", {"recipe.batch_size": 2})
    for kind, changes in (("training", True), ("evaluation", False)):
        call, model = prepared(config, subject(case.name), kind, 40)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        call()
        after = dict(model.named_parameters())
        assert any(not torch.equal(before[name], after[name]) for name in before) == changes
        assert model.training == changes


def test_all_encodings_have_one_trunk_and_one_batch(make_config) -> None:
    config = make_config("copy", "nope")
    trunks = [build(config, subject(name), 40).blocks.state_dict() for name in ("nope", "t5")]
    assert all(torch.equal(trunks[0][key], trunks[1][key]) for key in trunks[0])
    one, other = (batch_of(config, subject(name), 40, 3) for name in ("nope", "swin"))
    assert torch.equal(one.tokens_BT, other.tokens_BT) and torch.equal(one.targets_BT, other.targets_BT)
    assert one.positions is None and other.positions is not None
    assert other.positions.shape == (3, 40, 2) and other.positions.amax() == 6  # of 7 x 7 cells


def test_vocabulary_and_answers_are_the_tasks(make_config) -> None:
    config = make_config("bytes", "nope")
    batch = batch_of(config, subject("nope"), 64, 8)
    assert batch.tokens_BT.max() > 200 and batch.targets_BT.max() > 200
    assert (batch.targets_BT >= 0).all()
    model = build(config, subject("nope"), 64)
    assert torch.isfinite(loss_of(model, batch))
    assert (examples_of(config, "training"), examples_of(config, "evaluation")) == (config.recipe.batch_size, 1)


def test_what_has_no_meaning_there_is_refused(make_config) -> None:
    bidirectional = make_config("adjacency", "nope", {"model.causal": False})
    with pytest.raises(ValueError, match="has no meaning where a token sees later ones"):
        build(bidirectional, subject("xpos"), 16)
    call, _ = prepared(make_config("copy", "nope"), subject("learned", size=16), "evaluation", 17)
    with pytest.raises(ValueError, match="position 16 lies beyond a learned table of 16 rows"):
        call()


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(("nope", "no position"), ("sinusoidal", "embedding"), ("vit", "embedding"), ("rope", "rotation")),
        *(("axial_rope", "rotation"), ("alibi", "distance bias"), ("t5", "distance bias"), ("fire", "distance bias")),
        *(("shaw", "other bias"), ("deberta", "other bias"), ("swin", "other bias"), ("xlnet", "other bias")),
        *(("fox", "content"), ("path", "content"), ("cope", "content"), ("selective_rope", "content")),
    ],
)
def test_places(name: str, place: str) -> None:
    assert subject(name).place == place


def test_the_clock_of_one_thread_is_the_processors(make_config) -> None:
    import time

    config = make_config("copy", "nope")
    clock = Clock(config)
    assert clock.name == "processor time" and clock.of(lambda: time.sleep(0.05)) < 0.04
    clock = Clock(config.model_copy(update={"threads": 2}))
    assert clock.name == "wall time" and clock.of(lambda: time.sleep(0.05)) >= 0.05


def test_lengths() -> None:
    assert lengths_of("training", [64, 16, 64]) == [16, 64]
    for kind in ("training", "evaluation"):
        lengths = lengths_of(kind, None)
        assert len(lengths) >= 5 and lengths == sorted(lengths)
