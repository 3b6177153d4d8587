"""Start the processes of a job, wait until they have ended, and stop them.

Each process leads a session of its own, so that Ctrl-C reaches only the parent, which then ends the processes
in order. If the parent itself is killed, the kernel ends the processes, as `src.worker` asks it to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from src.config import Config
from src.launch.emulated import link_measurement
from src.launch.emulated.hosts import EmulatedHosts
from src.launch.launched import LaunchedProcess
from src.launch.launcher import launcher_of
from src.launch.local import reaper
from src.launch.supervise.choose_hosts import hosts_of
from src.machine import devices, quota
from src.machine.devices import Device
from src.run import files, variables
from src.run.status import FINAL, HOST_LOST, UNANNOUNCED

TERMINATE_SECONDS = 3.0
# How long after a first failure another process may still report one: a rank that loses its peer often
# exits before the peer that caused it.
BLAME_SECONDS = 1.0
# How long to wait, at the end of a failed job, for each further exit status.
HEAR_SECONDS = 0.5


@dataclass(frozen=True)
class Outcome:
    """How a job's processes ended.

    Attributes:
        failed: index of the process to blame in the list of processes, `None` if none is.
        code: the exit status of that process (negative: the number of a signal), or 1 after a time-out.
        timed_out: whether the job took longer than its limit.
    """

    failed: int | None = None
    code: int = 0
    timed_out: bool = False


def start(
    config: Config,
    out: Path,
    *,
    own_devices: Sequence[Device],
    started: float,
    resume: Path | None = None,
) -> list[LaunchedProcess]:
    """Start every process of the job, pinned to its own devices and with a log file each.

    Args:
        config: the run's configuration.
        out: the run's directory.
        own_devices: the devices of the workers on this machine, in their order.
        started: when the run began, in seconds since 1970.
        resume: the checkpoint at which a restarted job resumes.

    Returns the processes, those of the hosts' and the launcher's own first; those of the hosts alone where
    one can't be reached.
    """
    launcher, logs = launcher_of(config), out / files.LOGS
    hardware = config.hardware
    common = {variables.PARENT: str(os.getpid())}
    for ready in files.of_every_rank(out, files.READY).values():
        # An earlier start of this job has left it.
        ready.unlink()
    if any(speed != 1 for speed in hardware.speeds or ()):
        reaper.remove_at_end("cgroups", quota.beginning())
    hosts = hosts_of(config, out, resume)
    processes = list(hosts.own)
    try:
        launchers_own, spawn = launcher.open(config, logs, hosts)
        processes += launchers_own
        specs = launcher.process_specs(config, hosts) if spawn is not None else []
        if isinstance(hosts, EmulatedHosts):
            try:
                # Nobody's start-up is what the links were measured for.
                started += link_measurement.record(hosts, out)
            except link_measurement.NotMeasured as reason:
                hosts.give_up(str(reason))
                stop(launchers_own)
                return list(hosts.own)
        common[variables.STARTED] = repr(started)
        common[variables.NETWORKS] = json.dumps(hosts.networks)
        for spec in specs:
            host = hosts.host(spec.host)
            own = devices.of_one_process(hosts.devices_of(spec, own_devices))
            environment = {**spec.environment, **host.environment, **_pinning(own), **common}
            environment[variables.PROCESS] = spec.name
            folder = host.folder(out)
            if resume is not None:
                environment[variables.RESUME] = str(folder / resume.relative_to(out))
            if spec.helper:
                environment["CUDA_VISIBLE_DEVICES"] = ""
            elif len(spec.workers) == 1:
                speeds, period_ms = hardware.speeds, hardware.speed_period_ms
                environment |= quota.prepare(speeds, period_ms, spec.workers[0], len(own[0].cores))
            if spec.serves:
                environment[variables.SERVES] = "1"
            spec = dataclasses.replace(spec, environment=environment)
            assert spawn is not None
            command = [sys.executable, "-u", "-m", "src.worker", str(folder / files.CONFIG)]
            begin = partial(host.spawn_by(spawn), command, environment, files.log_path(folder, spec.name))
            rank, log = int(environment[variables.RANK]), files.log_path(out, spec.name)
            processes.append(LaunchedProcess(rank, own, begin(), log, spec, host, begin))
    except BaseException:
        stop(processes)
        raise
    return processes


def _pinning(own: list[Device]) -> dict[str, str]:
    """Return the variables that restrict a process to its own devices."""
    cores = [core for device in own for core in device.cores]
    return {
        **dict.fromkeys(variables.THREADS, str(len(cores))),
        # CUDA's own order is by speed; NVML, which samples the GPUs, numbers them by their PCI bus.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in own if device.kind == "gpu"),
        variables.CORES: ",".join(str(core) for core in cores),
    }


def wait(
    processes: list[LaunchedProcess],
    *,
    limit: float,
    tick: Callable[[], None],
    revive: Callable[[LaunchedProcess], bool] = lambda launched: False,
    ready: Callable[[LaunchedProcess], bool] = lambda launched: True,
    status: Callable[[LaunchedProcess, int], int] = lambda launched, code: code,
) -> Outcome:
    """Wait until every process that has an end of its own has ended, and end the others.

    The first failure, or the time limit, ends all processes. A dispensable process that dies is offered to
    `revive`. Unless that starts the process again, the death is a failure if no other dispensable process is
    left, or if the process was never ready: others might then wait for it forever.

    Args:
        processes: the processes of the job.
        limit: time limit in seconds.
        tick: called about twice a second.
        revive: called with a dispensable process that has died; returns whether it was started again.
        ready: returns whether a dispensable process was ever ready to be used.
        status: called with a process that has ended and its exit status; returns the one that counts.
    """
    ended: queue.Queue[tuple[int, int]] = queue.Queue()

    def watch(index: int) -> None:
        """Have a thread wait for a process and put its index and exit status into the queue."""
        threading.Thread(
            target=lambda: ended.put((index, processes[index].process.wait())), daemon=True
        ).start()

    for index in range(len(processes)):
        watch(index)
    deadline = time.monotonic() + limit
    running = set(range(len(processes)))
    failures: list[tuple[int, int]] = []
    failed_at = 0.0
    while any(not processes[index].spec.serves for index in running):
        remaining = deadline - time.monotonic()
        if remaining <= 0 and not _all_answered(processes, failed_at):
            # A host that is lost takes longer to notice than what that does to the others.
            remaining = HEAR_SECONDS
        if remaining <= 0 and failures:
            # More of them may have been told meanwhile.
            break
        if remaining <= 0:
            stop(processes)
            return Outcome(timed_out=True, code=1)
        with contextlib.suppress(queue.Empty):
            index, code = ended.get(timeout=min(0.5, remaining))
            code = status(processes[index], code)
            dispensable = processes[index].spec.dispensable and code not in FINAL
            if code and dispensable and not failures and revive(processes[index]):
                watch(index)
                continue
            running.discard(index)
            was_last = not any(processes[other].spec.dispensable for other in running)
            if code and (was_last or not dispensable or not ready(processes[index])):
                failed_at = failed_at or time.monotonic()
                failures.append((index, code))
                deadline = min(deadline, time.monotonic() + BLAME_SECONDS)
        tick()
    # The failure of a server that the others depend on, or of its host, may arrive after theirs.
    answered = False
    while failures and running and not answered:
        answered = _all_answered(processes, failed_at)
        with contextlib.suppress(queue.Empty):
            index, code = ended.get(timeout=HEAR_SECONDS)
            answered, code = False, status(processes[index], code)
            running.discard(index)
            failures += [(index, code)] if code else []
    stop(processes)
    return _blame(processes, failures)


def _all_answered(processes: list[LaunchedProcess], failed_at: float) -> bool:
    """Return whether every host has answered, or was lost, since the first failure; `True` before one."""
    return not failed_at or all(each.host.answered(failed_at) for each in processes)


def _blame(processes: list[LaunchedProcess], failures: list[tuple[int, int]]) -> Outcome:
    """Return the outcome of a job whose failures are (index, exit status), in the order of their arrival.

    To blame is a process whose host was lost, and then a killed one that serves the others, as its death ends
    them too. Next come other killed processes, those that ended without a word, and known statuses such as
    out of memory, and last the earliest failure.
    """
    if not failures:
        return Outcome()

    def order(failure: tuple[int, int]) -> int:
        """Return -1 for the failures to blame first, 2 for those to blame last."""
        index, code = failure
        if code == HOST_LOST:
            return -1
        if code < 0 and processes[index].spec.serves:
            return 0
        known = code in FINAL or code < 0 or code >= UNANNOUNCED
        return 1 if known else 2

    failures.sort(key=order)
    index, code = failures[0]
    if code == HOST_LOST:
        # A rank that was there says more than what a launcher has started, however it was lost.
        host = processes[index].host
        there = [each for each, _ in failures if processes[each].host is host and processes[each].devices]
        index = min(there, default=index)
    return Outcome(index, code)


def stop(processes: list[LaunchedProcess]) -> None:
    """End all processes and their children: by SIGTERM, and after `TERMINATE_SECONDS` by SIGKILL."""
    for launched in processes:
        if launched.process.poll() is None:
            launched.process.signal_group(signal.SIGTERM)
    deadline = time.monotonic() + TERMINATE_SECONDS
    for launched in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            launched.process.wait(max(0.0, deadline - time.monotonic()))
    for launched in processes:
        # The group still exists if the process has left children.
        launched.process.signal_group(signal.SIGKILL)
        launched.process.wait()
    with contextlib.ExitStack() as ending:
        for host in dict.fromkeys(each.host for each in processes):
            ending.callback(host.end_job)
    if any(quota.CGROUP in launched.spec.environment for launched in processes):
        quota.remove()
