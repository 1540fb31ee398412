"""Training and evaluation side by side with the libraries that one would use instead, under the same encoding.

    python scripts/peers.py --out peers.csv                                        # all of it, on an idle machine
    python scripts/peers.py --out peers.csv --sizes tiny --encodings rope alibi    # some of it
    python scripts/peers.py --tables peers.csv                                     # what it prints, from its CSV

Needs the extra `peers`, and Linux. One thread. All models are causal decoders with pre-norm, of the same layers, width,
heads, hidden width (4 times the width), vocabulary and GELU, without dropout and without caches of keys and values.
What else sets a library apart stays as its user has it; parameters are printed, and differ by a few in a hundred:

    rope        x-transformers; Llama of transformers, whose hidden layer is gated, of three matrices rather than two,
                and so is made narrower, of about as many multiplications; without biases, with RMSNorm
    alibi       x-transformers; BLOOM of transformers: with biases throughout, a norm after the embedding, and a GELU
                by tanh, which is all it has
    t5          x-transformers; T5 of transformers: its decoder, without the layers that look at an encoder; without
                biases, with RMSNorm
    learned     GPT-2 of transformers, with biases throughout; torch.nn.TransformerEncoder under a causal mask, likewise
    sinusoidal  torch.nn.TransformerEncoder; torch has no encoding, and is given tables, here the same as ours

Where a library has several ways to compute the same, each is a row, and the fastest counts: x-transformers with its
`flash`, which is torch's fused kernel, and without; T5 with that kernel and without; torch with and without its fast
path for evaluation.

Training is a step (forward, backward, clipping, fused AdamW) on the same batches of `markov` with 32 symbols, loss at
every token; ours is what `rpe_bench.train` does, and bf16-mixed is torch.autocast for the others. Evaluation is the
logits of all tokens of one sequence, in float32, taken twice; the second time counts. MiB is the most memory that its
process held beyond what it had held with the model built.

Each model has a process of its own, set up as its user has it: ours as a run does, which keeps memory that was freed
(`rpe_bench.allocator`), the others as torch leaves it; --keep lets them keep it too, to see what that alone comes to.
In each round all models take their turn, in a new random order; a ratio is the peer's time through ours of the same
round, so that above 1 ours is faster. Printed are medians [and quartiles] over the rounds. Every measurement is in the
CSV as soon as it is made, and --tables reads one that was cut short as well.
"""

import argparse
import csv
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rpe_bench import catalogue
from rpe_bench.allocator import keep_freed_memory
from rpe_bench.config import Config, resolve
from rpe_bench.encodings.sinusoidal import sinusoid
from rpe_bench.errors import of_extra, one_line
from rpe_bench.profiling.apart import MIB, keep_within, why_it_ended
from rpe_bench.record import peak_memory_bytes
from rpe_bench.run import build_model
from rpe_bench.seeds import stream
from rpe_bench.tasks.base import Batch
from rpe_bench.train import Data, add_gradient, make_optimiser

with of_extra("peers", "transformers", "x_transformers"):
    import transformers
    from transformers.models.t5.modeling_t5 import T5Stack
    from x_transformers import Decoder, TransformerWrapper

OURS = "rpe_bench"
SYMBOLS = 32
LONG = 4096
"""Tokens beyond which an evaluation takes so long that --long-rounds says how often it is made."""
LEAST, USUAL = 1.05, 1.2
"""How many times the fastest peer's tokens per second are aimed at: under every encoding, and under the median one."""

SETTING = ["work", "size", "precision", "batch", "length", "clock"]
ARM = ["encoding", "library", "variant"]
MEASURED = ["parameters", "seconds", "loss", "mib", "problem"]
COLUMNS = [*SETTING, "round", *ARM, *MEASURED]

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Shape:
    """What all models of a comparison have in common."""

    layers: int
    dim: int
    heads: int
    longest: int
    """Tokens of the longest sequence that it is given: rows of a learned table."""


# The peers: each a module from token ids (B, T) to logits (B, T, V)


def x_transformers(shape: Shape, flash: bool, **encoding: Any) -> nn.Module:
    layers = Decoder(
        dim=shape.dim,
        depth=shape.layers,
        heads=shape.heads,
        attn_dim_head=shape.dim // shape.heads,
        attn_flash=flash,
        verbose=False,  # it would warn of rotations of few features
        **encoding,
    )
    # Left alone, it would add a learned table to every encoding but rotations and T5's.
    return TransformerWrapper(num_tokens=SYMBOLS, max_seq_len=shape.longest, attn_layers=layers, use_abs_pos_emb=False)


def rotary(shape: Shape, flash: bool) -> nn.Module:
    # All features of a head turn, as ours do; its default is half of them.
    return x_transformers(shape, flash, rotary_pos_emb=True, rotary_emb_dim=shape.dim // shape.heads)


class LanguageModel(nn.Module):
    """A causal model of transformers; `attention` is its name for a way to compute it."""

    def __init__(self, model: type[nn.Module], config: Any, attention: str) -> None:
        super().__init__()
        config._attn_implementation = attention
        self.model = model(config)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.model(tokens_BT, use_cache=False).logits


def llama(shape: Shape, attention: str) -> nn.Module:
    # Three matrices of 8/3 times the width multiply as much as two of 4 times; a multiple of 8 keeps rows aligned.
    hidden = 8 * round(shape.dim / 3)
    config = transformers.LlamaConfig(
        vocab_size=SYMBOLS,
        hidden_size=shape.dim,
        intermediate_size=hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.longest,
        tie_word_embeddings=False,
    )
    return LanguageModel(transformers.LlamaForCausalLM, config, attention)


def gpt2(shape: Shape, attention: str) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=SYMBOLS,
        n_positions=shape.longest,
        n_embd=shape.dim,
        n_layer=shape.layers,
        n_head=shape.heads,
        activation_function="gelu",  # its own, an approximation of seven operations, is slower
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
    )
    return LanguageModel(transformers.GPT2LMHeadModel, config, attention)


def bloom(shape: Shape, attention: str) -> nn.Module:
    config = transformers.BloomConfig(
        vocab_size=SYMBOLS,
        hidden_size=shape.dim,
        n_layer=shape.layers,
        n_head=shape.heads,
        tie_word_embeddings=False,
    )
    return LanguageModel(transformers.BloomForCausalLM, config, attention)


class T5Decoder(nn.Module):
    def __init__(self, shape: Shape, attention: str) -> None:
        super().__init__()
        config = transformers.T5Config(
            vocab_size=SYMBOLS,
            d_model=shape.dim,
            d_kv=shape.dim // shape.heads,
            d_ff=4 * shape.dim,
            num_layers=shape.layers,
            num_heads=shape.heads,
            feed_forward_proj="gelu",
            dropout_rate=0.0,
            is_decoder=True,
            is_encoder_decoder=False,
        )
        config._attn_implementation = attention
        self.stack = T5Stack(config)
        for block in self.stack.block:
            own, _, mlp = block.layer  # between them, attention to an encoder
            block.layer = nn.ModuleList((own, mlp))
        self.answers = nn.Linear(shape.dim, SYMBOLS, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.answers(self.stack(tokens_BT, use_cache=False).last_hidden_state)


class TorchEncoder(nn.Module):
    """torch's own layers, with a causal mask. Its fast path, which it takes in evaluation alone, is a global switch."""

    def __init__(self, shape: Shape, learned: bool, fast_path: bool) -> None:
        super().__init__()
        self.fast_path = fast_path
        self.tokens = nn.Embedding(SYMBOLS, shape.dim)
        table_LD = sinusoid(torch.arange(shape.longest), shape.dim, 10_000.0).float()
        self.table_LD = nn.Parameter(table_LD) if learned else nn.Buffer(table_LD)
        layer = nn.TransformerEncoderLayer(
            shape.dim,
            shape.heads,
            4 * shape.dim,
            dropout=0.0,
            activation=nn.functional.gelu,
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(shape.dim)
        self.encoder = nn.TransformerEncoder(layer, shape.layers, norm, enable_nested_tensor=False)
        self.answers = nn.Linear(shape.dim, SYMBOLS, bias=False)
        self._mask_TT = torch.empty(0, 0)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        if len(self._mask_TT) != length:  # made once, as one would
            self._mask_TT = nn.Transformer.generate_square_subsequent_mask(length)
        x_BTD = self.tokens(tokens_BT) + self.table_LD[:length]
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(self.fast_path)
        try:
            x_BTD = self.encoder(x_BTD, mask=self._mask_TT, is_causal=True)
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
        return self.answers(x_BTD)


PEERS: dict[tuple[str, str, str], Callable[[Shape], nn.Module]] = {
    ("rope", "x-transformers", "flash"): partial(rotary, flash=True),
    ("rope", "x-transformers", "explicit"): partial(rotary, flash=False),
    ("rope", "Llama", "fused"): partial(llama, attention="sdpa"),
    ("alibi", "x-transformers", "flash"): partial(x_transformers, flash=True, alibi_pos_bias=True),
    ("alibi", "x-transformers", "explicit"): partial(x_transformers, flash=False, alibi_pos_bias=True),
    ("alibi", "BLOOM", "explicit"): partial(bloom, attention="eager"),  # all there is
    ("t5", "x-transformers", "explicit"): partial(x_transformers, flash=False, rel_pos_bias=True),  # it takes no flash
    ("t5", "T5", "fused"): partial(T5Decoder, attention="sdpa"),
    ("t5", "T5", "explicit"): partial(T5Decoder, attention="eager"),
    ("learned", "GPT-2", "fused"): partial(gpt2, attention="sdpa"),
    ("learned", "torch", "fused"): partial(TorchEncoder, learned=True, fast_path=False),
    ("learned", "torch", "fast path"): partial(TorchEncoder, learned=True, fast_path=True),
    ("sinusoidal", "torch", "fused"): partial(TorchEncoder, learned=False, fast_path=False),
    ("sinusoidal", "torch", "fast path"): partial(TorchEncoder, learned=False, fast_path=True),
}
"""By encoding, library and variant."""

ENCODINGS = list(dict.fromkeys(encoding for encoding, _, _ in PEERS))
LIBRARIES = list(dict.fromkeys(library for _, library, _ in PEERS))


@dataclass(frozen=True)
class Arm:
    """One model of a comparison: ours or a peer's."""

    encoding: str
    library: str
    variant: str

    def build(self, config: Config) -> nn.Module:
        """The model of this run, or its peer."""
        if self.library == OURS:
            return build_model(config)
        sizes, length = config.model, config.recipe.train_length
        assert length is not None  # resolved
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(config.seed)
            return PEERS[self.encoding, self.library, self.variant](Shape(sizes.layers, sizes.dim, sizes.heads, length))


def config_of(encoding: str, size: str, precision: str, batch: int, length: int) -> Config:
    """The run that a user would start."""
    raw = yaml.safe_load((catalogue.CONF / "config.yaml").read_text())
    del raw["defaults"], raw["hydra"]
    chosen = {"task": "markov", "encoding": encoding, "positions": "plain", "model": size, "recipe": "standard"}
    raw |= {group: catalogue.read(group, name) for group, name in (chosen | {"logger": "csv"}).items()}
    raw |= {"device": "cpu", "threads": 1}
    raw["task"]["types"] = SYMBOLS
    raw["recipe"] |= {"precision": precision, "batch_size": batch, "train_length": length, "lengths": "fixed"}
    raw["evaluation"]["lengths"] = [length]
    return resolve(raw)


def arms_of(encodings: list[str], libraries: list[str], work: str) -> list[Arm]:
    """Ours and its peers, encoding by encoding; without an encoding that has no peer among these libraries."""
    arms = []
    for encoding in encodings:
        peers = [Arm(*key) for key in PEERS if key[0] == encoding and key[1] in libraries]
        if work == "training":  # which never takes torch's fast path
            peers = [arm for arm in peers if arm.variant != "fast path"]
        arms += [Arm(encoding, OURS, "default"), *peers] if peers else []
    return arms


# What is measured


def training_step(arm: Arm, config: Config, model: nn.Module) -> Callable[[Batch], float]:
    """A function that takes one step on a batch and returns its loss: ours as a run takes it, a peer's as one would."""
    recipe, cpu = config.recipe, torch.device("cpu")
    optimiser = make_optimiser(model, recipe)
    parameters = list(model.parameters())
    model.train()

    def peer_gradient(batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16-mixed"):
            logits = model(batch.tokens_BT).float()
            loss = cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten())
        loss.backward()
        return loss.detach()

    def step(batch: Batch) -> float:
        optimiser.zero_grad()
        loss = add_gradient(model, batch, recipe, cpu) if arm.library == OURS else peer_gradient(batch)
        torch.nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimiser.step()
        return loss.item()

    return step


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def prepare(arm: Arm, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    if arm.library == OURS or options.keep:
        keep_freed_memory()


def train(arm: Arm, config: Config, options: argparse.Namespace, pipe: Connection) -> None:
    """Answer each number of a round with what was measured in it, or why there is nothing."""
    prepare(arm, options)
    clock, model = CLOCKS[options.clock], arm.build(config)
    data = Data(config.build_task(), config.build_positions(), config.recipe, config.seed)
    step = training_step(arm, config, model)
    while True:
        first = pipe.recv() * options.steps
        batches = [data.batch(first + number) for number in range(options.steps)]
        try:
            began = clock()
            for batch in batches:
                loss = step(batch)
            seconds = (clock() - began) / len(batches)
        except RuntimeError as error:  # a data type, say, that an operation does not take
            pipe.send({"problem": one_line(error)})
            return
        pipe.send({"parameters": parameters_of(model), "seconds": seconds, "loss": loss})


@torch.no_grad()
def evaluate(arm: Arm, config: Config, options: argparse.Namespace, pipe: Connection) -> None:
    """Send what was measured, or why there is nothing."""
    prepare(arm, options)
    clock, model = CLOCKS[options.clock], arm.build(config).eval()
    tokens_BT = config.build_task().sample(stream("peers", "evaluation"), 1, config.recipe.train_length).tokens_BT
    keep_within(options.mib)
    before = peak_memory_bytes()
    try:
        model(tokens_BT)
        began = clock()
        model(tokens_BT)
        seconds = clock() - began
    except (MemoryError, RuntimeError) as error:
        pipe.send({"problem": why_it_ended(error, options.mib)})
        return
    mib = (peak_memory_bytes() - before) / MIB
    pipe.send({"parameters": parameters_of(model), "seconds": seconds, "mib": mib})


class Apart:
    """A process of its own, forked from this one, which holds no memory that the next would find free."""

    def __init__(self, act: Callable[..., None], *arguments: Any) -> None:
        fork = multiprocessing.get_context("fork")
        self.pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=act, args=(*arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self, seconds: float) -> dict[str, Any]:
        """What it sends next; if nothing comes, why not."""
        if not self.pipe.poll(seconds):
            return {"problem": f"took more than {seconds:g} s"}
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join()
            return {"problem": f"ended with exit code {self.process.exitcode}"}

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of the CSV, as they come."""
    for size in options.sizes:
        for precision in options.precisions:
            for batch, length in options.batches:
                yield from measure_training(size, precision, batch, length, options)
    for length in options.lengths:
        for size in options.sizes:
            yield from measure_evaluation(size, length, options)


def measure_training(
    size: str, precision: str, batch: int, length: int, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    setting = dict(zip(SETTING, ("training", size, precision, batch, length, options.clock), strict=True))
    workers = {
        arm: Apart(train, arm, config_of(arm.encoding, size, precision, batch, length), options)
        for arm in arms_of(options.encodings, options.libraries, "training")
    }
    rng = stream("peers", "training")
    try:
        for turn in range(-1, options.rounds):  # the first of them warms up
            for arm in shuffled(list(workers), rng):
                workers[arm].pipe.send(turn + 1)
                values = workers[arm].answer(options.seconds)
                if turn >= 0 or "problem" in values:
                    yield setting | {"round": turn} | vars(arm) | values
                if "problem" in values:
                    workers.pop(arm).end()
    finally:
        for worker in workers.values():
            worker.end()


def measure_evaluation(size: str, length: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    setting = dict(zip(SETTING, ("evaluation", size, "fp32", 1, length, options.clock), strict=True))
    left = arms_of(options.encodings, options.libraries, "evaluation")
    rng = stream("peers", "evaluation", length)
    for turn in range(options.long_rounds if length > LONG else options.rounds):
        for arm in shuffled(left, rng):
            worker = Apart(evaluate, arm, config_of(arm.encoding, size, "fp32", 1, length), options)
            try:
                values = worker.answer(options.seconds)
            finally:
                worker.end()
            yield setting | {"round": turn} | vars(arm) | values
            if "problem" in values:  # it will be the same the next time
                left.remove(arm)


def shuffled(arms: Sequence[Arm], rng: np.random.Generator) -> list[Arm]:
    return [arms[number] for number in rng.permutation(len(arms))]


# What comes of it


def ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Every peer beside ours: one row a setting and arm.

    Columns: those of SETTING and ARM, parameters, seconds (median) and mib (most), the same of ours, the ratio (median,
    the quartiles `low` and `high`, and of how many `rounds`) of the peer's seconds to ours in the same round, `fastest`
    where that is the smallest of its encoding, and problem.
    """
    key = [*SETTING, "encoding", "round"]
    ours = rows[rows.library == OURS].set_index(key)
    peers = rows[rows.library != OURS].join(ours[["parameters", "seconds", "mib"]].add_prefix("our_"), on=key)
    peers["ratio"] = peers.seconds / peers.our_seconds
    groups = peers.groupby([*SETTING, *ARM], sort=False, dropna=False)
    table = groups.agg(
        parameters=("parameters", "max"),
        our_parameters=("our_parameters", "max"),
        rounds=("ratio", "count"),
        seconds=("seconds", "median"),
        our_seconds=("our_seconds", "median"),
        mib=("mib", "max"),
        our_mib=("our_mib", "max"),
        ratio=("ratio", "median"),
        low=("ratio", lambda values: values.quantile(0.25)),
        high=("ratio", lambda values: values.quantile(0.75)),
        problem=("problem", "last"),
    ).reset_index()
    table["fastest"] = table.ratio == table.groupby([*SETTING, "encoding"]).ratio.transform("min")
    return table


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Against the fastest peer of each encoding, one row a setting: encodings, least (ratio, and of which), median."""
    fastest = table[table.fastest]
    found = []
    for setting, group in fastest.groupby(SETTING, sort=False):
        worst = group.loc[group.ratio.idxmin()]
        found.append((*setting, len(group), worst.ratio, worst.encoding, worst.library, group.ratio.median()))
    return pd.DataFrame(found, columns=[*SETTING, "encodings", "least", "encoding", "library", "median"])


def print_tables(rows: pd.DataFrame) -> None:
    table = ratios(rows)
    order = {key: place for place, key in enumerate(PEERS)}
    places = [order[key] for key in table[ARM].itertuples(index=False, name=None)]
    table = table.iloc[np.argsort(places, kind="stable")]
    for setting, group in table.groupby(SETTING, sort=False):
        work, size, precision, batch, length, clock = setting
        print(f"\n{work}, {size}, {precision}, {batch} x {length} tokens, {clock} time; ratio: the peer's time to ours")
        unit = "tokens/s" if work == "training" else "s"
        print(f"{'':38} {'parameters':>10} {unit:>10} {'MiB':>6}  ratio")
        for encoding, peers in group.groupby("encoding", sort=False):
            first = peers.iloc[0]
            ours = cost(work, batch * length, first.our_parameters, first.our_seconds, first.our_mib)
            print(f"{encoding:11} {OURS:15} {'':10} {ours}")
            for peer in peers.itertuples():
                name = f"{'':11} {peer.library:15} {peer.variant:10}"
                if peer.rounds == 0:
                    print(f"{name} {peer.problem}")
                    continue
                theirs = cost(work, batch * length, peer.parameters, peer.seconds, peer.mib)
                spread = f"{peer.ratio:5.2f} [{peer.low:.2f}, {peer.high:.2f}] of {peer.rounds}"
                print(f"{name} {theirs} {spread}{'  fastest' if peer.fastest else ''}")
    aims = f"aimed at in training: {LEAST} under each, {USUAL} in the median"
    print(f"\nAgainst the fastest peer of each encoding ({aims})")
    for line in summary(table).itertuples():
        about = f"{line.work}, {line.size}, {line.precision}, {line.batch} x {line.length}"
        least = f"least {line.least:.2f} ({line.encoding}, {line.library})"
        print(f"{about}: {least}, median {line.median:.2f} of {line.encodings} encodings")


def cost(work: str, tokens: int, parameters: float, seconds: float, mib: float) -> str:
    speed = f"{tokens / seconds:10.0f}" if work == "training" else f"{seconds:10.3f}"
    return f"{parameters:10.0f} {speed} {'' if np.isnan(mib) else f'{mib:.0f}':>6}"


def positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text}: a positive integer")
    return int(text)


def batch_and_length(text: str) -> tuple[int, int]:
    batch, _, length = text.partition("x")
    return positive(batch), positive(length)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="measure, and write each measurement to this CSV as it comes")
    what.add_argument("--tables", type=Path, metavar="CSV", help="measure nothing, and print the tables of this")
    sizes = catalogue.choices("model")
    parser.add_argument("--sizes", nargs="+", choices=sizes, default=["tiny", "small"], metavar="SIZE")
    parser.add_argument("--encodings", nargs="+", choices=ENCODINGS, default=ENCODINGS, metavar="ENCODING")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES, metavar="LIBRARY")
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16-mixed"], default=["fp32", "bf16-mixed"])
    batches = [(32, 128), (64, 64)]
    parser.add_argument("--batches", nargs="*", type=batch_and_length, default=batches, help="of training: 32x128 ...")
    parser.add_argument("--lengths", nargs="*", type=positive, default=[2048, 16384], help="of evaluation: 2048 16384")
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--long-rounds", type=positive, default=3, help=f"of evaluation beyond {LONG} tokens")
    parser.add_argument("--steps", type=positive, default=2, help="of training in a round, of which the mean is taken")
    parser.add_argument("--keep", action="store_true", help="let the peers too keep memory that was freed")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: for a machine that others use too")
    parser.add_argument("--mib", type=int, default=12 * 1024, help="more than this an evaluation may not allocate")
    parser.add_argument("--seconds", type=float, default=600.0, help="longer than this nothing may take")
    options = parser.parse_args()
    if options.tables is not None:
        print_tables(pd.read_csv(options.tables))
        return 0
    if options.out.exists():
        parser.error(f"--out {options.out}: is there already")
    if not arms_of(options.encodings, options.libraries, "training"):
        parser.error(f"--libraries {' '.join(options.libraries)}: none has {' or '.join(options.encodings)}")
    transformers.logging.set_verbosity_error()
    with options.out.open("x", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in measure(options):
            writer.writerow(row)
            file.flush()
    print_tables(pd.read_csv(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
