"""Whether everything works on a GPU as it does on the CPU, in less than 4 minutes.

    python scripts/gpu_check.py                   # on the GPU that CUDA shows first
    python scripts/gpu_check.py --device cpu      # the same checks of the CPU, to try the script where there is none

Every encoding, in a causal model and where it can in a bidirectional one, against a float64 copy on the CPU with the
same weights: logits in training and in a long evaluation, outputs of attention, and gradients. Then whole runs against
the same runs on the CPU, in float32 and in bf16-mixed, alone and several at once. Then `rpe-bench profile` on the
device. TF32 is off.

Differences are the largest one of a tensor over the largest number in it; of a gradient, over that plus a thousandth of
the largest of all gradients. What differs by more than --tolerance is named; gradients may by ten times that, losses
after some steps of training by fifty times, since AdamW makes a step of any rounding of a gradient that is nothing.

Exit status 0 where all agree, 1 where something differs or fails, 2 where there is no GPU.
"""

import argparse
import copy
import csv
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from rpe_bench import catalogue
from rpe_bench.attention import attention_logits
from rpe_bench.components import build_encodings, load_class
from rpe_bench.compose import compose
from rpe_bench.config import Config, resolve
from rpe_bench.encodings.base import Geometry
from rpe_bench.errors import one_line
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.profiling.cells import Clock, Subject, prepared
from rpe_bench.run import execute
from rpe_bench.tasks.base import Batch

SIZES = {"layers": 2, "dim": 32, "heads": 4}
VOCABULARY = 16
SHORT, LONG = 72, 1100
"""Tokens in training: more than are taken at once; in evaluation: more than a block of the fused kernel's mask or, of
two examples, than a chunk of logits, and than FIRE's threshold."""

TOGETHER = ["nope", "rope", "alibi", "t5"]
"""Runs that share the device, and those that are compiled."""

EXAMPLES, TOKENS = 64, 128
"""Of a training step that is timed."""


@dataclass
class Findings:
    """What was compared."""

    tolerance: float
    checks: int = 0
    problems: list[str] = field(default_factory=list)

    def compare(self, what: str, found: Tensor, expected: Tensor, floor: float = 0.0, factor: float = 1.0) -> float:
        self.checks += 1
        found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
        shown = torch.isfinite(expected)
        if not torch.equal(torch.isfinite(found), shown):
            self.problems.append(f"{what}: other numbers are finite than on the CPU")
            return float("inf")
        found, expected = found[shown], expected[shown]
        if not expected.numel():
            return 0.0
        scale = float(expected.abs().max()) + floor
        by = float((found - expected).abs().max()) / scale if scale else float((found - expected).abs().max())
        if not by <= self.tolerance * factor:
            self.problems.append(f"{what}: differs by {by:.1e}, more than {self.tolerance * factor:g}")
        return by

    def expect(self, what: str, holds: bool) -> None:
        self.checks += 1
        if not holds:
            self.problems.append(what)

    def attempt(self, what: str, check: Callable[[], None]) -> None:
        try:
            check()
        except Exception as error:  # whatever it is, the other checks still say something
            self.checks += 1
            self.problems.append(f"{what}: {one_line(error)}")


# Every encoding against float64 on the CPU


def cases(chosen: list[str]) -> Iterator[tuple[str, bool]]:
    for name in chosen:
        cls = load_class("encoding", catalogue.read("encoding", name)["target"])
        yield name, True
        if not cls.causal_only:
            yield name, False


def model_of(name: str, causal: bool) -> tuple[Transformer, int]:
    """A model on the CPU whose encoding is not as drawn, where it might have no effect; and the axes of a position."""
    options = catalogue.read("encoding", name)
    axes = load_class("encoding", options["target"]).axes or 1
    geometry = Geometry(**SIZES, train_length=SHORT, max_length=LONG, causal=causal, axes=axes)
    encodings = build_encodings(options, geometry)
    model = Transformer(**SIZES, vocabulary=VOCABULARY, classes=VOCABULARY, causal=causal, encodings=encodings)
    model.reset_parameters(0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model, axes


def batch_of(length: int, examples: int, axes: int) -> Batch:
    generator = torch.Generator().manual_seed(length)
    tokens, targets = torch.randint(VOCABULARY, (2, examples, length), generator=generator)
    positions = None
    if axes > 1:
        side = next(side for side in range(1, length + 1) if side**axes >= length)
        cells = torch.cartesian_prod(*[torch.arange(side)] * axes)[:length]
        positions = cells.expand(examples, length, axes)
    return Batch(tokens, targets, positions)


def observed(model: Transformer, short: Batch, long: Batch) -> dict[str, Tensor]:
    """What a model computes: in training, with gradients, and in a long evaluation."""
    found: dict[str, Tensor] = {}
    kept = [
        block.attention.register_forward_hook(
            lambda module, given, out, layer=layer: found.__setitem__(f"attention of layer {layer}", out)
        )
        for layer, block in enumerate(model.blocks)
    ]
    found["logits in training"] = model.train()(short.tokens_BT, short.positions)
    for hook in kept:
        hook.remove()
    model.zero_grad()
    loss_of(model, short).backward()
    found |= {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    with torch.no_grad():
        found["logits in evaluation"] = model.eval()(long.tokens_BT, long.positions)
        encoding, device, dtype = model.encodings[0], short.tokens_BT.device, model.tokens.weight.dtype
        generator = torch.Generator().manual_seed(2)
        shape = (2, 2, SIZES["heads"], SHORT, SIZES["dim"] // SIZES["heads"])
        q, k = torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
        x = torch.randn(2, SHORT, SIZES["dim"], generator=generator, dtype=torch.float64).to(device, dtype)
        project = model.blocks[0].attention.project
        about = {"x": x, "tokens": short.tokens_BT[:2], "project": project}
        positions = None if short.positions is None else short.positions[:2]
        found["logits of attention"] = attention_logits(encoding, q, k, positions, **about)
    return found


def equality(name: str, causal: bool, device: torch.device, findings: Findings) -> tuple[float, float]:
    """The largest differences of outputs and of gradients."""
    model, axes = model_of(name, causal)
    exact = copy.deepcopy(model).double()
    short, long = batch_of(SHORT, 3, axes), batch_of(LONG, 2, axes)
    expected = observed(exact, short, long)
    found = observed(model.to(device), short.to(device), long.to(device))
    where = f"{name}, {'causal' if causal else 'bidirectional'}"
    gradients = [what for what in expected if what.startswith("gradient")]
    largest = max(float(expected[what].abs().max()) for what in gradients)
    worst = [0.0, 0.0]
    for what, tensor in expected.items():
        of_gradient = what in gradients
        seen = found[what]
        if what == "logits of attention" and causal:  # of what the mask hides nothing is said
            rows, columns = tensor.shape[-2:]
            visible = torch.ones(rows, columns, dtype=torch.bool).tril()
            tensor, seen = tensor[..., visible], seen[..., visible.to(seen.device)]
        floor, factor = (1e-3 * largest, 10) if of_gradient else (0.0, 1)
        by = findings.compare(f"{where}: {what}", seen, tensor, floor, factor)
        worst[of_gradient] = max(worst[of_gradient], by)
    return worst[0], worst[1]


# Whole runs


def config_of(encoding: str, directory: Path, device: str, *overrides: str) -> Config:
    cls = load_class("encoding", catalogue.read("encoding", encoding)["target"])
    task = "grid_lookup" if cls.axes == 2 else "copy"
    sizes = [f"model.{key}={value}" for key, value in SIZES.items()]
    chosen = [f"encoding={encoding}", f"task={task}", *sizes, "logger=csv", f"device={device}", "recipe.steps=6"]
    chosen += ["recipe.batch_size=8", "recipe.log_every=1", "evaluation.examples=8", "recipe=quick"]
    composed = compose([*chosen, f"results_dir={directory}", *overrides])
    assert composed is not None
    return resolve(composed.raw)


def column(config: Config, table: str, name: str) -> Tensor:
    with open(config.run_dir / f"{table}.csv", encoding="utf-8") as file:
        return torch.tensor([float(row[name]) for row in csv.DictReader(file)], dtype=torch.float64)


def run_of(encoding: str, directory: Path, device: str, *overrides: str) -> Config:
    config = config_of(encoding, directory, device, *overrides)
    execute(config)
    return config


def runs(encoding: str, directory: Path, device: str, findings: Findings) -> None:
    """A run on the device against that on the CPU; in bf16-mixed against that in float32."""
    on_cpu = run_of(encoding, directory / "cpu", "cpu")
    here = run_of(encoding, directory / "here", device)
    for table in ("train", "eval"):
        expected, found = (column(config, table, "loss") for config in (on_cpu, here))
        findings.compare(f"{encoding}: loss in {table}.csv of a run", found, expected, factor=50)
    mixed = run_of(encoding, directory / "here", device, "recipe.precision=bf16-mixed")
    found, expected = column(mixed, "train", "loss"), column(on_cpu, "train", "loss")
    by = float(((found - expected).abs() / expected).max())
    findings.expect(f"{encoding}: losses in bf16-mixed are {by:.1%} off those in float32, not within 5 %", by <= 0.05)


def together(directory: Path, device: str, findings: Findings) -> None:
    """Several runs at once on one device, by the command line, against the same runs one by one."""
    config = config_of("nope", directory / "together", device)
    sizes = [f"model.{key}={value}" for key, value in SIZES.items()]
    command = [sys.executable, "-m", "rpe_bench", "run", "-m", f"encoding={','.join(TOGETHER)}", "task=copy", *sizes]
    command += ["logger=csv", f"device={device}", "recipe=quick", "recipe.steps=6", "recipe.batch_size=8"]
    command += ["recipe.log_every=1", "evaluation.examples=8", f"sweep.workers={len(TOGETHER)}"]
    done = subprocess.run([*command, f"results_dir={config.results_dir}"], capture_output=True, text=True)
    findings.expect(
        f"a sweep with runs that share the device ended with {done.returncode}: {done.stderr[-300:]}",
        done.returncode == 0,
    )
    for encoding in TOGETHER if done.returncode == 0 else ():
        expected = column(config_of(encoding, directory / "here", device), "train", "loss")
        found = column(config_of(encoding, directory / "together", device), "train", "loss")
        findings.compare(f"{encoding}: losses of a run beside others", found, expected, factor=50)


def profile(directory: Path, device: str, findings: Findings) -> None:
    lengths = "128,512,2048" if device == "cuda" else "32,64,128"
    common = [sys.executable, "-m", "rpe_bench", "profile", f"device={device}", f"--out={directory / 'profile'}"]
    for more in (
        ["--encodings=rope,alibi,t5,shaw", f"--lengths={lengths}", "--rounds=5", "--seconds=2"],
        ["--where", "--encodings=nope,t5", "--rounds=5"],
    ):
        done = subprocess.run([*common, *more], capture_output=True, text=True)
        print(done.stdout)
        findings.expect(f"rpe-bench profile ended with {done.returncode}: {done.stderr[-300:]}", done.returncode == 0)


def compiled(directory: Path, device: str, findings: Findings) -> None:
    """Runs of compiled models against themselves, and what a training step takes then."""
    for encoding in TOGETHER:
        eager, fast = (run_of(encoding, directory / f"compile={c}", device, f"compile={c}") for c in ("false", "true"))
        for table in ("train", "eval"):
            expected, found = (column(config, table, "loss") for config in (eager, fast))
            findings.compare(f"{encoding}: loss in {table}.csv of a compiled run", found, expected, factor=50)
        ratio = seconds_of_a_step(fast, encoding) / seconds_of_a_step(eager, encoding)
        print(
            f"{encoding:10} a compiled training step of {EXAMPLES} x {TOKENS} tokens: {ratio:.2f} of the time of eager"
        )


def seconds_of_a_step(config: Config, encoding: str) -> float:
    """The median of 20."""
    config = config.model_copy(update={"recipe": config.recipe.model_copy(update={"batch_size": EXAMPLES})})
    step, model = prepared(config, Subject(catalogue.read("encoding", encoding)), "training", TOKENS)
    if config.compile:
        model.compile(dynamic=True)
    for _ in range(3):
        step()
    clock = Clock(config)
    return statistics.median(clock.of(step) for _ in range(20))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--encodings", help="ids, by commas; all of them by default")
    parser.add_argument("--tolerance", type=float, default=2e-5)
    parser.add_argument("--compile", action="store_true", help="and compiled models, which takes minutes more")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"There is no GPU that torch {torch.__version__} can use: nothing was checked (try --device cpu).")
        return 2
    device = torch.device(options.device)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    name = torch.cuda.get_device_name() if device.type == "cuda" else "the CPU in float32"
    print(f"torch {torch.__version__}, {name}, against float64 on the CPU; tolerance {options.tolerance:g}\n")
    chosen = options.encodings.split(",") if options.encodings else catalogue.encodings()
    findings, began = Findings(options.tolerance), time.monotonic()

    print("largest difference of outputs and of gradients")
    for encoding, causal in cases(chosen):

        def check(encoding: str = encoding, causal: bool = causal) -> None:
            outputs, gradients = equality(encoding, causal, device, findings)
            print(f"{encoding:24} {'causal' if causal else 'bidirectional':14} {outputs:.1e}  {gradients:.1e}")

        findings.attempt(f"{encoding}, {'causal' if causal else 'bidirectional'}", check)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        print(f"\n{time.monotonic() - began:.0f} s; whole runs, in float32 and in bf16-mixed")
        for encoding in dict.fromkeys([*chosen, *TOGETHER]):
            findings.attempt(f"{encoding}: a run", lambda e=encoding: runs(e, directory, options.device, findings))
        print(f"{time.monotonic() - began:.0f} s; several at once")
        findings.attempt("runs at once", lambda: together(directory, options.device, findings))
        print(f"{time.monotonic() - began:.0f} s; profile\n")
        findings.attempt("profile", lambda: profile(directory, options.device, findings))
        if options.compile:
            findings.attempt("compiled", lambda: compiled(directory, options.device, findings))
    print(*(f"WRONG  {problem}" for problem in findings.problems), sep="\n")
    verdict = f"{len(findings.problems)} of {findings.checks} checks fail" if findings.problems else "all agree"
    print(f"{name}: {findings.checks} checks in {time.monotonic() - began:.0f} s: {verdict}")
    return 1 if findings.problems else 0


if __name__ == "__main__":
    sys.exit(main())
