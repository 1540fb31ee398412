"""The default launcher: a pool of processes on this machine, one for each job."""

# No `from __future__ import annotations` here: Hydra reads the types of the dataclass below.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from rpe_bench.config import Config


@dataclass
class PoolLauncherConf:
    _target_: str = "hydra_plugins.rpe_bench.launcher.PoolLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="pool", node=PoolLauncherConf, provider="rpe_bench")


class PoolLauncher(Launcher):
    """Runs jobs by `rpe_bench.sweep.pool.run_pool`; the sweeper hands over the jobs' configs, by their overrides."""

    configs: "dict[tuple[str, ...], Config]"

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.configs = {}

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Returns nothing: a run's own record says how it ended."""
        from rpe_bench.errors import ConfigError
        from rpe_bench.sweep.pool import run_pool

        if not self.configs:
            raise ConfigError("hydra/launcher=pool: goes with hydra/sweeper=resuming")
        run_pool([self.configs[tuple(overrides)] for overrides in job_overrides])
        return []
