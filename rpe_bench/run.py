"""One run, as one straight line: config -> task and model -> train -> evaluate over lengths -> run directory."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import torch

from rpe_bench.allocator import keep_freed_memory
from rpe_bench.config import Config
from rpe_bench.evaluate import Scores, floor_of, score, summarise
from rpe_bench.interrupts import held_back
from rpe_bench.model import Transformer, build_model
from rpe_bench.positions.base import Remap
from rpe_bench.record import Record, Row
from rpe_bench.seeds import stream
from rpe_bench.start import begin
from rpe_bench.tasks.base import Batch, Task
from rpe_bench.train import Progress, State, make_optimiser, train, training_set


def evaluate(config: Config, task: Task, model: Transformer, device: torch.device) -> dict[str, list[Row]]:
    """The rows of eval.csv, positions.csv, slices.csv, examples.csv and baselines.csv; of training_set.csv if the task
    has one, and of floor.csv and floor_positions.csv if it knows the ideal loss.

    The examples depend on (task, size, evaluation seed) and not on the run, so that encodings meet the same ones; and
    so, with the number of the draw, do the positions that they are remapped to.
    """
    assert config.evaluation.lengths is not None and config.recipe.train_length is not None  # resolved
    longest = config.recipe.train_length
    positions = config.build_positions()

    def scores_of(batch: Batch, size: int) -> Scores:
        draws = remapped(config, positions, batch, size)
        losses, rights, scored = zip(*(score(model, given, device) for given in draws), strict=True)
        return summarise(size, batch, torch.stack(losses), torch.stack(rights), scored[0], task.chance(size))

    tables: dict[str, list[Row]] = {"eval": [], "positions": [], "slices": [], "examples": [], "baselines": []}
    for size in config.evaluation.lengths:
        batch = examples_of(config, task, size)
        scores = scores_of(batch, size)
        split = "train_lengths" if size <= longest else "extrapolation"
        tables["eval"].append(scores.evaluation | {"split": split})
        tables["positions"] += scores.positions
        tables["slices"] += scores.slices
        tables["examples"] += scores.examples
        tables["baselines"].append(scores.baselines)
        if (ideal := task.ideal_loss(batch)) is not None:
            floor = floor_of(size, batch, ideal)
            tables.setdefault("floor", []).append(floor.evaluation)
            tables.setdefault("floor_positions", []).extend(floor.positions)
    if (examples := training_set(task, config.seed, longest)) is not None:
        tables["training_set"] = [scores_of(examples, longest).evaluation]
    return tables


def examples_of(config: Config, task: Task, size: int) -> Batch:
    """The examples that a run is evaluated on at one size.

    Where the task scores the last tokens alone, they are the ends of the examples of the largest size: all sizes then
    have the same tokens scored, after contexts that differ in their length alone.
    """
    assert config.evaluation.lengths is not None  # resolved
    drawn = size if task.last is None else max(config.evaluation.lengths)
    rng = stream("evaluation", config.task.name, config.evaluation.seed, drawn)
    batch = task.held_out(rng, config.evaluation.examples, drawn)
    return batch if task.last is None else batch.ending(size, task.last)


def remapped(config: Config, positions: Remap, batch: Batch, size: int) -> Iterator[Batch]:
    """The examples of one size at the positions that a model is given in evaluation: once for each draw of them."""
    for draw in range(positions.draws):
        rng = stream("evaluation positions", config.task.name, config.evaluation.seed, size, draw)
        yield replace(batch, positions=positions.evaluation(batch, rng))


def execute(config: Config, tell: Callable[[str], None] = lambda line: None) -> None:
    """Train and evaluate a resolved config, and keep the account of it in its run directory.

    A run that was cut short goes on from its last checkpoint, and ends with the bytes that it would have ended with.

    Args:
        tell: is given a line on how far the run is, whenever there is news.

    Raises:
        FileExistsError: the run is finished already.
        Exception: whatever went wrong, after run.json has recorded it.
    """
    torch.set_num_threads(config.threads)
    keep_freed_memory()
    device = torch.device(config.device)
    recipe = config.recipe
    with Record(config) as record:
        task = config.build_task()
        model = build_model(config).to(device)
        record.note(
            train_length=recipe.train_length,
            train_tokens=config.train_tokens,
            max_tokens=config.max_tokens,
            parameters=sum(p.numel() for p in model.parameters()),
            encoding_parameters=sum(p.numel() for p in model.encodings.parameters()),
        )
        state = State(make_optimiser(model, recipe))
        if record.kept is not None:
            model.load_state_dict(record.kept["model"])
            state.load(record.kept)
            record.note(resumed_from_step=state.step)
        elif config.start.run is not None:
            begin(model, config.start)
        if config.compile:
            model.compile(dynamic=True)  # or each new length would be compiled anew
        is_due = _due(config)

        def log(progress: Progress) -> None:
            record.train(asdict(progress))
            left = state.seconds / progress.step * (recipe.steps - progress.step)
            tell(f"step {progress.step}/{recipe.steps}, loss {progress.loss:.4g}, {left:.0f} s of training left")

        with held_back() as stop:

            def keep(state: State) -> None:
                is_over = state.is_over(recipe)
                if is_due(state.step) or stop.made or is_over:
                    record.checkpoint(state.as_dict() | {"model": model.state_dict()})
                if stop.made and not is_over:
                    raise KeyboardInterrupt(f"interrupted at step {state.step} of {recipe.steps}")

            train(config, task, model, device, log, state, keep)
            if not recipe.steps:
                keep(state)  # for a run that begins with this one
        record.note(train_seconds=state.seconds)
        if state.seconds:
            record.note(tokens_per_second=state.tokens / state.seconds)
        if recipe.early_stop is not None:
            checked = state.checked
            record.table("validation", checked.rows)
            record.note(
                stopped_at_step=state.step if checked.stopped else None,
                best_step=checked.best_step,
                best_validation=checked.best,
                evaluated_step=checked.best_step if recipe.early_stop.keep == "best" else state.step,
            )
            if checked.stopped:
                tell(f"stopped early at step {state.step}/{recipe.steps}")
        began = time.perf_counter()
        tell(f"evaluating at lengths {', '.join(map(str, config.evaluation.lengths or []))}")
        for name, rows in evaluate(config, task, model, device).items():
            record.table(name, rows)
        record.note(evaluation_seconds=time.perf_counter() - began)


def _due(config: Config) -> Callable[[int], bool]:
    """Whether a checkpoint is to be written after so many steps, as often as `checkpoint` says."""
    steps, minutes = config.checkpoint.steps, config.checkpoint.minutes
    written = time.monotonic()

    def is_due(step: int) -> bool:
        nonlocal written
        by_steps = steps is not None and step % steps == 0
        by_time = minutes is not None and time.monotonic() - written >= 60 * minutes
        due = by_steps or by_time
        if due:
            written = time.monotonic()
        return due

    return is_due
