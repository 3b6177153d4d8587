"""Sample utilisation, memory, power and network traffic of a host's ranks over time.

A thread of the parent does so, which is pinned to no core; CPU devices by psutil, GPUs by NVML.
"""

from __future__ import annotations

import contextlib
import csv
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import psutil

from src.machine import namespaces
from src.machine.devices import Device
from src.machine.interfaces import Counters, counters_of
from src.measure.contention import ContentionReader, Reading
from src.measure.gpu_reader import GPUReader
from src.measure.traffic import total
from src.run import files
from src.run.tables import INTERFACE_FIELDS, TRACE_FIELDS

RAPL = Path("/sys/class/powercap")


class Sampler:
    """A thread that samples the processes that it follows every `interval` seconds into a CSV file.

    On a CPU, `utilization` is the process's CPU time since the last sample as a fraction of the device's
    cores (waits that spin count); on a GPU it is NVML's. Network counters are those of the rank's host, over
    all interfaces, since the start: of its emulated host, of the run's network namespace, or of this machine.
    Those of each interface go to a file of their own. Disk counters are the process's.

    Attributes:
        rows: all samples, with the columns `TRACE_FIELDS`.
        helper_seconds: (time, CPU seconds that all helpers had used until then).
        readings: counters of what the ranks waited for their cores.
        cpu_seconds: what all of that has taken of a core.
    """

    def __init__(self, path: Path, interval: float) -> None:
        self.cpu_seconds = 0.0
        self.rows: list[dict[str, Any]] = []
        self.helper_seconds: list[tuple[float, float]] = []
        self.readings: list[Reading] = []
        # By host and name of the interface; the host of a run without others is "".
        self._traffic: dict[str, dict[str, Counters]] = {}
        self._contention = ContentionReader()
        self._interval = interval
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ranks: list[tuple[int, psutil.Process, Device]] = []
        self._helpers: list[psutil.Process] = []
        self._used: dict[int, float] = {}
        # By host: the process that shows its network, and the counters when they were first read.
        self._networks: dict[str, str] = {}
        self._first: dict[tuple[str, str], dict[str, Counters]] = {}
        self._host_of: dict[int, str] = {}
        # The first call says nothing; a later one, what was used since the last.
        psutil.cpu_percent()
        self._before: dict[int, tuple[float, float]] = {}
        self._energy: dict[str, tuple[float, float]] = {}
        self._gpus: dict[Device, GPUReader] = {}
        # By GPU, its figures of this sample.
        self._figures: dict[Device, tuple[float | None, int | None, float | None]] = {}

    def follow(
        self,
        ranks: Sequence[tuple[int, int, Device]],
        helpers: Sequence[int] = (),
        others: Sequence[tuple[int, Sequence[int]]] = (),
        *,
        networks: Mapping[str, str] | None = None,
        host_of: Mapping[int, str] | None = None,
        switch: int | None = None,
    ) -> None:
        """Follow these ranks (rank, process id, device) and helpers (process ids), and no others.

        Args:
            others: the run's processes that are no ranks, helpers among them: (process id, its cores).
            networks: for each of the run's hosts a process whose `/proc` entry shows its network; by default
                there is one host, with the network of this process's environment.
            host_of: the host of each rank; by default the only one.
            switch: the process among the others that joins emulated hosts.
        """
        self._networks = dict(networks or {"": namespaces.holder()})
        self._host_of = dict(host_of or {})
        followed = [(rank, process, device) for rank, pid, device in ranks if (process := _process(pid))]
        self._before.clear()
        self._helpers = [process for pid in helpers if (process := _process(pid))]
        self._ranks = followed
        self._contention.follow([(rank, pid, device.cores) for rank, pid, device in ranks], others, switch)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take no more samples."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            interfaces_path = self._path.with_name(files.INTERFACES)
            with (
                self._path.open("w", newline="") as trace,
                interfaces_path.open("w", newline="") as interfaces,
            ):
                rows_to, counters_to = csv.DictWriter(trace, TRACE_FIELDS), csv.writer(interfaces)
                rows_to.writeheader()
                counters_to.writerow(INTERFACE_FIELDS)
                while not self._stop.wait(self._interval):
                    # All ranks' samples have the same time, by which their power is added up.
                    now = time.time()
                    rows = self._sample(now)
                    self.rows += rows
                    rows_to.writerows(rows)
                    counters_to.writerows(
                        (now, host, name, *astuple(counters))
                        for host, of_host in self._traffic.items()
                        for name, counters in of_host.items()
                    )
                    trace.flush()
                    interfaces.flush()
                    self.cpu_seconds = time.thread_time()
        except OSError:
            # The disk is full, which the parent reports, for it writes there too.
            return

    def _sample(self, now: float) -> list[dict[str, Any]]:
        # As MLflow's own monitor measures the host.
        host = psutil.cpu_percent() / 100, psutil.virtual_memory().used
        rows = []
        self._figures.clear()
        self._read_networks()
        self._count_helpers(now)
        if (reading := self._contention.read()) is not None:
            self.readings.append(reading)
        for rank, process, device in self._ranks:
            figures = self._gpu(device) if device.kind == "gpu" else self._cpu(rank, process, device)
            if figures is not None:
                name = f"{device.kind}{device.index}"
                its_host = self._host_of.get(rank, "")
                crossed = total(self._traffic.get(its_host, {}).values())
                row = (now, rank, name, *figures, *crossed, *host, *_disk(process), its_host)
                rows.append(dict(zip(TRACE_FIELDS, row, strict=True)))
        return rows

    def _read_networks(self) -> None:
        """Read the counters of all hosts' interfaces; those of a host that has gone stay as they were."""
        for host, shown_by in self._networks.items():
            with contextlib.suppress(OSError):
                counters = counters_of(shown_by)
                first = self._first.setdefault((host, shown_by), counters)
                self._traffic[host] = {
                    name: each.since(first.get(name, Counters())) for name, each in counters.items()
                }

    def _gpu(self, device: Device) -> tuple[float | None, int | None, float | None]:
        """Return utilisation, memory and power of a GPU; of two ranks on it only the first has the power."""
        if device in self._figures:
            return *self._figures[device][:2], None
        self._figures[device] = self._gpus.setdefault(device, GPUReader(device)).read()
        return self._figures[device]

    def _count_helpers(self, now: float) -> None:
        for process in self._helpers:
            # A helper that has died still counts with the seconds it had used.
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._used[process.pid] = times.user + times.system
        if self._used:
            self.helper_seconds.append((now, sum(self._used.values())))

    def _cpu(
        self, rank: int, process: psutil.Process, device: Device
    ) -> tuple[float | None, int, float | None] | None:
        try:
            times, memory = process.cpu_times(), process.memory_info().rss
        except psutil.Error:
            return None
        if not memory:
            # The process has exited, but its parent hasn't collected its status yet.
            return None
        now, used = time.perf_counter(), times.user + times.system
        before = self._before.get(rank)
        self._before[rank] = now, used
        if before is None:
            return None
        # The packages' power is the host's: only the first rank's rows have it, so that a sum counts it once.
        power = self._package_power(now) if rank == self._ranks[0][0] else None
        return (used - before[1]) / ((now - before[0]) * len(device.cores)), memory, power

    def _package_power(self, now: float) -> float | None:
        """Return the watts of all processor packages since the last sample, by RAPL, `None` if unreadable."""
        try:
            watts = [
                self._power(str(zone), now, *_joules(zone))
                for zone in sorted(RAPL.glob("intel-rapl:*"))
                # `psys` contains the packages, and a package contains `core`, `uncore` and `dram`.
                if (zone / "name").read_text().startswith("package")
            ]
        except (OSError, ValueError):
            return None
        known = [each for each in watts if each is not None]
        return sum(known) if known and len(known) == len(watts) else None

    def _power(self, counter: str, now: float, joules: float, wraps_at: float | None = None) -> float | None:
        """Return the mean watts since the counter's last reading; `None` at first.

        A counter that reads less than before has begun anew after `wraps_at` joules; `None` where that is
        unknown.
        """
        before, self._energy[counter] = self._energy.get(counter), (now, joules)
        if before is None or now <= before[0]:
            return None
        used = joules - before[1]
        if used < 0:
            if wraps_at is None or used + wraps_at < 0:
                return None
            used += wraps_at
        return used / (now - before[0])


def _joules(zone: Path) -> tuple[float, float]:
    """Return the joules that a RAPL zone has counted, and at how many its counter begins anew.

    Both are microjoules in the kernel's files (Documentation/power/powercap/powercap.rst).
    """
    counted, most = (int((zone / name).read_text()) / 1e6 for name in ("energy_uj", "max_energy_range_uj"))
    return counted, most


def _disk(process: psutil.Process) -> tuple[int | None, int | None]:
    """Return the bytes that a process has read from disks and written there, `None` where that isn't told."""
    try:
        counted = process.io_counters()
    except (psutil.Error, OSError):
        return None, None
    return counted.read_bytes, counted.write_bytes


def _process(pid: int) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None
