"""What a sweep gains, and what it costs beyond training.

    python scripts/sweep_throughput.py --rounds 5                      16 runs by the pool, and one after another
    python scripts/sweep_throughput.py costs --jobs 400                what a run costs beside its training
    python scripts/sweep_throughput.py costs --jobs 400 --fixed        and what checking 10,000 jobs does

The first compares the pool (one process a run, one thread each, as many at once as there are cores) with the same runs
one after another in one process with two threads, in fp32 and in bf16-mixed. Each round takes all of them, in a new
random order; printed are the medians over the rounds with their extremes, and so for the ratios within a round. Neither
counts the imports, which a sweep makes once.

The second runs jobs of a few steps and holds the time that they take against that which they train and evaluate for by
their own account, which leaves what each run costs: a process, its lock, its files, its place in the ledger. Start-up
is from before the fork to the first training step. --fixed adds what a sweep of 10,000 jobs costs before it starts any.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rpe_bench import catalogue, run
from rpe_bench.config import Config, resolve
from rpe_bench.cores import available_cores
from rpe_bench.sweep import pool
from rpe_bench.sweep.attempt import attempt

ENCODINGS = ("nope", "rope", "alibi", "t5")


def make_config(results: Path, changes: dict[str, Any]) -> Config:
    raw = yaml.safe_load((catalogue.CONF / "config.yaml").read_text())
    del raw["defaults"], raw["hydra"]
    chosen = {"task": "copy", "encoding": "rope", "positions": "plain", "model": "tiny", "recipe": "quick"}
    raw |= {group: catalogue.read(group, name) for group, name in (chosen | {"logger": "csv"}).items()}
    raw |= {"results_dir": str(results), "device": "cpu"}
    for key, value in changes.items():
        section, _, leaf = key.rpartition(".")
        if key in chosen:
            raw[key] = catalogue.read(key, value)
        else:
            (raw[section] if section else raw)[leaf] = value
    return resolve(raw)


def timed(act: Callable[[], None]) -> float:
    """Seconds of something done in a process of its own, which it may leave with threads."""
    began = time.perf_counter()
    process = get_context("fork").Process(target=act)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a process ended with status {process.exitcode}")
    return time.perf_counter() - began


# The pool against one process


def throughput(options: argparse.Namespace) -> None:
    sizes = {"recipe.steps": options.steps, "recipe.batch_size": 64, "recipe.lengths": "fixed"}
    sizes |= {"recipe.train_length": 32, "evaluation.lengths": [32], "evaluation.examples": 64}  # 32 copied: 64 tokens

    def configs(results: Path, precision: str, threads: int) -> list[Config]:
        return [
            make_config(
                results,
                sizes | {"recipe.precision": precision, "threads": threads, "encoding": name, "seed": seed},
            )
            for name in ENCODINGS
            for seed in range(options.runs // len(ENCODINGS))
        ]

    def by_pool(results: Path, precision: str) -> None:
        sys.stderr = open(os.devnull, "w")
        pool.run_pool(configs(results, precision, threads=1))

    def one_by_one(results: Path, precision: str) -> None:
        for config in configs(results, precision, threads=2):
            run.execute(config)

    arms = {(how.__name__, p): how for p in ("fp32", "bf16-mixed") for how in (by_pool, one_by_one)}
    seconds: dict[tuple[str, str], list[float]] = {arm: [] for arm in arms}
    rng = np.random.default_rng(0)
    for round_number in range(options.rounds):
        for number in rng.permutation(len(arms)):
            arm = list(arms)[number]
            with tempfile.TemporaryDirectory() as place:
                results = Path(place)
                seconds[arm].append(timed(partial(arms[arm], results, arm[1])))
                done = len(list(results.glob("runs/*/eval.csv")))
                assert done == options.runs // len(ENCODINGS) * len(ENCODINGS), f"{done} runs finished"
        print(f"round {round_number + 1}: " + ", ".join(f"{' '.join(a)} {s[-1]:.1f} s" for a, s in seconds.items()))
    print(f"\n{done} runs of {options.steps} steps, {available_cores()} cores, {options.rounds} rounds")
    for arm, values in seconds.items():
        print(f"{arm[0]:10} {arm[1]:10} {spread(values)} s")
    for what, slow, fast in (
        ("fp32: pool against one by one", ("one_by_one", "fp32"), ("by_pool", "fp32")),
        ("bf16-mixed: pool against one by one", ("one_by_one", "bf16-mixed"), ("by_pool", "bf16-mixed")),
        ("pool in bf16-mixed against one by one in fp32", ("one_by_one", "fp32"), ("by_pool", "bf16-mixed")),
    ):
        print(f"{what}: {spread([a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)])} times")


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


# What a run costs


def costs(options: argparse.Namespace) -> None:
    small = {"recipe.steps": 4, "recipe.batch_size": 8, "evaluation.lengths": [16, 32], "evaluation.examples": 32}
    with tempfile.TemporaryDirectory() as place:
        results = Path(place)
        configs = [
            make_config(results, small | {"encoding": name, "seed": seed})
            for name in ENCODINGS
            for seed in range(options.jobs // len(ENCODINGS))
        ]
        forked: dict[str, float] = {}
        start, train = pool._start, run.train

        def start_and_note(config: Config, *rest: Any) -> pool.Worker:
            forked[config.run_id] = time.monotonic()
            return start(config, *rest)

        def note_and_train(config: Config, *rest: Any) -> Any:
            # One clock for all processes, and one of this process alone, which others on the machine do not hold up.
            (results / f"{config.run_id}.began").write_text(f"{time.monotonic()} {time.process_time()}")
            return train(config, *rest)

        pool._start, run.train = start_and_note, note_and_train  # type: ignore[assignment]
        pool.import_all(configs)
        began = time.perf_counter()
        pool.run_pool(configs)
        took = time.perf_counter() - began
        pool._start, run.train = start, train
        records = [json.loads((config.run_dir / "run.json").read_text()) for config in configs]
        began_at = {c.run_id: (results / f"{c.run_id}.began").read_text().split() for c in configs}
        startups = [float(began_at[run_id][0]) - forked[run_id] for run_id in forked]
        own = [float(seconds) for _, seconds in began_at.values()]
    assert all(record["status"] == "finished" for record in records)
    worked = [record["train_seconds"] + record["evaluation_seconds"] for record in records]
    workers = pool.workers_of(configs)
    beside = (took * workers - sum(worked)) / len(configs)
    print(f"\n{len(configs)} jobs, {workers} at once: {took:.1f} s; each trains and evaluates for {spread(worked)} s")
    print(f"start-up, from before the fork to the first step: {spread(startups)} s, of them {spread(own)} s of its own")
    print(f"a run beside training and evaluation: {beside:.3f} s of a worker")
    print(
        f"10,000 runs beside training and evaluation: {beside * 10_000 / workers / 60:.1f} min with {workers} workers"
    )
    if options.fixed:
        fixed()


def fixed() -> None:
    """What 10,000 jobs take before the first of them starts: all of it, and the seconds of the process itself."""
    encodings = "encoding=nope,sinusoidal,learned,rope,alibi,t5,kerple,fire"
    command = [sys.executable, "-m", "rpe_bench", "run", "-m", encodings, "seed=range(1250)", "logger=csv"]
    with tempfile.TemporaryDirectory() as place:
        listing = subprocess.run(
            [*command, "sweep.dry_run=true"], cwd=place, capture_output=True, text=True, check=True
        )
        run_ids = [line.split()[-1] for line in listing.stdout.splitlines() if line.startswith("would run")]
        config = make_config(Path(place) / "first", {"recipe.steps": 1, "evaluation.examples": 2})
        assert attempt(config)
        for run_id in run_ids:
            directory = Path(place) / "results" / "runs" / run_id
            directory.mkdir(parents=True)
            for file in config.run_dir.iterdir():
                os.link(file, directory / file.name)
        status = [sys.executable, "-m", "rpe_bench", "status"]
        for what, given in (("the same command over 10,000 finished runs", command), ("status of them", status)):
            walls, own = [], []
            for _ in range(3):
                before, began = os.times(), time.perf_counter()
                answer = subprocess.run(given, cwd=place, capture_output=True, text=True, check=True)
                after = os.times()
                walls.append(time.perf_counter() - began)
                own.append(sum(after[2:4]) - sum(before[2:4]))
                assert "10000 finished" in answer.stdout.replace("of 10000 ", ""), answer.stdout
            print(f"{what}: {spread(walls)} s, of them {spread(own)} s of its own")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["throughput", "costs"], default="throughput")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--fixed", action="store_true", help="also what 10,000 jobs cost before the first starts")
    options = parser.parse_args()
    pool.import_all([])
    (throughput if options.what == "throughput" else costs)(options)


if __name__ == "__main__":
    main()
