"""Find the devices of this host: GPUs, or equal shares of the cores that this process may use."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from src.machine import cgroups


@dataclass(frozen=True)
class Device:
    """A device: a GPU with its share of the cores, or a fixed set of cores.

    Attributes:
        kind: `gpu` or `cpu`.
        index: the GPU's number, as `visible_gpus` gives it, or the number of the set of cores.
        cores: numbers of its cores.
        uuid: by which the driver knows the GPU, whatever other GPUs a process sees; empty for cores.
    """

    kind: str
    index: int
    cores: tuple[int, ...]
    uuid: str = ""


def of_one_process(devices: list[Device]) -> list[Device]:
    """Return devices as one process holds them: different GPUs, or one CPU device with all the cores."""
    devices = list(dict.fromkeys(devices))
    if devices[0].kind == "gpu":
        return devices
    return [Device("cpu", devices[0].index, tuple(core for device in devices for core in device.cores))]


def usable_cores() -> list[int]:
    """Return the cores that this process may use: its affinity mask, cut to its cgroup's CPU quota."""
    cores = sorted(os.sched_getaffinity(0))
    quota = _quota()
    return cores if quota is None else cores[: max(1, int(quota))]


def _quota() -> float | None:
    """Return the least CPU quota of this process's cgroups (version 1 or 2) in cores, `None` without one."""
    quotas = []
    for version, folders in cgroups.own("cpu"):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for folder in folders:
            try:
                quota, period = " ".join((folder / name).read_text() for name in names).split()
            except (OSError, ValueError):
                continue
            if quota not in ("max", "-1"):
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def visible_gpus() -> list[tuple[int, str]]:
    """Return the number and the UUID of each GPU that CUDA_VISIBLE_DEVICES allows; none without a driver.

    A GPU's number is NVML's index, which counts GPUs as CUDA does under CUDA_DEVICE_ORDER=PCI_BUS_ID. Numbers
    in the variable are read as such, and so are UUIDs and unambiguous beginnings of them. A MIG instance that
    the variable names keeps that name; its number is its place there. As in CUDA, nothing counts from the
    first entry on that names no GPU.
    """
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return []
    gpus: dict[int, str] = {}
    for index in range(count):
        # A GPU that has fallen off its bus has no handle.
        with contextlib.suppress(pynvml.NVMLError):
            gpus[index] = str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(gpus.items())
    found: list[tuple[int, str]] = []
    for place, entry in enumerate(part.strip() for part in visible.split(",")):
        gpu = _named(entry, place, gpus)
        if gpu is None or gpu in found:
            break
        found.append(gpu)
    return found


def _named(entry: str, place: int, gpus: Mapping[int, str]) -> tuple[int, str] | None:
    """Return number and UUID of the GPU that an entry of CUDA_VISIBLE_DEVICES names, `None` for no GPU."""
    import pynvml

    if entry.isdigit():
        return (int(entry), gpus[int(entry)]) if int(entry) in gpus else None
    if entry.startswith("MIG-"):
        try:
            pynvml.nvmlDeviceGetHandleByUUID(entry)
        except pynvml.NVMLError:
            return None
        return place, entry
    beginning = [gpu for gpu in gpus.items() if entry.startswith("GPU-") and gpu[1].startswith(entry)]
    return beginning[0] if len(beginning) == 1 else None


def find(kind: str, cores_per_device: int, numbers: Sequence[int] | None = None) -> list[Device]:
    """Find the devices of a kind (`cpu` or `gpu`) on this host, all or those with the given numbers.

    Cores that don't fill a device are left idle.
    """
    cores = usable_cores()
    if kind == "cpu":
        shares = range(len(cores) // cores_per_device)
        found = [
            Device("cpu", i, tuple(cores[i * cores_per_device : (i + 1) * cores_per_device])) for i in shares
        ]
    else:
        gpus = visible_gpus()
        share = max(1, len(cores) // max(1, len(gpus)))
        found = [
            Device("gpu", number, tuple(cores[i * share : (i + 1) * share] or cores), uuid)
            for i, (number, uuid) in enumerate(gpus)
        ]
    if numbers is None:
        return found
    by_number = {device.index: device for device in found}
    return [by_number[number] for number in numbers if number in by_number]


def processor() -> str:
    """Return the processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
