"""What reports of many runs cost: loading, cold and from what was kept; the report; and the dashboard.

    python scripts/report_scale.py --runs 10000                          8 encodings on 2 tasks
    python scripts/report_scale.py --runs 10000 --encodings 25 --tasks 8     many figures of many lines

Real runs are made of every task and four encodings, in seconds each, and all others are these under other seeds, and
beyond four encodings under other names: their tables are linked, but for eval.csv, whose accuracies are moved a little.
Printed are the seconds by the clock and those of the processors; each is of a process of its own, which has the imports
behind it. "Cold" is without RESULTS_DIR/.cache, but the system may have the files in memory. --keep DIR leaves the runs
there for the next time.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml
from sweep_throughput import make_config

from rpe_bench.record import to_csv
from rpe_bench.schema import TABLES
from rpe_bench.sweep.pool import run_pool

ENCODINGS = (
    *("nope", "sinusoidal", "learned", "rope", "alibi", "t5", "kerple", "fire", "xpos", "sandwich", "shaw", "cope"),
    *("deberta", "transformer_xl", "log_mlp", "p_rope", "rope_partial", "relative_bias", "hard_alibi", "fox"),
    *("sliding_window", "kerple_power", "rnope", "sinusoidal_relative", "xlnet"),
)
TASKS = ("copy", "retrieval", "copy_reversed", "induction", "majority", "parity", "sort", "copy_unique")

REAL = 4
"""Encodings that are trained."""

SMALL = {"recipe.steps": 40, "recipe.log_every": 1, "recipe.batch_size": 4, "evaluation.examples": 16}

LOAD = """
import sys, time
from rpe_bench.report import load_results
wall, own = time.perf_counter(), time.process_time()
results = load_results(sys.argv[1])
print(time.perf_counter() - wall, time.process_time() - own)
print(len(results.runs), len(results.evaluations), len(results.positions), (results.runs["status"] == "finished").sum())
"""

FIRST = """
import sys
from selenium import webdriver
options = webdriver.ChromeOptions()
options.binary_location = sys.argv[2]
for flag in ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
    options.add_argument(f"--{flag}")
driver = webdriver.Chrome(options, webdriver.ChromeService(sys.argv[3]))
for _ in range(5):
    driver.get("about:blank")
    driver.get(sys.argv[1])
    marks = "return performance.getEntriesByName('first curve').map((mark) => mark.startTime)[0]"
    print(driver.execute_script(marks) / 1000)
driver.quit()
"""


def make_runs(results: Path, count: int, encodings: int, tasks: int) -> None:
    pairs = [(task, place) for task in TASKS[:tasks] for place in range(encodings)]
    first = results.with_name(f"{results.name}-first")
    real = {
        (task, place): make_config(first, SMALL | {"task": task, "encoding": ENCODINGS[place]})
        for task in TASKS[:tasks]
        for place in range(min(REAL, encodings))
    }
    if waiting := [config for config in real.values() if not config.run_dir.exists()]:
        run_pool(waiting)
    rng = np.random.default_rng(0)
    for number in range(count):
        (task, place), seed = pairs[number % len(pairs)], number // len(pairs)
        config, encoding = real[task, place % REAL], ENCODINGS[place]
        about = yaml.load((config.run_dir / "config.yaml").read_text(), yaml.CSafeLoader) | {"seed": seed}
        about["encoding"]["name"] = encoding
        record = json.loads((config.run_dir / "run.json").read_text())
        assert record["status"] == "finished", record["exception"]
        record["run_id"] = f"{task}-{encoding}-{config.recipe.name}-s{seed}-{config.run_id[-8:]}"
        directory = results / "runs" / record["run_id"]
        directory.mkdir(parents=True)
        lines = (config.run_dir / "eval.csv").read_text().splitlines()
        rows = [dict(zip(TABLES["eval"], line.split(","), strict=True)) for line in lines[1:]]
        for row in rows:
            for name in ("token_accuracy", "exact_match"):
                row[name] = str(float(np.clip(float(row[name]) + rng.normal(0, 0.01), 0, 1)))
        (directory / "eval.csv").write_text(to_csv(TABLES["eval"], rows))
        (directory / "config.yaml").write_text(yaml.dump(about, Dumper=yaml.CSafeDumper, sort_keys=False))
        for name in ("eval.csv", "config.yaml"):
            record["bytes"][name] = (directory / name).stat().st_size
        (directory / "run.json").write_text(json.dumps(record, indent=2) + "\n")
        for file in config.run_dir.iterdir():
            if file.suffix == ".csv" and file.name not in ("eval.csv", "examples.csv"):
                os.link(file, directory / file.name)


def measured(command: list[str]) -> tuple[float, float, str]:
    """Seconds by the clock, of the processors, and what was printed."""
    before, began = os.times(), time.perf_counter()
    answer = subprocess.run(command, capture_output=True, text=True)
    after = os.times()
    if answer.returncode:
        raise SystemExit(answer.stderr)
    return time.perf_counter() - began, sum(after[2:4]) - sum(before[2:4]), answer.stdout


def loaded(results: Path) -> str:
    times, counts = measured([sys.executable, "-c", LOAD, str(results)])[2].splitlines()
    wall, own = map(float, times.split())
    runs, evaluations, positions, finished = map(int, counts.split())
    assert runs == finished, f"{runs - finished} of {runs} runs cannot be used"
    return f"{wall:.2f} s, of the processor {own:.2f} s ({evaluations} evaluations, {positions} positions)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--encodings", type=int, default=8, help=f"up to {len(ENCODINGS)}")
    parser.add_argument("--tasks", type=int, default=2, help=f"up to {len(TASKS)}")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = options.keep or Path(folder) / "results"
        if not (results / "runs").is_dir():
            make_runs(results, options.runs, options.encodings, options.tasks)
        shutil.rmtree(results / ".cache", ignore_errors=True)
        time.sleep(3)  # what was written a moment ago is not kept
        print(f"{len(list((results / 'runs').iterdir()))} runs, {len(os.sched_getaffinity(0))} cores")
        print("loaded, cold:", loaded(results))
        print("loaded, kept:", loaded(results))
        kept = results / ".cache/runs.npz"
        print(f"kept: {kept.stat().st_size / 1e6:.0f} MB" if kept.exists() else "kept: nothing, of so few")
        for directory in sorted((results / "runs").iterdir())[:10]:
            os.utime(directory / "eval.csv")
        print("loaded, kept but for 10 that changed:", loaded(results))
        shutil.rmtree(results / ".cache", ignore_errors=True)
        report = [sys.executable, "-m", "rpe_bench", "report", str(results), "--out", str(results.with_name("report"))]
        for how in ("cold", "again"):
            wall, own, said = measured(report)
            figures = sum(line.endswith(".pdf") for line in said.splitlines())
            print(f"report, {how}: {wall:.1f} s, of the processors {own:.1f} s ({figures} figures, each in 3 formats)")
        page = results.with_name("report") / "dashboard.html"
        print(f"dashboard: {page.stat().st_size / 1e6:.2f} MB")
        browser = [shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")]
        if None not in browser:
            _, _, said = measured([sys.executable, "-c", FIRST, page.resolve().as_uri(), *map(str, browser)])
            seconds = sorted(map(float, said.split()))
            print(f"its first curve, in Chromium: {seconds[2]:.2f} s [{seconds[0]:.2f}, {seconds[-1]:.2f}], n = 5")


if __name__ == "__main__":
    main()
