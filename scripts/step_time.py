"""Time of a training step under each encoding, as a ratio to no position, measured side by side.

    python scripts/step_time.py --encodings rope,alibi,t5 --length 64 --batch 64

All encodings take one step a round, in a new random order each round, and each is compared with `nope` of the same
round; the medians over the rounds are printed with their quartiles. One thread, tiny model, loss at every token.
"""

import argparse
import time

import numpy as np
import torch

from rpe_bench import catalogue
from rpe_bench.components import build_encodings
from rpe_bench.encodings.base import Geometry
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.tasks.base import Batch

LAYERS, DIM, HEADS, VOCABULARY = 2, 64, 4, 32


def make_step(name: str, length: int, batch_size: int):
    geometry = Geometry(
        dim=DIM, heads=HEADS, layers=LAYERS, train_length=length, max_length=length, causal=True, axes=1
    )
    model = Transformer(
        vocabulary=VOCABULARY,
        classes=VOCABULARY,
        layers=LAYERS,
        dim=DIM,
        heads=HEADS,
        causal=True,
        encodings=build_encodings(catalogue.read("encoding", name), geometry),
    )
    model.reset_parameters(0)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(VOCABULARY, (batch_size, length), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens, tokens)

    def step() -> float:
        start = time.perf_counter()
        optimiser.zero_grad()
        loss_of(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return time.perf_counter() - start

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", default="rope,alibi,t5,relative_bias,sinusoidal,learned", help="ids, by commas")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = ["nope", *options.encodings.split(",")]
    steps = {name: make_step(name, options.length, options.batch) for name in names}
    rng = np.random.default_rng(0)
    for step in steps.values():
        for _ in range(5):
            step()
    times = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in rng.permutation(names):
            times[name].append(steps[name]())
    base = np.array(times["nope"])
    print(f"length {options.length}, batch {options.batch}, {options.rounds} rounds: median [quartiles]")
    for name in names:
        ratio = np.percentile(np.array(times[name]) / base, [50, 25, 75])
        print(f"{name:16s} {np.median(times[name]) * 1e3:7.1f} ms   {ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]")


if __name__ == "__main__":
    main()
