"""Emulate the hosts of a run: network namespaces of this machine, which a switch process holds."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from src.config import CannotRunHere, Config, ConfigError
from src.config.emulated_links import JOBS, link_of
from src.launch.host import COORDINATOR_HOST, SWITCH, Host, server_host, worker_host
from src.launch.hosts import Hosts
from src.launch.launched import LaunchedProcess
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import ChildProcess
from src.machine import namespaces
from src.machine.link import Link

# The first port of an emulated host, where nobody else listens.
FIRST_PORT = 20_000
SWITCH_MODULE = "src.launch.emulated.switch"


@dataclass(eq=False, kw_only=True)
class EmulatedHost(Host):
    """A host that is a network namespace of this machine.

    Attributes:
        link: the emulated link to the switch.
        made_by: what makes that link: `plain`, `tbf`, `netem` or `router` (`src/launch/emulated/switch.py`).
    """

    link: Link
    made_by: str


class EmulatedHosts(Hosts):
    """Hosts that are network namespaces of this machine, joined by links as `hardware.links` describes."""

    def __init__(self, config: Config, logs: Path) -> None:
        """Start the switch, whose errors go to a file in the folder `logs`.

        Raises:
            CannotRunHere: where the system doesn't allow it.
        """
        super().__init__()
        self._config = config
        self._ports: dict[str, int] = {}
        log = logs / f"{SWITCH}.log"
        with log.open("ab") as errors:
            self._switch = ChildProcess(
                [sys.executable, "-m", "src.launch.emulated.switch", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # A Ctrl-C reaches the parent alone.
                start_new_session=True,
            )
        self.placed: dict[str, EmulatedHost] = {}
        self.facts: dict[str, Any] = {}
        try:
            self.facts = self._hear()["ready"]
        except BaseException:
            self.close()
            raise
        self.environment = namespaces.variable_of(self._switch.pid)
        spec = ProcessSpec({}, (), SWITCH, serves=True)
        self.own = [LaunchedProcess(0, [], self._switch, log, spec)]

    @property
    def networks(self) -> dict[str, str]:
        """Return the hosts' names and the processes that hold them."""
        return {name: str(host.holder) for name, host in self.placed.items()}

    def host(self, name: str) -> EmulatedHost:
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
            place = made["address"], made["interface"], environment, made["holder"]
            self.placed[name] = EmulatedHost(*place, link=link, made_by=made["by"])
        return self.placed[name]

    def free_address(self, name: str) -> str:
        """Return another `host:port` of the host called `name`."""
        self._ports[name] = self._ports.get(name, FIRST_PORT - 1) + 1
        return f"{self.host(name).address}:{self._ports[name]}"

    def _hear(self) -> dict[str, Any]:
        """Return what the switch answers; raise `CannotRunHere` where that is an error."""
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
                f"hardware={self._config.hardware.name}: emulated hosts need the right to make network "
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
