"""Time of a training step under each encoding, as a ratio to no position, measured side by side.

    python scripts/step_time.py --encodings rope,alibi,t5 --length 128 --batch 32

All encodings take one step a round, in a new random order each round, and each is compared with `nope` of the same
round; the medians over the rounds are printed with their quartiles. One thread, tiny model, loss at every token. An
encoding of grids is given the square of as many cells.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from rpe_bench import catalogue
from rpe_bench.components import build_encodings, load_class
from rpe_bench.encodings.base import Geometry
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.tasks.base import Batch

SIZES = {"layers": 2, "dim": 64, "heads": 4}
VOCABULARY = 32


def make_step(name: str, length: int, batch_size: int, causal: bool) -> Callable[[], float]:
    """A function that takes one training step and returns its seconds."""
    options = catalogue.read("encoding", name)
    axes = load_class("encoding", options["target"]).axes or 1
    geometry = Geometry(**SIZES, train_length=length, max_length=length, causal=causal, axes=axes)
    encodings = build_encodings(options, geometry)
    model = Transformer(**SIZES, vocabulary=VOCABULARY, classes=VOCABULARY, causal=causal, encodings=encodings)
    model.reset_parameters(0)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(VOCABULARY, (batch_size, length), generator=torch.Generator().manual_seed(0))
    positions = None
    if axes > 1:
        cells = torch.cartesian_prod(*[torch.arange(side) for side in geometry.max_extents])
        positions = cells[:length].expand(batch_size, length, axes)
    batch = Batch(tokens, tokens, positions)

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
    parser.add_argument("--encodings", help="ids, by commas; all of them by default")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bidirectional", action="store_true", help="an encoder rather than a decoder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = options.encodings.split(",") if options.encodings else catalogue.encodings()
    names = ["nope", *(name for name in chosen if name != "nope")]
    steps = {name: make_step(name, options.length, options.batch, not options.bidirectional) for name in names}
    rng = np.random.default_rng(0)
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in rng.permutation(names):
            times[name].append(steps[name]())
    base = np.array(times["nope"])
    print(f"length {options.length}, batch {options.batch}, {options.rounds} rounds: median [quartiles]")
    for name in names:
        ratio = np.percentile(np.array(times[name]) / base, [50, 25, 75])
        print(f"{name:24s} {np.median(times[name]) * 1e3:7.1f} ms   {ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]")


if __name__ == "__main__":
    main()
