"""Fabricated run directories, so that reports are tested without training anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

Fabricate = Callable[..., Path]
FabricateIn = Callable[[Path, str, str, int, str], Path]

MULTIPLES = (0.5, 1, 1.25, 1.5, 2, 4, 8)

TASKS: dict[str, dict[str, Any]] = {
    # size -> tokens, size -> scored positions, chance
    "copy": {
        "train_length": 16,
        "tokens": lambda n: 2 * n,
        "scored": lambda n: range(n - 1, 2 * n - 1),
        "chance": 1 / 16,
    },
    "retrieval": {"train_length": 48, "tokens": lambda n: n + 1, "scored": lambda n: [n], "chance": 1 / 16},
    "adjacency_tutorial": {"train_length": 8, "tokens": lambda n: n, "scored": lambda n: [], "chance": 0.5},
}

REACH = {"nope": 1.2, "learned": 1.0, "t5": 2.5, "alibi": 12.0, "rope": 1.7}
"""The ratio at which each encoding has lost half of what it had; others lie between."""


@pytest.fixture
def fabricate(tmp_path: Path) -> Fabricate:
    """A function that writes one run directory under `results` and returns it.

    fabricate("copy", "rope", seed=1): a finished run with made-up, deterministic numbers. status: also "running" or
    "failed". config: dotted key -> value to change in config.yaml. name: of the directory, by default the run's id.
    training_set: also a file of that name. results: by default tmp_path / "results".
    """

    def write(
        task: str = "copy",
        encoding: str = "rope",
        seed: int = 0,
        *,
        status: str = "finished",
        config: dict[str, Any] | None = None,
        name: str | None = None,
        training_set: bool = False,
        results: Path | None = None,
    ) -> Path:
        return write_run(
            results or tmp_path / "results", task, encoding, seed, status, config or {}, name, training_set
        )

    return write


@pytest.fixture(scope="session")
def fabricate_in() -> FabricateIn:
    """A function that writes one run under a results directory, which may be one that several tests only read.

    fabricate_in(results, "copy", "rope", 1, "finished"): otherwise as `fabricate`.
    """
    return lambda results, task, encoding, seed, status: write_run(
        results, task, encoding, seed, status, {}, None, False
    )


def write_run(
    results: Path,
    task: str,
    encoding: str,
    seed: int,
    status: str,
    config: dict[str, Any],
    name: str | None,
    training_set: bool,
) -> Path:
    about = TASKS[task]
    train_length = config.get("recipe.train_length", about["train_length"])
    lengths = config.get("evaluation.lengths", [round(m * train_length) for m in MULTIPLES])
    resolved: dict[str, Any] = {
        "seed": seed,
        "device": "cpu",
        "threads": 1,
        "results_dir": str(results),
        "encoding": {"name": encoding, "target": f"rpe_bench.encodings.{encoding}.{encoding.title()}", "base": 10000.0},
        "task": {"name": task, "target": f"rpe_bench.tasks.{task}.{task.title()}", "types": 16},
        "model": {"name": "tiny", "layers": 2, "dim": 64, "heads": 4, "causal": True},
        "recipe": {"name": "quick", "steps": 500, "lr": 1e-3, "betas": [0.9, 0.98], "train_length": train_length},
        "evaluation": {"lengths": lengths, "multiples": list(MULTIPLES), "examples": 640, "seed": 0},
        "logger": {"name": "csv", "mode": "disabled", "tags": []},
        "sweep": {"workers": None},
    }
    for key, value in config.items():
        section, _, leaf = key.rpartition(".")
        (resolved[section] if section else resolved)[leaf] = value

    identity = abs(hash_of(resolved)) % 16**8
    run_id = f"{task}-{encoding}-{resolved['recipe']['name']}-s{seed}-{identity:08x}"
    directory = results / "runs" / (name or run_id)
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(resolved, sort_keys=False))
    exception = {"type": "ValueError", "message": "loss is nan\nat step 3", "traceback": "..."}
    record = {
        "format": 1,
        "run_id": run_id,
        "status": status,
        "exception": exception if status == "failed" else None,
        "started": "2025-01-01T00:00:00+00:00",
        "finished": "2025-01-01T00:00:30+00:00" if status != "running" else None,
        "seconds": 30.0,
        "train_seconds": 20.0 + seed,
        "parameters": 100_000,
        "device": resolved["device"],
        "threads": resolved["threads"],
        "train_length": train_length,
        "train_tokens": about["tokens"](train_length),
        "max_tokens": about["tokens"](max(lengths)),
    }
    (directory / "run.json").write_text(json.dumps(record))
    if status == "finished":
        for file, frame in tables(task, encoding, seed, train_length, lengths, training_set).items():
            frame.to_csv(directory / file, index=False)
    return directory


def hash_of(config: dict[str, Any]) -> int:
    kept = {k: v for k, v in config.items() if k not in ("logger", "results_dir", "sweep")}
    return int.from_bytes(json.dumps(kept, sort_keys=True).encode(), "big") % 1_000_000_007


def tables(
    task: str, encoding: str, seed: int, train_length: int, lengths: list[int], training_set: bool
) -> dict[str, pd.DataFrame]:
    about = TASKS[task]
    rng = np.random.default_rng([seed, len(encoding)])
    reach = REACH.get(encoding, 1 + sum(encoding.encode()) % 50 / 10) * rng.uniform(0.85, 1.15)
    chance = about["chance"]
    evaluations, positions, slices, baselines = [], [], [], []

    def measures(ratio: float) -> dict[str, float]:
        skill = 1 / (1 + (ratio / reach) ** 6)
        accuracy = chance + (1 - chance) * skill
        loss = 0.002 + (1 - skill) * (-np.log(chance)) * 1.6
        return {"loss": loss, "perplexity": np.exp(loss), "token_accuracy": accuracy, "exact_match": accuracy**2}

    for length in lengths:
        scored = list(about["scored"](length))
        split = "train_lengths" if length <= train_length else "extrapolation"
        row = {"length": length, "split": split, "examples": 640, "tokens": 640 * max(1, len(scored))}
        evaluations.append({**row, **measures(length / train_length)})
        baselines.append({"length": length, "chance": chance, "majority": chance + 0.02})
        for index, position in enumerate(scored):
            part = measures(
                length / train_length * (1 + index / max(2, len(scored) - 1)) / 2
                if len(scored) > 1
                else length / train_length
            )
            noise = rng.uniform(0.95, 1.05)
            positions.append(
                {
                    "length": length,
                    "position": position,
                    "tokens": 640,
                    "loss": part["loss"] * noise,
                    "perplexity": np.exp(part["loss"] * noise),
                    "accuracy": part["token_accuracy"],
                }
            )
        if len(scored) == 1:
            row = {"length": length, "slice": "distance", "value": 1, "examples": 640, "tokens": 640}
            slices.append({**row, "loss": 0.1, "accuracy": 0.9})
    row = {"length": train_length, "examples": 2000, "tokens": 2000}
    memorised = pd.DataFrame([{**row, **measures(0.1)}])

    steps = np.arange(0, 500, 50)
    training = pd.DataFrame(
        {
            "step": steps + 50,
            "tokens": 100 * (steps + 50),
            "loss": 3.0 / (1 + steps),
            "lr": 1e-3,
            "grad_norm": 1.0,
            "tokens_per_second": 9e3,
        }
    )
    names = {
        "positions.csv": ["length", "position", "tokens", "loss", "perplexity", "accuracy"],
        "slices.csv": ["length", "slice", "value", "examples", "tokens", "loss", "accuracy"],
    }
    return {
        **({"training_set.csv": memorised} if training_set else {}),
        "train.csv": training,
        "eval.csv": pd.DataFrame(evaluations),
        "positions.csv": pd.DataFrame(positions, columns=names["positions.csv"]),
        "slices.csv": pd.DataFrame(slices, columns=names["slices.csv"]),
        "baselines.csv": pd.DataFrame(baselines),
    }
