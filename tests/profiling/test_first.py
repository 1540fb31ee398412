"""Time and memory of a first call."""

from rpe_bench import catalogue
from rpe_bench.profiling.apart import Limits
from rpe_bench.profiling.cells import Cell, Subject
from rpe_bench.profiling.first import First, first_call

LIMITS = Limits(seconds=20, mib=512)


def test_a_call_of_a_cell(make_config) -> None:
    config = make_config("copy", "nope", {"recipe.batch_size": 16})
    nope, t5 = (Subject(catalogue.read("encoding", name)) for name in ("nope", "t5"))
    found = first_call(config, t5, Cell("training", 256, "t5"), LIMITS)
    base = first_call(config, nope, Cell("training", 256, "nope"), LIMITS)
    assert found.problem == base.problem == ""
    assert found.encoding_parameters == 32 * config.model.heads and base.encoding_parameters == 0
    assert found.parameters is not None and found.parameters - (base.parameters or 0) == found.encoding_parameters
    assert found.seconds is not None and 0 < found.seconds < 10
    # Explicit logits of two layers, in float32 and twice each, of the pairs that the mask leaves.
    pairs = 16 * config.model.heads * 256 * 257 / 2 * 4
    assert found.peak_bytes is not None and base.peak_bytes is not None
    assert found.peak_bytes - base.peak_bytes > 2 * pairs


def test_what_takes_too_long_is_a_reason(make_config) -> None:
    nope = Subject(catalogue.read("encoding", "nope"))
    found = first_call(make_config("copy", "nope"), nope, Cell("evaluation", 20, "nope"), Limits(seconds=0.001))
    assert found == First(problem="takes more than 0.001 s")


def test_a_refusal_is_a_reason(make_config) -> None:
    short = Subject(catalogue.read("encoding", "learned") | {"size": 16})
    found = first_call(make_config("copy", "nope"), short, Cell("evaluation", 20, "learned"), LIMITS)
    assert found == First(problem="position 19 lies beyond a learned table of 16 rows, 0 to 15")
