"""Devices are shares of the cores that a process may really use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from src.machine import devices
from src.machine.devices import Device
from tests.nvidia_driver import Driver

Groups = dict[str, str]
Install = Callable[..., Driver]
UUIDS = ("GPU-a0", "GPU-a1", "GPU-b2", "GPU-c3")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Eight cores, and files of /proc and /sys as given."""

    def make(cores: set[int] | None = None, **files: str | Groups) -> None:
        contents: Groups = dict(files.get("sys", {}))
        if "cgroup" in files:
            contents["/proc/self/cgroup"] = files["cgroup"]

        def read(self: Path, *_: object, **__: object) -> str:
            try:
                return contents[str(self)]
            except KeyError:
                raise FileNotFoundError(str(self)) from None

        monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores or set(range(8)))
        monkeypatch.setattr(Path, "read_text", read)

    return make


@pytest.mark.parametrize(
    ("cgroup", "system", "usable"),
    [
        # Version 2: quota and period in one file, of the process's own group or, in a container, of the root.
        ("0::/job\n", {"/sys/fs/cgroup/job/cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"/sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3),
        ("0::/job\n", {"/sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ("0::/job\n", {"/sys/fs/cgroup/job/cpu.max": "50000 100000\n"}, 1),
        ("0::/job\n", {"/sys/fs/cgroup/job/cpu.max": "max 100000\n"}, 8),
        ("0::/job\n", {"/sys/fs/cgroup/job/cpu.max": "9900000 100000\n"}, 8),
        # That of a group above holds, too, and so does the least of several.
        ("0::/user/job\n", {"/sys/fs/cgroup/user/cpu.max": "150000 100000\n"}, 1),
        (
            "0::/user/job\n",
            {
                "/sys/fs/cgroup/user/job/cpu.max": "400000 100000\n",
                "/sys/fs/cgroup/user/cpu.max": "250000 100000\n",
                "/sys/fs/cgroup/cpu.max": "max 100000\n",
            },
            2,
        ),
        # A container's group, as it is mounted there, with one within.
        (
            "0::/docker/f00/inner\n",
            {
                "/proc/self/mountinfo": "30 23 0:26 /docker/f00 /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
                "/sys/fs/cgroup/inner/cpu.max": "300000 100000\n",
                "/sys/fs/cgroup/cpu.max": "max 100000\n",
            },
            3,
        ),
        ("0::/job\n", {}, 8),
        ("", {}, 8),
        # Version 1: two files, -1 for no limit; cpuset and cpuacct are other controllers.
        (
            "5:cpuset:/job\n4:cpu,cpuacct:/job\n",
            {
                "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "400000",
                "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            "4:cpu:/job\n",
            {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            8,
        ),
    ],
)
def test_the_quota_of_the_cgroup_cuts_the_cores(machine, cgroup: str, system: Groups, usable: int) -> None:
    machine(cgroup=cgroup, sys=system)
    assert devices.usable_cores() == list(range(usable))


def test_a_system_without_cgroups_has_its_affinity_mask(machine) -> None:
    machine(cores={6, 1, 3}, cgroup="0::/\n")
    assert devices.usable_cores() == [1, 3, 6]
    machine(cores={6, 1, 3})
    assert devices.usable_cores() == [1, 3, 6]


def test_the_real_cores_are_within_the_affinity_mask() -> None:
    assert devices.usable_cores()
    assert set(devices.usable_cores()) <= os.sched_getaffinity(0)


def test_a_cpu_device_is_an_equal_share_of_cores(machine) -> None:
    machine(cores={0, 2, 4, 6, 8}, cgroup="0::/\n")
    assert [device.cores for device in devices.find("cpu", 1)] == [(0,), (2,), (4,), (6,), (8,)]
    # The fifth core doesn't fill a device and is left idle.
    assert [(d.index, d.cores) for d in devices.find("cpu", 2)] == [(0, (0, 2)), (1, (4, 6))]
    assert devices.find("cpu", 6) == []


def test_a_gpu_gets_its_share_of_the_cores(
    machine, install_driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(cgroup="0::/\n")
    install_driver(*UUIDS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert devices.find("gpu", 1) == [
        Device("gpu", 1, (0, 1, 2, 3), "GPU-a1"),
        Device("gpu", 3, (4, 5, 6, 7), "GPU-c3"),
    ]
    install_driver(*(f"GPU-{number}" for number in range(16)))
    found = devices.find("gpu", 1)
    assert len(found) == 16 and all(device.cores for device in found)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        ("0,9", [0]),
        ("-1", []),
        # Nothing counts after an entry that names no GPU, or one again.
        ("9,0", []),
        ("0,-1,1", [0]),
        ("2,2,1", [2]),
        (" 1, 0 ", [1, 0]),
        # UUIDs, and beginnings that only one of them has.
        ("GPU-b2", [2]),
        ("GPU-c,GPU-b", [3, 2]),
        ("GPU-a", []),
        ("GPU-a1,0", [1, 0]),
        ("GPU-x", []),
    ],
)
def test_gpus_are_those_that_the_environment_leaves(
    install_driver: Install, monkeypatch: pytest.MonkeyPatch, visible: str | None, indices: list[int]
) -> None:
    install_driver(*UUIDS)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [number for number, _ in devices.visible_gpus()] == indices
    # Ranks are given what can't mean another GPU, in whatever order CUDA counts them.
    assert [uuid for _, uuid in devices.visible_gpus()] == [UUIDS[index] for index in indices]


def test_a_mig_instance_keeps_its_name(install_driver: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(*UUIDS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7,MIG-8")
    assert devices.visible_gpus() == [(0, "MIG-7")]


def test_a_lost_gpu_leaves_the_others(install_driver: Install) -> None:
    install_driver(*UUIDS).lost = 1
    assert [number for number, _ in devices.visible_gpus()] == [0, 2, 3]


def test_without_a_driver_there_is_no_gpu(install_driver: Install) -> None:
    install_driver(*UUIDS).is_loaded = False
    assert [number for number, _ in devices.visible_gpus()] == []
    assert devices.find("gpu", 1) == []


def test_one_process_holds_several_devices() -> None:
    cpus = [devices.Device("cpu", 0, (0, 1)), devices.Device("cpu", 1, (2, 3))]
    assert devices.of_one_process(cpus) == [devices.Device("cpu", 0, (0, 1, 2, 3))]
    gpus = [Device("gpu", 1, (0,), "GPU-b"), Device("gpu", 3, (1,), "GPU-d")]
    assert devices.of_one_process(gpus) == gpus
    # Two workers that share a device.
    assert devices.of_one_process([cpus[0], cpus[0]]) == [cpus[0]]
