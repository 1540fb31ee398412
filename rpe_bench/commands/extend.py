"""`rpe-bench extend`: a RoPE model at several times its training length, under every scaling."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.commands import keep_to_one_thread, look_here

HELP = "a finished RoPE run at several times its length, under each scaling, as it is and after fine-tuning"
DESCRIPTION = """Evaluate finished RoPE runs at up to FACTOR times the length that they were trained at, under each
scaling of the rotation: as they are and, with --steps, after fine-tuning at the longer length. Every evaluation is a
run of its own beside theirs; the same command again goes on, and skips what is finished. Overrides, key=value, may set
keys of recipe, evaluation, logger, sweep and the like."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("given", nargs="+", metavar="RUN_DIR | key=value", help="finished runs of one kind; overrides")
    parser.add_argument("--factor", type=float, default=4.0, help="how many times the training length; 4 by default")
    parser.add_argument("--scalings", metavar="A,B", help="by default plain, all of conf/encoding, and base")
    parser.add_argument("--steps", type=int, default=0, help="of fine-tuning at the longer length; none by default")
    parser.add_argument("--lr", type=float, help="of fine-tuning; by default a tenth of what the run trained with")
    parser.add_argument("--base", type=float, help="of the scaling `base`; by default 10 FACTOR times that of the run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the tidy CSV; in RESULTS_DIR/extend by default")


def main(parsed: Namespace) -> int:
    keep_to_one_thread()
    look_here()
    from rpe_bench.interrupts import ending, raising

    with ending():
        from rpe_bench import extension
        from rpe_bench.errors import ConfigError
        from rpe_bench.stages import Overrides, check_out, jobs_of, label, run, sources_of, split
        from rpe_bench.sweep.records import is_finished

        extension.check_factor(parsed.factor)
        if parsed.steps < 0:
            raise ConfigError(f"--steps={parsed.steps}: must be at least 0")
        chosen = extension.chosen_scalings(parsed.scalings)
        if parsed.lr is not None and not parsed.steps:
            raise ConfigError(f"--lr={parsed.lr:g}: is that of fine-tuning, which needs --steps")
        if parsed.base is not None and extension.BASE not in chosen:
            raise ConfigError(f"--base={parsed.base:g}: goes with --scalings={extension.BASE}")
        check_out(parsed.out)
        paths, given = split(parsed.given)
        overrides = Overrides.of(given, extension.TAKEN)
        sources = sources_of(paths)
        plan, runs = extension.comparison(
            sources, chosen, parsed.factor, parsed.steps, parsed.lr, parsed.base, overrides
        )
        jobs = jobs_of([(label(source, stage), plan.raw(source, stage)) for source, _, stage in runs])
        with raising():
            status = run(jobs)
    if jobs[0].config.sweep.dry_run or status == 130:
        return status
    from rpe_bench.stage_table import Entry, publish
    from rpe_bench.stages import BEFORE, have_same_examples

    before = [
        Entry(source, BEFORE, source.config, source.directory, extension.PLAIN)
        for source in sources
        if have_same_examples(source.config, jobs[0].config)  # else the zero-shot runs of plain say how it was
    ]
    after = [
        Entry(source, stage.name, job.config, job.config.run_dir, scaling)
        for (source, scaling, stage), job in zip(runs, jobs, strict=True)
    ]
    if finished := [entry for entry in after if is_finished(entry.config)]:
        publish([*before, *finished], "scaling", parsed.out, "extend")
    return status
