"""Where the time of a training step goes: by part of the step, by kind of operator, and against the floor.

Parts are read off the clock by hooks on the modules that the model is made of, so that a step stays as it is.
Operators are those that torch's profiler names; it makes them slower, the small ones most, so that their shares are of
the profiled step.
"""

import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.profiler import ProfilerActivity, profile

from rpe_bench.allocator import keep_freed_memory
from rpe_bench.config import Config
from rpe_bench.errors import message_of
from rpe_bench.model import Transformer
from rpe_bench.profiling.cells import Clock, Subject, batch_of, build
from rpe_bench.profiling.work import Work, large_products
from rpe_bench.seeds import stream
from rpe_bench.train import Data, add_gradient, make_optimiser

PROFILED = 3
"""Steps that the profiler looks at."""

GROUPS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mkldnn_linear", "mv", "dot"),
    "fused attention": ("scaled_dot_product", "flash_attention", "efficient_attention"),
    "softmax": ("softmax",),
    "layer norms": ("native_layer_norm", "layer_norm"),
    "GELU": ("gelu",),
    "loss": ("log_softmax", "nll_loss", "cross_entropy"),
    "look-ups": ("embedding", "index", "index_select", "index_put", "gather", "scatter", "scatter_add"),
    "optimiser and clipping": ("fused", "foreach", "linalg_vector_norm"),
    "copies": ("copy", "clone", "contiguous", "cat", "to_copy", "constant_pad_nd", "flip", "fill", "zero", "stack"),
}
"""Group -> what the names of its operators are or begin with, leading underscores aside; the first that fits."""

ARITHMETIC, BOOKKEEPING, PYTHON = "arithmetic", "views and allocation", "Python and dispatch"
_VIEWS = (
    *("as_strided", "view", "t", "transpose", "slice", "select", "expand", "split", "empty", "detach", "reshape"),
    *("unsafe_view", "permute", "unsqueeze", "squeeze", "unbind", "result_type", "to", "set", "resize", "new_empty"),
    *("split_with_sizes", "unflatten", "flatten", "item", "local_scalar_dense", "lift", "numpy_T", "mT", "alias"),
)

COLUMNS = ("encoding", "length", "round", "quantity", "value")
"""Of shares.csv: seconds of each part, of a whole step, of its floor and of sampling, a row each."""

Row = dict[str, Any]


def group_of(operator: str) -> str:
    """The group of an operator as the profiler names it."""
    namespace, _, name = operator.rpartition("::")
    if not namespace or namespace.startswith("autograd"):
        return PYTHON
    name = name.lstrip("_")
    for group, beginnings in (*GROUPS.items(), (BOOKKEEPING, _VIEWS)):
        if any(name == beginning or name.startswith(f"{beginning}_") for beginning in beginnings):
            return group
    return ARITHMETIC


class Stopwatch:
    """Adds up the seconds of the parts of a step, one of which runs at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.parts: dict[str, float] = {}
        self._part, self._since = "", 0.0

    def start(self, part: str) -> None:
        self.parts = {}
        self._part, self._since = part, self._clock.now()

    def switch(self, part: str) -> None:
        """What follows is `part`."""
        now = self._clock.now()
        self.parts[self._part] = self.parts.get(self._part, 0.0) + now - self._since
        self._part, self._since = part, now


def instrument(model: Transformer, watch: Stopwatch) -> None:
    """Let the watch know of the parts of a pass: the children of the model and of its blocks, by their own names."""

    def switch(part: str) -> Callable[..., None]:
        return lambda *_: watch.switch(part)

    def loss_is_next(module: nn.Module, given: Any, logits: Tensor) -> None:
        watch.switch("loss")
        if logits.requires_grad:
            logits.register_hook(switch("backward"))

    children = [(name, child) for block in model.blocks for name, child in block.named_children()]
    children += [(name, child) for name, child in model.named_children() if not isinstance(child, nn.ModuleList)]
    for name, module in children:
        part = "norms" if isinstance(module, nn.LayerNorm) else name
        module.register_forward_pre_hook(switch(f"forward: {part}"))
        module.register_forward_hook(switch("forward: rest"))
    model.register_forward_pre_hook(switch("forward: rest"))
    model.register_forward_hook(loss_is_next)


class Step:
    """The training step of an encoding, under a stopwatch."""

    def __init__(self, config: Config, subject: Subject, length: int, clock: Clock) -> None:
        self._recipe, self._device = config.recipe, torch.device(config.device)
        self._model = build(config, subject, length).to(self._device).train()
        self._batch = batch_of(config, subject, length, config.recipe.batch_size)
        self._optimiser = make_optimiser(self._model, config.recipe)
        self._parameters = list(self._model.parameters())
        self._watch = Stopwatch(clock)
        instrument(self._model, self._watch)

    def __call__(self) -> dict[str, float]:
        """Seconds of each part."""
        watch = self._watch
        watch.start("batch and clearing of gradients")
        self._optimiser.zero_grad()
        add_gradient(self._model, self._batch, self._recipe, self._device)
        watch.switch("clipping")
        clip_grad_norm_(self._parameters, self._recipe.grad_clip)
        watch.switch("optimiser")
        self._optimiser.step()
        watch.switch("")
        return watch.parts

    def operators(self) -> dict[str, float]:
        """Group -> its share of the time of a step under the profiler; on a GPU, of the time that it computes."""
        on_gpu = self._device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        with profile(activities=activities) as found:
            start = time.perf_counter()
            for _ in range(PROFILED):
                self()
            total = 1e6 * (time.perf_counter() - start)
        kind = "self_device_time_total" if on_gpu else "self_cpu_time_total"
        spent: dict[str, float] = defaultdict(float)
        for event in found.key_averages():
            spent[group_of(event.key)] += getattr(event, kind)
        if on_gpu:
            total = sum(spent.values())
        else:
            spent[PYTHON] += max(0.0, total - sum(spent.values()))
        return {group: microseconds / total for group, microseconds in spent.items() if microseconds}


def shares(
    config: Config,
    subjects: Sequence[Subject],
    lengths: Sequence[int],
    rounds: int,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[list[Row], dict[str, str]]:
    """Rows of COLUMNS, and why an encoding has none.

    The quantities are `step`, and `step in PRECISION` of the other one; each part of it as `part: NAME`; `floor` and
    `floor, masked pairs too`, of its matrix products at the speeds of large ones measured in the same round;
    `sampling`, of as many tokens of the config's task; and, in one round more, `operator: GROUP`, a share. In a round
    everything takes its turn, in random order.
    """
    importlib.import_module("torch._dynamo")  # by the first step of an optimiser
    torch.set_num_threads(config.threads)
    keep_freed_memory()  # as a run does
    clock, data = Clock(config), Data(config.build_task(), config.build_positions(), config.recipe, config.seed)
    products = large_products(torch.device(config.device))
    precision = config.recipe.precision
    other = "fp32" if precision == "bf16-mixed" else "bf16-mixed"
    in_other = config.model_copy(update={"recipe": config.recipe.model_copy(update={"precision": other})})
    rows: list[Row] = []
    refused: dict[str, str] = {}
    for length in lengths:
        work = Work.of(config, length, config.recipe.batch_size)
        steps: dict[tuple[str, str], Step] = {}  # by encoding and precision
        for subject in subjects:
            try:
                both = [Step(given, subject, length, clock) for given in (config, in_other)]
                for step in both:
                    step()
                steps[subject.name, precision], steps[subject.name, other] = both
            except ValueError as error:  # how an encoding refuses a length
                refused[f"{subject.name} at {length}"] = message_of(error)
        names = dict.fromkeys(name for name, _ in steps)
        for call, _ in products.values():
            call()
        for turn in range(rounds):
            tell(f"training at {length} tokens, round {turn + 1} of {rounds}")
            found, speeds, sampling = _round(steps, products, data, clock, turn, length)
            for name in names:
                parts = found[name, precision]
                values = {"step": sum(parts.values()), **{f"part: {part}": spent for part, spent in parts.items()}}
                values[f"step in {other}"] = sum(found[name, other].values())
                values["floor"] = work.seconds(speeds, precision)
                values["floor, masked pairs too"] = work.seconds(speeds, precision, masked=True)
                values["sampling"] = sampling * config.recipe.batch_size * length
                about = {"encoding": name, "length": length, "round": turn}
                rows += [{**about, "quantity": quantity, "value": value} for quantity, value in values.items()]
        for name in names:
            step = steps[name, precision]
            about = {"encoding": name, "length": length, "round": rounds}
            rows += [{**about, "quantity": f"operator: {group}", "value": v} for group, v in step.operators().items()]
    return rows, refused


def _round(
    steps: Mapping[tuple[str, str], Step],
    products: Mapping[str, tuple[Callable[[], None], float]],
    data: Data,
    clock: Clock,
    turn: int,
    length: int,
) -> tuple[dict[tuple[str, str], dict[str, float]], dict[str, float], float]:
    """Seconds of the parts of each step, operations a second of the large products, and seconds a token of sampling."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    speeds: dict[str, float] = {}
    sampling = 0.0
    turns: list[tuple[str, Any]] = [*(("step", key) for key in steps), *(("product", name) for name in products)]
    turns.append(("sampling", None))
    for place in stream("shares", length, turn).permutation(len(turns)):
        kind, key = turns[place]
        if kind == "step":
            found[key] = dict(steps[key]())
        elif kind == "product":
            call, operations = products[key]
            speeds[key] = operations / clock.of(call)
        else:
            start = clock.now()
            batch = data.batch(turn)
            sampling = (clock.now() - start) / batch.tokens_BT.numel()
    return found, speeds, sampling
