"""A sweep that is checked as a whole before it starts, and leaves out what is finished."""

# No `from __future__ import annotations` here: Hydra reads the types of the dataclass below.
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

PATIENCE = 20
"""Jobs that are checked before anyone wonders what is going on."""


@dataclass
class ResumingSweeperConf:
    _target_: str = "hydra_plugins.rpe_bench.sweeper.ResumingSweeper"
    params: dict[str, str] = field(default_factory=dict)
    grids: list[dict[str, Any]] = field(default_factory=list)


ConfigStore.instance().store(group="hydra/sweeper", name="resuming", node=ResumingSweeperConf, provider="rpe_bench")


class ResumingSweeper(BasicSweeper):
    """The product of all values given, by `hydra.sweeper.params` or in overrides, as Hydra's own sweeper takes it.

    Where `hydra.sweeper.grids` lists several sets of parameters, a product is made of each, with all that is given
    besides, and the sweep is their union: a task then comes with the recipe, or the model, that belongs to it.
    """

    def __init__(self, params: dict[str, str], grids: list[dict[str, Any]]) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.grids = grids

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        # Here rather than on top: every application of Hydra in this environment imports this module.
        from rpe_bench.compose import SLURM, register_slurm
        from rpe_bench.sweep.attempt import job

        if config.hydra.launcher.get("_target_") == SLURM:
            register_slurm()
        super().setup(hydra_context=hydra_context, task_function=job, config=config)

    def sweep(self, arguments: list[str]) -> None:
        """Compose and check all jobs, then launch those that are not finished.

        Raises:
            ConfigError: some jobs are wrong, and none was started.
            SystemExit: some runs failed (status 1), or the sweep was interrupted (130).
        """
        from rpe_bench.combinations import Combinations, HydraFiles
        from rpe_bench.compose import COMPOSITION_ERRORS, explain, judged_by_us, plain
        from rpe_bench.config import Resolver
        from rpe_bench.errors import ConfigError
        from rpe_bench.interrupts import raising
        from rpe_bench.lr_search import run_searching
        from rpe_bench.sweep.complaints import complaints
        from rpe_bench.sweep.jobs import run_jobs
        from rpe_bench.sweep.plan import Job

        assert self.launcher is not None and self.hydra_context is not None and self.config is not None
        given = [plain(argument) for argument in arguments]
        products = [self._product(grid, given) for grid in self.grids or [{}]]
        combinations = [judged_by_us(combination) for product in products for combination in product]
        if len(combinations) > PATIENCE:
            print(f"checking {len(combinations)} jobs", file=sys.stderr, flush=True)

        loader, config = self.hydra_context.config_loader, self.config
        files = HydraFiles(loader, config)
        composed = Combinations(lambda overrides: loader.load_sweep_config(config, overrides), files)
        resolved = Resolver(getattr(self.launcher, "gpu", None))
        jobs, errors = [], {}
        for number, combination in enumerate(combinations):
            try:
                jobs.append(Job(combination, resolved(composed(combination))))
            except COMPOSITION_ERRORS as error:
                errors[number] = [explain(error)]
            except ConfigError as error:
                errors[number] = error.errors
        if errors:
            raise ConfigError(*complaints([[plain(o) for o in combination] for combination in combinations], errors))

        launcher = self.launcher
        # Ours, which take configs, run jobs by the pool: here, or on the nodes of a cluster.
        if not hasattr(launcher, "configs") and any(job.config.sweep.timeout_minutes for job in jobs):
            name = type(launcher).__name__
            raise ConfigError(f"sweep.timeout_minutes: is kept by hydra/launcher=pool and slurm, and not by {name}")

        def hand_over(some: list[Job]) -> None:
            if hasattr(launcher, "configs"):  # which is spared to compose everything once more
                launcher.configs = {tuple(job.overrides): job.config for job in some}

        def launch(todo: list[Job]) -> None:
            hand_over(todo)
            launcher.launch([job.overrides for job in todo], initial_job_idx=0)

        hand_over(jobs)
        at_once = getattr(launcher, "at_once", None)
        searches = any(job.config.sweep.lr_search for job in jobs)
        with raising():
            status = run_searching(jobs, launch, at_once) if searches else run_jobs(jobs, launch, at_once)
        if status:
            raise SystemExit(status)

    def _product(self, grid: Mapping[str, Any], given: list[str]) -> Sequence[Sequence[str]]:
        """The overrides of each job of a grid; what is given on the command line comes last, and so prevails."""
        from rpe_bench import catalogue
        from rpe_bench.compose import judged_by_us, plain
        from rpe_bench.errors import ConfigError

        assert self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        listed = [f"{key}={value}" for key, value in {**self.params, **grid}.items()]
        overrides = parser.parse_overrides(judged_by_us([*listed, *given]))
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                raise ConfigError(f"{plain(str(override.input_line))}: has no end of values; use choice() or range()")
            if override.is_sweep_override() and not list(override.sweep_string_iterator()):
                problem = "an empty range leaves nothing to run"
                if override.key_or_group in catalogue.GROUPS:
                    known = ", ".join(catalogue.choices(override.key_or_group))
                    problem = f"matches no {override.key_or_group} (choose from {known})"
                raise ConfigError(f"{plain(str(override.input_line))}: {problem}")
        [combinations] = self.split_arguments(overrides, max_batch_size=None)
        if any(o.key_or_group == "encoding" and o.value_type is ValueType.GLOB_CHOICE_SWEEP for o in overrides):
            # A pattern means all that there are; `custom` is one only with a class of the user's.
            combinations = [combination for combination in combinations if "encoding=custom" not in combination]
        return combinations
