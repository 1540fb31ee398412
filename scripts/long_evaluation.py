"""Time and memory of perplexity by position in long sequences, under each encoding, measured side by side.

    python scripts/long_evaluation.py --encodings nope,rope,alibi,t5,kerple
    python scripts/long_evaluation.py --encodings nope,alibi,t5 --length 16384 --rounds 9

One example is evaluated as a run evaluates it, all its tables included, by the tiny model with weights as drawn: what
it takes depends on their shapes alone. Each evaluation has a process of its own; MiB is the most memory that it held
beyond what it had held with task and model built. All encodings take their turn once a round, in a new random order
each round, and times are compared with `nope` of the same round.

Exit status 1 where one takes more than --mib, or than --seconds, after which it is ended; it is then measured no more.
"""

import argparse
import sys
import time

import numpy as np
import torch

from rpe_bench import catalogue
from rpe_bench.compose import compose
from rpe_bench.config import Config, ConfigError, resolve
from rpe_bench.errors import message_of
from rpe_bench.profiling.apart import MIB, Ended, Limits, apart
from rpe_bench.record import peak_memory_bytes
from rpe_bench.run import build_model, evaluate


def config_of(encoding: str, task: str, length: int, threads: int) -> Config:
    """The run that a user would start; ConfigError where there is none."""
    chosen = [f"encoding={encoding}", f"task={task}", "model=tiny", "logger=csv", "device=cpu", f"threads={threads}"]
    composed = compose([*chosen, f"evaluation.lengths=[{length}]", "evaluation.examples=1"])
    assert composed is not None
    return resolve(composed.raw)


def evaluate_once(config: Config) -> tuple[float, int]:
    """Seconds and bytes of an evaluation."""
    torch.set_num_threads(config.threads)
    task, model = config.build_task(), build_model(config)
    before = peak_memory_bytes()
    start = time.perf_counter()
    evaluate(config, task, model, torch.device("cpu"))
    return time.perf_counter() - start, peak_memory_bytes() - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", help="ids, by commas; all of them by default")
    parser.add_argument("--task", default="bytes")
    parser.add_argument("--length", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--mib", type=float, default=512)
    options = parser.parse_args()
    chosen = options.encodings.split(",") if options.encodings else catalogue.encodings()
    configs: dict[str, Config] = {}
    refused: dict[str, str] = {}
    for name in ["nope", *(name for name in chosen if name != "nope")]:
        try:
            configs[name] = config_of(name, options.task, options.length, options.threads)
        except ConfigError as error:
            refused[name] = str(error)

    rng = np.random.default_rng(0)
    failed: dict[str, str] = {}
    times = {name: np.full(options.rounds, np.nan) for name in configs}
    memory = dict.fromkeys(configs, 0.0)
    for turn in range(options.rounds):
        for name in rng.permutation([name for name in configs if name not in failed]):
            try:
                times[name][turn], held = apart(Limits(options.seconds), evaluate_once, configs[name])
            except (ValueError, Ended) as error:  # the first is how an encoding refuses a length
                failed[name] = message_of(error)
                continue
            memory[name] = max(memory[name], held / MIB)
            if memory[name] > options.mib:
                failed[name] = f"takes {memory[name]:.0f} MiB, more than {options.mib:g}"

    about = f"{options.task}, length {options.length}, threads {options.threads}"
    print(f"{about}: medians of {options.rounds} [quartiles]")
    for name in configs:
        if np.isnan(times[name]).all():
            continue
        quarters = np.nanpercentile(times[name] / times["nope"], [50, 25, 75])
        ratio = "{:6.2f} [{:.2f}, {:.2f}] of nope".format(*quarters)
        print(f"{name:24s} {np.nanmedian(times[name]):7.2f} s   {memory[name]:6.0f} MiB   {ratio}")
    for name, reason in (refused | failed).items():
        print(f"{name}: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
