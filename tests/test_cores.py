"""Cores are counted by what the system says a process may use, which these tests write in files of their own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rpe_bench import cores

Limits = dict[str, str]


@pytest.fixture
def available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Limits], int]:
    """How many of eight cores are available, by what /proc/self/cgroup says and by files of /sys/fs/cgroup."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cores, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cores, "MINE", tmp_path / "mine")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)

    def count(mine: str, limits: Limits) -> int:
        (tmp_path / "mine").write_text(mine)
        for name, text in limits.items():
            (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "groups" / name).write_text(f"{text}\n")
        return cores.available_cores()

    return count


Available = Callable[[str, Limits], int]


@pytest.mark.parametrize(("limit", "found"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_containers_limit(available: Available, limit: str, found: int) -> None:
    assert available("0::/\n", {"cpu.max": limit}) == found


def test_the_limit_of_each_group_on_the_way_up_counts(available: Available) -> None:
    limits = {"user/cpu.max": "300000 100000", "user/job/cpu.max": "max 100000", "other/cpu.max": "100000 100000"}
    assert available("0::/user/job\n", limits) == 3
    assert available("0::/user/job\n", {"user/job/cpu.max": "200000 100000"}) == 2


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_control_groups_of_version_1(available: Available, controllers: str) -> None:
    mine = f"3:memory:/job\n2:{controllers}:/job\n1:cpuset:/job\n0::/\n"
    limits = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert available(mine, limits) == 8
    limits = {"cpu/job/cpu.cfs_quota_us": "150000", "cpu/job/cpu.cfs_period_us": "50000"}
    assert available(mine, limits) == 3


def test_a_group_named_by_its_path_outside_of_the_container(available: Available) -> None:
    limits = {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}
    assert available("2:cpu,cpuacct:/docker/0123\n", limits) == 4


def test_where_there_are_no_control_groups(available: Available) -> None:
    assert available("", {}) == 8
