"""Say on which host each process of a run is: on this one, or on emulated ones of its own.

A launcher asks for hosts by name, `worker-0`, `server-1` or `coordinator`, and places its processes there.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from src.config import CannotRunHere, Config, ConfigError
from src.config.links import JOBS, link_of
from src.launch.host import COORDINATOR_HOST, Host, LocalHost, server_host, worker_host
from src.launch.launched import LaunchedProcess
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import ChildProcess
from src.machine import namespaces
from src.machine.devices import Device

# The first port of an emulated host, where nobody else listens.
FIRST_PORT = 20_000
# Name of the process that holds emulated hosts, and of its log.
SWITCH = "switch"


class Hosts(Protocol):
    """The hosts of one start of a job.

    Attributes:
        own: processes that run for the hosts themselves, and end with the job.
        environment: the variables of a launcher's own processes, such as `mpiexec`.
        placed: the emulated hosts that were asked for, by name.
        facts: what the system offers to emulate hosts.
        share_files: whether all processes see one run's directory.
    """

    own: list[LaunchedProcess]
    environment: Mapping[str, str]
    placed: dict[str, LocalHost]
    facts: dict[str, Any]
    share_files: bool

    @property
    def networks(self) -> dict[str, str]:
        """Return the hosts on which nobody else sends, and the process whose `/proc` entry shows each."""

    def host(self, name: str) -> Host:
        """Return the host called `name`; it is made when it is first asked for."""

    def devices_of(self, spec: ProcessSpec, own: Sequence[Device]) -> list[Device]:
        """Return the devices of a process; `own` are the workers' on this host, in their order."""

    def give_up(self, reason: str) -> None:
        """End emulated hosts that are of no use; the first of `own` then is to blame."""

    def free_address(self, name: str) -> str:
        """Return another `host:port` at which a process of that host may listen."""


class _OneMachine:
    """The devices and files of hosts that are all on this machine."""

    share_files = True

    def devices_of(self, spec: ProcessSpec, own: Sequence[Device]) -> list[Device]:
        """Return those of the workers that the process is, or whose devices it shares."""
        return [own[worker % len(own)] for worker in spec.workers]


class LocalHosts(_OneMachine):
    """This host, by whatever name; its processes meet at the loopback interface."""

    def __init__(self) -> None:
        self.own: list[LaunchedProcess] = []
        self.environment: Mapping[str, str] = {}
        self.placed: dict[str, LocalHost] = {}
        self.facts: dict[str, Any] = {}
        self._ports: set[int] = set()

    @property
    def networks(self) -> dict[str, str]:
        """Return this host, by no name, if the run has a network namespace."""
        return {"": namespaces.holder()} if namespaces.inside() else {}

    def host(self, name: str) -> Host:
        """Return this host."""
        return LocalHost()

    def give_up(self, reason: str) -> None:
        """Do nothing: this host is of use."""

    def free_address(self, name: str) -> str:
        """Return a `host:port` that is free now, and another one at each call."""
        while True:
            with socket.socket() as probe:
                probe.bind((LocalHost().address, 0))
                port = probe.getsockname()[1]
            if port not in self._ports:
                self._ports.add(port)
                return f"{LocalHost().address}:{port}"


class EmulatedHosts(_OneMachine):
    """Hosts that are network namespaces of this machine, joined by links as `hardware.links` describes."""

    def __init__(self, config: Config, logs: Path) -> None:
        """Start the switch, whose errors go to a file in the folder `logs`.

        Raises:
            CannotRunHere: where the system doesn't allow it.
        """
        self._config = config
        self._ports: dict[str, int] = {}
        log = logs / f"{SWITCH}.log"
        with log.open("ab") as errors:
            self._switch = ChildProcess(
                [sys.executable, "-m", "src.machine.switch", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # A Ctrl-C reaches the parent alone.
                start_new_session=True,
            )
        self.placed: dict[str, LocalHost] = {}
        self.facts: dict[str, Any] = {}
        try:
            self.facts = self._hear()["ready"]
        except BaseException:
            self.close()
            raise
        self.environment: Mapping[str, str] = namespaces.variable_of(self._switch.pid)
        spec = ProcessSpec({}, (), SWITCH, serves=True)
        self.own = [LaunchedProcess(0, [], self._switch, log, spec)]

    @property
    def networks(self) -> dict[str, str]:
        """Return the hosts' names and the processes that hold them."""
        return {name: str(host.holder) for name, host in self.placed.items()}

    def host(self, name: str) -> LocalHost:
        """Return the host called `name`; it is made when it is first asked for.

        Raises:
            CannotRunHere: where the system doesn't allow its link.
            ConfigError: for a name that `hardware.links` has no link for.
        """
        if name not in self.placed:
            if name.partition("-")[0] not in JOBS:
                launcher = self._config.strategy["launcher"]
                raise ConfigError(
                    f"strategy.launcher={launcher}: places no process on a host called {name!r}"
                )
            link = link_of(self._config, name)
            assert self._switch.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._switch.stdin.write(json.dumps({"name": name, "link": link.describe()}) + "\n")
                self._switch.stdin.flush()
            made = self._hear()
            environment = namespaces.variable_of(made["holder"])
            place = made["address"], made["interface"], environment
            self.placed[name] = LocalHost(*place, made["holder"], link, made["by"])
        return self.placed[name]

    def free_address(self, name: str) -> str:
        """Return another `host:port` of the host called `name`."""
        self._ports[name] = self._ports.get(name, FIRST_PORT - 1) + 1
        return f"{self.host(name).address}:{self._ports[name]}"

    def _hear(self) -> dict[str, Any]:
        """Return what the switch answers.

        Raises:
            CannotRunHere: where that is an error.
        """
        assert self._switch.stdout is not None
        line = self._switch.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the switch ended at once"}
        if "error" in answer:
            way = (
                "run the command as root, or by `unshare -r`"
                if os.geteuid()
                else "root lacks CAP_SYS_ADMIN, CAP_NET_ADMIN or /dev/net/tun, as in a container"
            )
            raise CannotRunHere(
                f"hardware={self._config.hardware['name']}: emulated hosts need the right to make network "
                f"namespaces, and iproute2 ({answer['error']}); {way}"
            )
        return answer

    def give_up(self, reason: str) -> None:
        """End the switch as one that has failed, for a `reason` that its log has as its last line."""
        (switch,) = self.own
        with switch.log.open("a") as log:
            print(reason, file=log)
        self.close()
        switch.spec = replace(switch.spec, serves=False)

    def close(self) -> None:
        """End the switch, and with it all hosts that no process is in."""
        self._switch.kill()
        self._switch.wait()
        for pipe in (self._switch.stdin, self._switch.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def check(config: Config) -> None:
    """Raise `CannotRunHere` where the system doesn't allow the emulated hosts of a run.

    They are tried: a host of each job is made, and ended.
    """
    with tempfile.TemporaryDirectory(prefix="scaleguide-") as logs:
        hosts = EmulatedHosts(config, Path(logs))
        try:
            for name in (worker_host(0), server_host(0), COORDINATOR_HOST):
                hosts.host(name)
        finally:
            hosts.close()
