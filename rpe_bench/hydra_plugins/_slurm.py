"""The launcher for a cluster: Hydra's of submitit, but that its tasks are shares of a sweep rather than single jobs."""

# Named with an underscore, so that Hydra does not import it by itself: it needs an extra, and few need it.
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.hydra_submitit_launcher import submitit_launcher

if TYPE_CHECKING:
    from rpe_bench.config import Config
    from rpe_bench.slurm import Options


class SlurmLauncher(submitit_launcher.SlurmLauncher):
    """Runs jobs by `rpe_bench.slurm.run_tasks`; the sweeper hands over the jobs' configs, by their overrides."""

    configs: "dict[tuple[str, ...], Config]"
    options: "Options"

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Raises ConfigError where an option is wrong, or there is no SLURM here."""
        from rpe_bench.slurm import Options, check_commands

        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.configs = {}
        self.options = Options.of(self.params)
        check_commands()

    @property
    def gpu(self) -> bool:
        """Whether runs will find one: what there is here says nothing of the nodes."""
        return self.options.gpus_per_node is not None

    @property
    def at_once(self) -> int:
        """How many runs go on at once in all tasks."""
        return self.options.array_parallelism * self.options.at_once(next(iter(self.configs.values())))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Returns nothing: a run's own record says how it ended."""
        from rpe_bench.slurm import run_tasks

        run_tasks([self.configs[tuple(overrides)] for overrides in job_overrides], self.options)
        return []
