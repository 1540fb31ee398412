"""`rpe-bench retrofit`: another encoding for a finished run."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.commands import keep_to_one_thread, look_here

HELP = "another encoding for a finished run: change, go on with pre-training, fine-tune, scale"
DESCRIPTION = """Give finished runs another encoding, and follow the loss: before the change, after it, after going on
with pre-training at a low rate, after fine-tuning at a longer length, and with the rotation scaled at inference. Stages
of no steps are left out. Every stage is a run of its own beside theirs, which begins with the weights of the one
before; the same command again goes on. Overrides, key=value, may set keys of encoding, recipe, evaluation, logger,
sweep and the like."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("given", nargs="+", metavar="RUN_DIR | key=value", help="finished runs of one kind; overrides")
    parser.add_argument("--encoding", required=True, metavar="ID", help="the new one")
    parser.add_argument("--pretrain-steps", type=int, default=0, metavar="N", help="at the length trained on")
    parser.add_argument(
        "--pretrain-lr", type=float, metavar="LR", help="a tenth of what the run trained with by default"
    )
    parser.add_argument("--finetune-steps", type=int, default=0, metavar="N", help="at a longer length")
    parser.add_argument("--finetune-lr", type=float, metavar="LR", help="by default as for --pretrain-lr")
    parser.add_argument("--finetune-length", type=int, metavar="SIZE", help="by default twice that of the run")
    parser.add_argument("--scaling", metavar="NAME", help="of a rotation, at inference: a scaling that extend knows")
    parser.add_argument("--factor", type=float, help="of the scaling, over the length last trained on; 4 by default")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the tidy CSV; in RESULTS_DIR/retrofit by default")


def main(parsed: Namespace) -> int:
    keep_to_one_thread()
    look_here()
    from rpe_bench.interrupts import ending, raising

    with ending():
        from rpe_bench.errors import ConfigError
        from rpe_bench.retrofit import TAKEN, retrofitting
        from rpe_bench.stages import BEFORE, SETTABLE, Overrides, chain, check_out, sources_of, split

        for flag in ("pretrain_steps", "finetune_steps"):
            if getattr(parsed, flag) < 0:
                raise ConfigError(f"--{flag.replace('_', '-')}={getattr(parsed, flag)}: must be at least 0")
        for flag, needed in (
            ("pretrain_lr", "pretrain_steps"),
            ("finetune_lr", "finetune_steps"),
            ("finetune_length", "finetune_steps"),
            ("factor", "scaling"),
        ):
            if (value := getattr(parsed, flag)) is not None and not getattr(parsed, needed):
                option, other = (f"--{name.replace('_', '-')}" for name in (flag, needed))
                raise ConfigError(f"{option}={value:g}: would change nothing without {other}")
        check_out(parsed.out)
        paths, given = split(parsed.given)
        overrides = Overrides.of(given, TAKEN | {"recipe.train_length": "--finetune-length"}, (*SETTABLE, "encoding"))
        sources = sources_of(paths)
        plan, stages = retrofitting(
            sources,
            parsed.encoding,
            overrides,
            (parsed.pretrain_steps, parsed.pretrain_lr),
            (parsed.finetune_steps, parsed.finetune_lr, parsed.finetune_length),
            None if parsed.scaling is None else (parsed.scaling, 4.0 if parsed.factor is None else parsed.factor),
        )
        with raising():
            status, done = chain(sources, stages, plan)
    if any(step.stage != BEFORE for step in done):
        from rpe_bench.stage_table import Entry, publish

        entries = [Entry(s.source, s.stage, s.config, s.directory, s.config.encoding.name) for s in done]
        publish(entries, "encoding", parsed.out, "retrofit")
    return status
