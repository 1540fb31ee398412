"""Figures: what is drawn, that nothing covers anything, and that they can be made again to the byte."""

import json

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.transforms import Bbox

from rpe_bench.report import curves
from rpe_bench.report.cost import cost_figure
from rpe_bench.report.coverage import coverage_range
from rpe_bench.report.extrapolation import extrapolation_figure
from rpe_bench.report.families import groups
from rpe_bench.report.figures import COLUMN, PAGE, digest, looks_of, paper_style, save_figure, styles
from rpe_bench.report.learning import learning_figure
from rpe_bench.report.load import ReportError, load_results
from rpe_bench.report.perplexity import perplexity_figure
from rpe_bench.report.statistics import over_seeds

FIGURES = [extrapolation_figure, perplexity_figure]


@pytest.fixture
def results(fabricate):
    for encoding in ("alibi", "learned", "rope"):
        for seed in range(2):
            for task in ("copy", "retrieval"):
                run = fabricate(task, encoding, seed)
        fabricate("adjacency_tutorial", encoding, 0, training_set=True)
    return load_results(run.parents[1])


def texts(figure):
    return [text.get_text() for text in figure.texts]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def assert_nothing_overlaps(figure):
    """Legends, caption and axes with their labels are apart from one another and inside the figure."""
    with paper_style():
        figure.draw_without_rendering()
        inside = figure.bbox.padded(1)
        boxes = [*(legend.get_window_extent() for legend in figure.legends)]
        boxes += [text.get_window_extent() for text in figure.texts]
        if len(figure.legends) > 1:
            boxes += [axes.get_tightbbox().padded(-2) for axes in figure.axes]
        else:
            boxes.append(Bbox.union([axes.get_tightbbox() for axes in figure.axes]))
    for i, box in enumerate(boxes):
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1, i
        assert inside.y0 <= box.y0 and box.y1 <= inside.y1, i
        assert not any(box.overlaps(other) for other in boxes[i + 1 :]), i


@pytest.mark.parametrize("make", FIGURES)
@pytest.mark.parametrize("task", ["copy", "retrieval", "adjacency_tutorial"])
def test_same_bytes_whatever_the_users_style(results, tmp_path, make, task):
    first = save_figure(make(results, task), tmp_path / "first")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "savefig.dpi": 50, "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        second = save_figure(make(results, task), tmp_path / "second")
        assert dict(matplotlib.rcParams) == before
    assert [path.name for path in first] == ["first.pdf", "first.svg", "first.png"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.suffix


def test_fonts_are_embedded_as_truetype_and_text_stays_text(results, tmp_path):
    pdf, svg, _ = save_figure(extrapolation_figure(results, "copy"), tmp_path / "figure")
    assert b"/FontFile2" in pdf.read_bytes() and b"/Type3" not in pdf.read_bytes()
    assert ">token accuracy</text>" in svg.read_text()


def test_extrapolation_says_what_it_shows(results):
    figure = extrapolation_figure(results, "copy")
    (axes,) = figure.axes
    assert figure.get_figwidth() == COLUMN
    assert texts(figure)[0] == "copy"
    assert " ".join(texts(figure)[1:]) == (
        f"trained up to 16; mean and 95 % interval over 2 seeds; {coverage_range('mean', 2)}; seeds that do not fit "
        "(accuracy below 0.9 at the training length): learned 2 of 2"
    )
    assert legend(figure) == ["alibi", "learned", "rope", "chance", "majority", "training length"]
    assert axes.get_xscale() == "log"
    assert axes.get_xticks().tolist() == [0.5, 1, 1.25, 1.5, 2, 4, 8]
    assert [label.get_text().strip() for label in axes.get_xticklabels()] == "0.5 1 1.25 1.5 2 4 8".split()
    rows = results.evaluations.query("task == 'copy' and encoding == 'learned'")
    expected = over_seeds(rows, "token_accuracy", ("ratio",), np.random.default_rng(0))
    np.testing.assert_allclose(axes.lines[1].get_ydata(), expected["mean"])
    assert len(axes.collections) == 3 * 2  # a band and the seeds' dots of each encoding
    band = axes.collections[2].get_paths()[0].vertices
    for point in expected.itertuples():
        ends = band[band[:, 0] == point.ratio, 1]
        np.testing.assert_allclose((ends.min(), ends.max()), (point.low, point.high))
    assert (expected["low"] < expected["min"]).any()  # the interval, not the range
    assert any(list(line.get_xdata()) == [1, 1] for line in axes.lines)


def test_a_single_seed_has_no_interval_and_is_said_to_be_single(fabricate):
    run = fabricate("copy", "rope", 0)
    figure = extrapolation_figure(load_results(run.parents[1]), "copy")
    assert " ".join(texts(figure)[1:]) == "trained up to 16; 1 seed, no interval"
    assert not figure.axes[0].collections
    for seed in range(3):
        fabricate("copy", "alibi", seed)
    figure = extrapolation_figure(load_results(run.parents[1]), "copy")
    assert " ".join(texts(figure)[1:]) == (
        "trained up to 16; mean and 95 % interval over 1 to 3 seeds (none for rope with 1); "
        + coverage_range("mean", 3)
    )
    named = {*legend(figure), *(text.get_text() for text in figure.axes[0].texts)}  # or at the ends of their lines
    assert {"alibi, 3 seeds", "rope, 1 seed"} <= named
    assert len(figure.axes[0].collections) == 2


@pytest.mark.parametrize("make", [extrapolation_figure, perplexity_figure, learning_figure, cost_figure])
@pytest.mark.parametrize("task", ["copy", "retrieval"])
def test_every_figure_says_what_is_of_a_single_seed_and_draws_no_interval_of_it(fabricate, make, task):
    def add(encoding, seed):
        run = fabricate(task, encoding, seed)
        record = json.loads((run / "run.json").read_text()) | {"tokens_per_second": 1000.0 + seed}
        (run / "run.json").write_text(json.dumps(record))
        return run

    run = add("rope", 0)
    add("alibi", 0)
    alone = make(load_results(run.parents[1]), task)
    assert "1 seed, no interval" in " ".join(texts(alone)) and "95 %" not in " ".join(texts(alone))
    for seed in (1, 2):
        add("alibi", seed)
    figure = make(load_results(run.parents[1]), task)
    assert "95 % interval over 1 to 3 seeds (none for rope with 1)" in " ".join(texts(figure))
    bands = [part for axes in figure.axes for part in axes.collections if not isinstance(part, PathCollection)]
    if make is not cost_figure:
        assert len(bands) == len(figure.axes)  # of one encoding


def test_seeds_are_dots_as_far_as_they_can_be_told_apart(fabricate, monkeypatch):
    for seed in range(3):
        run = fabricate("copy", "rope", seed)
    results = load_results(run.parents[1])
    assert len(extrapolation_figure(results, "copy").axes[0].collections) == 2
    monkeypatch.setattr(curves, "MOST_DOTS", 2)
    assert len(extrapolation_figure(results, "copy").axes[0].collections) == 1


def test_perplexity_by_position_has_panels_of_lengths(results):
    figure = perplexity_figure(results, "copy")
    assert figure.get_figwidth() == PAGE
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        f"length {length} ({ratio}× the training length)" for length, ratio in ((16, 1), (32, 2), (128, 8))
    ]
    assert figure.axes[0].get_yscale() == "log"
    rows = results.positions.query("task == 'copy' and encoding == 'alibi' and length == 32")
    line = figure.axes[1].lines[0]
    np.testing.assert_allclose(line.get_xdata(), range(31, 63))
    np.testing.assert_allclose(line.get_ydata(), np.exp(rows.groupby("position")["loss"].mean()))
    assert list(figure.axes[1].lines[-1].get_xdata()) == [31.5, 31.5]  # 32 tokens were trained on
    assert "geometric mean and 95 % interval over 2 seeds" in texts(figure)[1]


def test_the_entropy_floor_is_drawn_where_it_is_known(fabricate):
    for encoding in ("rope", "alibi"):
        run = fabricate("copy", encoding)
        floor = pd.read_csv(run / "positions.csv").drop(columns="accuracy")
        floor = floor.assign(loss=0.5 + floor["position"] / 1000)
        floor.assign(perplexity=np.exp(floor["loss"])).to_csv(run / "floor_positions.csv", index=False)
    figure = perplexity_figure(load_results(run.parents[1]), "copy")
    assert legend(figure) == ["alibi", "rope", "entropy floor", "end of the longest training sequence"]
    for axes, positions in zip(figure.axes, (range(15, 31), range(31, 63), range(127, 255)), strict=True):
        drawn = axes.lines[2]
        middles = drawn.get_xdata()  # of groups of positions, where they are many
        assert positions[0] <= middles[0] <= middles[-1] <= positions[-1] and len(middles) >= min(len(positions), 32)
        np.testing.assert_allclose(drawn.get_ydata(), np.exp(0.5 + middles / 1000), rtol=1e-5)
    assert_nothing_overlaps(figure)


def test_a_single_answer_is_drawn_across_lengths(results):
    (axes,) = perplexity_figure(results, "retrieval").axes
    assert axes.get_xlabel() == "position of the answer (one per sequence)"
    assert axes.lines[0].get_xdata().tolist() == [24, 48, 60, 72, 96, 192, 384]
    assert list(axes.lines[-1].get_xdata()) == [48, 48]
    (axes,) = perplexity_figure(results, "adjacency_tutorial").axes
    assert axes.get_xlabel() == "length (one answer per sequence)"
    assert axes.lines[0].get_xdata().tolist() == [4, 8, 10, 12, 16, 32, 64]


@pytest.mark.parametrize("make", FIGURES)
@pytest.mark.parametrize("task", ["retrieval", "adjacency_tutorial"])
def test_of_a_single_length_encodings_stand_side_by_side(fabricate, make, task):
    names = ["alibi", "learned", "nope", "rope"]
    for encoding in names:
        for seed in range(2):
            run = fabricate(task, encoding, seed, config={"evaluation.lengths": [48]})
    results = load_results(run.parents[1])
    figure = make(results, task)
    (axes,) = figure.axes
    assert "48" in " ".join(texts(figure))
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    means = [line for line in axes.lines if line.get_marker() not in (".", "None")]
    assert [line.get_ydata()[0] for line in means] == [0, 1, 2, 3]
    if make is extrapolation_figure:
        expected = results.evaluations.groupby("encoding_label")["token_accuracy"].mean()
        np.testing.assert_allclose([line.get_xdata()[0] for line in means], expected)
    assert_nothing_overlaps(figure)


def test_a_loss_that_is_not_finite_is_said(fabricate):
    run = fabricate("copy", "rope")
    path = run / "positions.csv"
    lines = path.read_text().splitlines()
    lines[1] = lines[1].rsplit(",", 3)[0] + ",nan,nan,0"
    path.write_text("\n".join(lines) + "\n")
    assert legend(perplexity_figure(load_results(run.parents[1]), "copy"))[0] == "rope, not finite in places"


@pytest.mark.parametrize("number", [3, 25])
@pytest.mark.parametrize("make", FIGURES)
@pytest.mark.parametrize("task", ["copy", "retrieval"])
def test_legends_and_captions_cover_nothing(fabricate, number, make, task):
    for i in range(number):
        for seed in range(2):
            run = fabricate(task, f"encoding_{i}", seed)
    figure = make(load_results(run.parents[1]), task)
    named = [text.get_text() for one in figure.legends for text in one.get_texts()]
    named += [text.get_text() for axes in figure.axes for text in axes.texts]
    assert len(named) >= number + 1
    assert len(figure.axes) >= number / 8  # no panel has more lines than can be told apart
    assert_nothing_overlaps(figure)


def test_long_labels_and_many_lengths_cover_nothing(fabricate):
    lengths = list(range(4, 40, 3))
    for base in range(3):
        config = {
            "encoding.base": float(base),
            "encoding.an_unusually_long_option": "with-a-long-value" * 3 + str(base),
        }
        run = fabricate("retrieval", "rope", 0, config={**config, "evaluation.lengths": lengths})
    fabricate("retrieval", "rope", 0, config={"evaluation.lengths": [48, 96]})
    results = load_results(run.parents[1])
    for task in results.task_labels:
        for make in FIGURES:
            assert_nothing_overlaps(make(results, task))


def test_a_style_is_decided_by_the_labels_alone_and_tells_many_apart():
    labels = [f"encoding {i}" for i in range(40)]
    looks = styles(labels)
    assert list(looks) == labels
    assert styles(labels[::-1]) == looks
    assert len({(look.colour, look.dashes) for look in looks.values()}) == 40
    for one, other in zip(labels, labels[1:], strict=False):
        assert looks[one].colour != looks[other].colour
        assert looks[one].dashes != looks[other].dashes
        assert looks[one].marker != looks[other].marker


def test_many_are_shown_a_family_at_a_time_with_the_others_behind(fabricate):
    rotations = ["rope", "xpos", "p_rope", "rope_ntk"]
    biases = ["alibi", "t5", "kerple", "fire", "sandwich"]
    for encoding in [*rotations, *biases, "mine"]:
        run = fabricate("copy", encoding)
    figure = extrapolation_figure(load_results(run.parents[1]), "copy")
    assert figure.get_figwidth() == PAGE
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["rotations of queries and keys", "biases on the logits", "others"]
    for axes, members in zip(figure.axes, (rotations, biases, ["mine"]), strict=True):
        coloured = {line.get_label() for line in axes.lines if line.get_marker() not in ("", "None")}
        behind = {line.get_label() for line in axes.lines if line.get_color() == "#cfcfcf"}
        assert coloured == set(members)
        assert behind == {*rotations, *biases, "mine"} - set(members)
    assert "grey: those of the other panels" in " ".join(texts(figure))


def test_chosen_ones_are_drawn_before_the_others(fabricate):
    for i in range(10):
        run = fabricate("copy", f"encoding_{i}")
    fabricate("copy", "rope", config={"encoding.base": 1.0})
    fabricate("copy", "rope", config={"encoding.base": 2.0})
    labels = load_results(run.parents[1]).encoding_labels
    looks = looks_of(labels, ["rope", "encoding_3"])
    assert [label for label in looks if not looks[label].faded] == ["encoding_3", "rope (base=1)", "rope (base=2)"]
    figure = extrapolation_figure(load_results(run.parents[1]), "copy", looks)
    named = [*legend(figure), *(text.get_text() for text in figure.axes[0].texts)]
    assert "9 others" in named and "encoding_4" not in named and "encoding_3" in named
    assert_nothing_overlaps(figure)
    with pytest.raises(ReportError, match="--highlight=ropy: no encoding here is called so"):
        looks_of(labels, ["ropy"])


def test_lines_are_named_where_they_end_if_there_is_room(fabricate):
    for encoding in ("alibi", "rope"):
        run = fabricate("copy", encoding, config={"evaluation.lengths": [8, 16, 32]})
    figure = extrapolation_figure(load_results(run.parents[1]), "copy")
    assert [text.get_text() for text in figure.axes[0].texts] == ["alibi", "rope"]
    assert legend(figure) == ["chance", "majority", "training length"]
    ends = [line.get_ydata()[-1] for line in figure.axes[0].lines[:2]]
    assert [text.xy[1] for text in figure.axes[0].texts] == ends
    assert_nothing_overlaps(figure)


def test_of_equal_lines_the_legend_says_that_they_are(fabricate):
    for encoding in ("t5", "rope", "nope"):
        run = fabricate("copy", encoding)
    for name in ("t5", "nope"):
        (target,) = [path for path in run.parent.iterdir() if f"-{name}-" in path.name]
        if name == "nope":
            (source,) = [path for path in run.parent.iterdir() if "-t5-" in path.name]
            (target / "eval.csv").write_bytes((source / "eval.csv").read_bytes())
    named = legend(extrapolation_figure(load_results(run.parents[1]), "copy"))
    assert named[:3] == ["nope", "rope", "t5 = nope"]


def test_learning_is_the_mean_over_seeds_against_their_tokens(results):
    figure = learning_figure(results, "copy")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "thousand tokens trained on" and axes.get_yscale() == "log"
    rows = results.training.query("task == 'copy' and encoding == 'alibi'")
    np.testing.assert_allclose(axes.lines[0].get_ydata(), rows.groupby("step")["loss"].mean(), rtol=1e-5)
    np.testing.assert_allclose(axes.lines[0].get_xdata(), rows.groupby("step")["tokens"].mean() / 1000)
    assert "mean and 95 % interval over 2 seeds" in " ".join(texts(figure))
    assert legend(figure) == ["alibi", "learned = alibi", "rope = alibi"]
    assert_nothing_overlaps(figure)


def test_a_file_names_the_data_that_it_was_drawn_from(results, tmp_path):
    figure = extrapolation_figure(results, "copy")
    other = results.evaluations.copy()
    at = other.query("task == 'copy' and encoding == 'rope'").index[0]
    other.loc[at, "token_accuracy"] -= 0.01
    changed = digest(extrapolation_figure(type(results)(**{**vars(results), "evaluations": other}), "copy"))
    for path in save_figure(figure, tmp_path / "figure"):
        assert digest(figure).encode() in path.read_bytes(), path.suffix
    assert changed != digest(figure) == digest(extrapolation_figure(results, "copy"))


def test_a_single_encoding_of_its_kind_is_not_called_others():
    labels = ["learned", "sinusoidal", "rope", "xpos", "alibi", "t5", "kerple", "fire", "nope"]
    assert groups(labels)["without positions"] == ["nope"] and "others" not in groups(labels)
    assert groups([*labels, "mine"])["others"] == ["mine", "nope"]


def test_of_many_encodings_the_usual_number_of_seeds_is_said_once(fabricate):
    for number in range(9):
        for seed in range(1 if number == 4 else 2):
            run = fabricate("copy", f"e{number}", seed)
    figure = extrapolation_figure(load_results(run.parents[1]), "copy")
    named = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "e4, 1 seed" in named and {f"e{n}" for n in (0, 1, 2, 3, 5, 6, 7, 8)} <= set(named)
    assert "; 2 seeds where the legend has no number; grey" in " ".join(texts(figure))
