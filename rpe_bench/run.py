"""One run, as one straight line: config -> task and model -> train -> evaluate over lengths -> run directory."""

import time
from collections.abc import Callable
from dataclasses import asdict, replace

import torch

from rpe_bench.config import Config
from rpe_bench.evaluate import Scores, score, summarise
from rpe_bench.model import Transformer
from rpe_bench.record import Record, Row
from rpe_bench.seeds import stream
from rpe_bench.tasks.base import Batch, Task
from rpe_bench.train import Progress, train, training_set


def build_model(config: Config) -> Transformer:
    """The model of a resolved config, its weights drawn from the config's seed, on the CPU."""
    task = config.build_task()
    assert config.model.causal is not None  # resolved
    # Modules draw weights from the global generator as they are made; an encoding of a user's may keep some.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.seed)
        model = Transformer(
            vocabulary=task.vocabulary,
            classes=task.classes,
            layers=config.model.layers,
            dim=config.model.dim,
            heads=config.model.heads,
            causal=config.model.causal,
            encodings=config.build_encodings(),
            embedding_std=config.model.embedding_std,
        )
    model.reset_parameters(config.seed)
    return model


def evaluate(config: Config, task: Task, model: Transformer, device: torch.device) -> dict[str, list[Row]]:
    """The rows of eval.csv, positions.csv, slices.csv and baselines.csv, and of training_set.csv if the task has one.

    The examples depend on (task, size, evaluation seed) and not on the run, so that encodings meet the same ones; and
    so, with the number of the draw, do the positions that they are remapped to.
    """
    assert config.evaluation.lengths is not None and config.recipe.train_length is not None  # resolved
    longest = config.recipe.train_length
    positions = config.build_positions()

    def scores_of(batch: Batch, size: int) -> Scores:
        key = (config.task.name, config.evaluation.seed, size)
        draws = (stream("evaluation positions", *key, draw) for draw in range(positions.draws))
        remapped = (replace(batch, positions=positions.evaluation(batch, rng)) for rng in draws)
        losses, rights, scored = zip(*(score(model, given, device) for given in remapped), strict=True)
        return summarise(size, batch, torch.stack(losses), torch.stack(rights), scored[0], task.chance(size))

    tables: dict[str, list[Row]] = {"eval": [], "positions": [], "slices": [], "baselines": []}
    for size in config.evaluation.lengths:
        rng = stream("evaluation", config.task.name, config.evaluation.seed, size)
        batch = task.sample(rng, config.evaluation.examples, size)
        scores = scores_of(batch, size)
        split = "train_lengths" if size <= longest else "extrapolation"
        tables["eval"].append(scores.evaluation | {"split": split})
        tables["positions"] += scores.positions
        tables["slices"] += scores.slices
        tables["baselines"].append(scores.baselines)
    if (examples := training_set(task, config.seed, longest)) is not None:
        tables["training_set"] = [scores_of(examples, longest).evaluation]
    return tables


def execute(config: Config, tell: Callable[[str], None] = lambda line: None) -> None:
    """Train and evaluate a resolved config, and keep the account of it in its run directory.

    Args:
        tell: is given a line on how far the run is, whenever there is news.

    Raises:
        FileExistsError: the run is finished already.
        Exception: whatever went wrong, after run.json has recorded it.
    """
    torch.set_num_threads(config.threads)
    device = torch.device(config.device)
    with Record(config) as record:
        task = config.build_task()
        model = build_model(config).to(device)
        record.note(
            train_length=config.recipe.train_length,
            train_tokens=config.train_tokens,
            max_tokens=config.max_tokens,
            parameters=sum(p.numel() for p in model.parameters()),
            encoding_parameters=sum(p.numel() for p in model.encodings.parameters()),
        )
        started = time.perf_counter()

        def log(progress: Progress) -> None:
            record.train(asdict(progress))
            left = (time.perf_counter() - started) / progress.step * (config.recipe.steps - progress.step)
            tell(f"step {progress.step}/{config.recipe.steps}, loss {progress.loss:.4g}, {left:.0f} s of training left")

        optimiser, progress = train(config, task, model, device, log)
        trained = time.perf_counter()
        record.note(train_seconds=trained - started, tokens_per_second=progress.tokens / (trained - started))
        # Data and weights are functions of (seed, step): there is no generator whose state would have to be kept.
        record.checkpoint({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": progress.step})
        tell(f"evaluating at lengths {', '.join(map(str, config.evaluation.lengths or []))}")
        for name, rows in evaluate(config, task, model, device).items():
            record.table(name, rows)
        record.note(evaluation_seconds=time.perf_counter() - trained)
