"""Emulate machines on this one: the processes, files, network and name of each are its own.

    machines = Machines(2, first_sees=[folder])
    machines.run(2, ["python", "-c", "import socket; print(socket.gethostname())"]).stdout   # machine2
    machines.close()

A machine is a first process in namespaces of its own, and what is started beside it. Nothing of it has a name
outside: all ends with that process, and with whoever has made it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from src.data.catalog import cache_folder
from src.launch.emulated import switch
from src.machine.link import Link
from src.machine.namespaces import NotAllowed
from tests.cluster.boot import OWN_FOLDER, answer, boot, environment_folders
from tests.cluster.network import ROOT, Network

NAMESPACES = ["--mount", "--uts", "--ipc", "--net", "--pid"]
# A namespace's number says nothing once it has ended: another one may have it then.
MARK = "MACHINES_MARK"
# The kernel ends a machine's processes at once, unless it is busy.
END_SECONDS = 10.0


class Machines:
    """Machines with numbers from 1, each on one core, by turns.

    The first sees this repository, the user's cache, and the folders `first_sees`; others have empty ones
    there. All see this Python's environment and the folders `all_see`, and each has an empty /tmp, /dev/shm
    and /run of its own. They end with the thread that has made them.

    Attributes:
        numbers: the machines' numbers.
        mark: what all their processes have in their environment, under `MARK`.
    """

    def __init__(
        self,
        count: int,
        first_sees: Sequence[Path] = (),
        all_see: Sequence[Path] = (),
        link: Link | None = None,
    ) -> None:
        """Start `count` machines, each joined to the switch by `link`: by default as fast as may be.

        Raises:
            NotAllowed: where the system forbids it.
        """
        if os.geteuid():
            raise NotAllowed("emulated machines need root")
        self._started: list[subprocess.Popen[str]] = []
        self._inits: dict[int, psutil.Process] = {}
        self.mark = uuid.uuid4().hex
        self._network = Network({MARK: self.mark})
        try:
            self.numbers = [self._network.join(link or Link()) for _ in range(count)]
            # A training would make it, too; and what isn't there can't be hidden.
            cache_folder().mkdir(parents=True, exist_ok=True)
            self._own = [ROOT, cache_folder(), *first_sees]
            self._common = [*environment_folders(), *all_see]
            booting = {number: self._boot(number) for number in self.numbers}
            for number, process in booting.items():
                self._inits[number] = psutil.Process(answer(number, process))
        except BaseException:
            self.close()
            raise

    def address(self, machine: int) -> str:
        """Return the IP address of a machine."""
        return switch.address(machine)

    def path(self, machine: int, inside: str | Path) -> Path:
        """Return where this process finds a file of a machine that is on."""
        return Path(f"/proc/{self._inits[machine].pid}/root", str(inside).lstrip("/"))

    def start(
        self,
        machine: int,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | Path = OWN_FOLDER,
        stdout: int | IO[str] = subprocess.PIPE,
        stderr: int | IO[str] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a machine, with the variables `env` and few others, as after a login.

        The process returned waits for the command, whose process is `inner`. That is killed with it, once it
        has begun.
        """
        enter = ["nsenter", "--target", str(self._inits[machine].pid), *NAMESPACES]
        bind = ["setpriv", "--pdeathsig", "KILL", "taskset", "--cpu-list", str(_core(machine))]
        started = subprocess.Popen(
            [*enter, *bind, "env", f"--chdir={cwd}", *command],
            env={**login_variables(), **(env or {}), MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        self._started.append(started)
        return started

    def run(
        self,
        machine: int,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | Path = OWN_FOLDER,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine to its end; it is killed if that takes longer than `timeout` seconds."""
        started = self.start(machine, command, env, cwd)
        try:
            out, err = started.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            started.kill()
            raise
        return subprocess.CompletedProcess(list(command), started.returncode, out, err)

    def pids(self, machine: int) -> list[int]:
        """Return the processes of a machine, but for its first, by their ids on this one."""
        init = self._inits[machine]
        if not init.is_running():
            return []
        own = _namespace(init.pid)
        return [each for each in psutil.pids() if each != init.pid and _is_in(each, own)]

    def power_off(self, machine: int) -> None:
        """Kill all processes of a machine at once, and wait for it.

        The kernel then closes their connections. Cut the link first for one that just falls silent.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            self._inits[machine].kill()
        self._inits[machine].wait(END_SECONDS)

    def power_on(self, machine: int) -> None:
        """Start a machine again that is off, with nothing of what it had in its own folders."""
        self._inits[machine] = psutil.Process(answer(machine, self._boot(machine)))

    def link_down(self, machine: int) -> None:
        """Lose all packets from and to a machine, as if nobody were there: no error, no answer."""
        self._network.cut(machine)

    def link_up(self, machine: int) -> None:
        """Restore a machine's link."""
        self._network.mend(machine)

    def left(self) -> list[str]:
        """Return what is left of the machines and their switch: with no process, no interface is."""
        return left(self.mark)

    def close(self) -> None:
        """Power all machines off, end their switch, and wait until nothing is left."""
        for machine in self._inits:
            self.power_off(machine)
        self._network.close()
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()
        end = time.monotonic() + END_SECONDS
        # The kernel ends the holders of networks, which have no parent any more that could wait for them.
        while (remaining := self.left()) and time.monotonic() < end:
            time.sleep(0.01)
        if remaining:
            raise RuntimeError(f"still there: {remaining}")

    def _boot(self, machine: int) -> subprocess.Popen[str]:
        """Start the first process of a machine."""
        own, common = self._own, self._common
        seen, hidden = ([*own, *common], []) if machine == 1 else (common, own)
        addresses = [self.address(each) for each in self.numbers]
        process = boot(machine, self._network.holders[machine], addresses, seen, hidden, {MARK: self.mark})
        self._started.append(process)
        return process


def inner(process: subprocess.Popen[str]) -> psutil.Process:
    """Return the process of a command that runs on a machine, as it is known outside."""
    children = psutil.Process(process.pid).children()
    if not children:
        raise LookupError(f"doesn't run yet, or no more: {process.args!r}")
    return children[0]


def left(mark: str) -> list[str]:
    """Return the id and the command of each process of the machines that bear this mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def login_variables() -> dict[str, str]:
    """Return the variables of every process on a machine."""
    path = f"{Path(sys.executable).parent}:{os.defpath}:/usr/local/sbin:/usr/sbin:/sbin"
    return {"PATH": path, "HOME": str(Path.home()), "LANG": "C.UTF-8"}


def _core(machine: int) -> int:
    """Return the number of a machine's core."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[(machine - 1) % len(cores)]


def _namespace(process: int) -> str:
    """Return the identity of a process's process namespace."""
    return os.readlink(f"/proc/{process}/ns/pid")


def _is_in(process: int, namespace: str) -> bool:
    """Return whether a process is in a process namespace; one that has ended isn't."""
    try:
        return _namespace(process) == namespace
    except OSError:
        return False
