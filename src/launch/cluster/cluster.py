"""Connect to a cluster, start an agent on each host, and refuse hosts that would compute otherwise."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from src.config import CannotRunHere, Config, ConfigError, import_paths
from src.config.run_config import Hardware
from src.data import prepared
from src.launch.cluster import clocks, facts
from src.launch.cluster.engine import Engine, HostLost, Node
from src.launch.cluster.remote_host import RemoteHost
from src.launch.cluster.run_folder import pieces_of
from src.measure.software import own_files, software_of
from src.run.progress import phase

# How long to wait for hosts that are asked for and not there.
HOSTS_SECONDS = 30.0
POLL_SECONDS = 0.5
# For an agent to start, which the engine brings the code for.
START_SECONDS = 60.0
# Asynchronous workers' times are by their own clocks, which so must agree at least as well.
CLOCK_SECONDS = 1.0
SILENT_SECONDS = 5.0


class Cluster:
    """The hosts of a cluster, with an agent on each for as long as this command runs.

    Attributes:
        hosts: those that are in use, this one first.
    """

    def __init__(self, config: Config) -> None:
        """Connect to the cluster that `config.hardware` names, and start the agents.

        Raises:
            CannotRunHere: where there is no such cluster, or it has too few hosts.
            ConfigError: where a host would compute otherwise than this one.
        """
        self._key = f"hardware={config.hardware.name}"
        self._engine = _engine_of(config.hardware)
        self._closed = False
        self.hosts: list[RemoteHost] = []
        try:
            nodes = self._nodes(config.hardware.hosts)
            with ThreadPoolExecutor(len(nodes)) as pool:
                starting = [pool.submit(self._start, node, config) for node in nodes]
            # Agents that were started are closed where another one wasn't.
            self.hosts = [each.result() for each in starting if each.exception() is None]
            for each in starting:
                each.result()
            self.check(config)
        except BaseException:
            self.close()
            raise

    def _nodes(self, count: int | None) -> list[Node]:
        """Return the nodes to use, this one first; wait a while for as many as are asked for."""
        deadline = time.monotonic() + HOSTS_SECONDS
        with phase(f"waiting for {count} hosts", SILENT_SECONDS):
            while True:
                nodes = sorted(self._engine.nodes(), key=lambda node: (not node.own, node.address))
                if len(nodes) >= (count or 1):
                    return nodes[:count]
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_SECONDS)
        there = ", ".join(node.address for node in nodes)
        raise CannotRunHere(
            f"hardware.hosts={count}: the cluster has {len(nodes)} host(s) after {HOSTS_SECONDS:g} s "
            f"({there}); start an engine on more of them, or choose hardware.hosts={len(nodes)}"
        )

    def _start(self, node: Node, config: Config, seconds: float | None = None) -> RemoteHost:
        """Start the agent of a node, and wait for it for so many seconds, by default `START_SECONDS`."""
        hardware = config.hardware
        lost_seconds = hardware.lost_seconds
        connection = self._engine.start_agent(node, lost_seconds)
        try:
            described = connection.call("describe", *_asked(config), seconds=seconds or START_SECONDS)
            offset = clocks.compare(lambda: connection.call("clocks", seconds=lost_seconds))
        except HostLost as reason:
            connection.close()
            raise CannotRunHere(f"{self._key}: host {node.address} doesn't answer ({reason})") from reason
        host = RemoteHost(connection, described, lost_seconds)
        host.offset = offset
        return host

    def check(self, config: Config) -> None:
        """Raise `ConfigError` where a host would compute a run otherwise than this one."""
        for host in self.alive():
            host.facts = host.call("describe", *_asked(config))
            self._check(host, config)

    def _check(self, host: RemoteHost, config: Config) -> None:
        """Raise `ConfigError` where a host has other code, libraries, priorities or another time."""
        there = host.facts
        where = f"{self._key}: host {there.address} ({there.name})"
        if there.code != facts.code_fingerprint():
            raise ConfigError(
                f"{where} has other code of this project than this one; remove it from that host's PYTHONPATH"
            )
        here = software_of(config)["libraries"]
        for name, version in there.versions.items():
            if version != here[name]:
                has = "lacks" if version is None else f"has {name} {version}, and not"
                raise ConfigError(
                    f"{where} {has} {name} {here[name]}, with which this one computes; install the same "
                    "versions there (constraints.txt)"
                )
        if there.niceness != os.nice(0):
            raise ConfigError(
                f"{where} would start its ranks with niceness {there.niceness}, and this one with "
                f"{os.nice(0)}; start the engine there as docs/clusters.md says"
            )
        if abs(host.offset.wall) > CLOCK_SECONDS:
            raise ConfigError(
                f"{where} has a clock that is {host.offset.wall:+.1f} s off this one's; have both follow a "
                "time server"
            )
        if there.interface is None:
            raise ConfigError(f"{where}: no network interface there has that address")

    @property
    def own_interface(self) -> str:
        """Return the name of the interface with this host's address in the cluster."""
        address = next(node.address for node in self._engine.nodes() if node.own)
        return facts.interface_of(address) or ""

    def alive(self) -> list[RemoteHost]:
        """Return the hosts that were not lost."""
        return [host for host in self.hosts if host.lost is None]

    def renew(self, config: Config) -> None:
        """Start another agent where one was lost, and its host is there."""
        if len(self.alive()) == len(self.hosts):
            return
        there = {node.address: node for node in self._engine.nodes()}
        for index, host in enumerate(self.hosts):
            if host.lost is not None and host.address in there:
                # The engine may not know yet that it has gone.
                with contextlib.suppress(CannotRunHere, HostLost):
                    self.hosts[index] = self._start(there[host.address], config, host.lost_seconds)

    def ship(self, config: Config, hosts: Sequence[RemoteHost]) -> None:
        """Bring the user's own code to hosts, and the dataset where it is missing.

        Raises:
            CannotRunHere: where there is no room for it.
            HostLost: where a host is lost meanwhile.
        """
        for name, path in own_files(config).items():
            for host in hosts:
                for piece in pieces_of(path, name):
                    host.call("put_code", piece)
        folder = None if config.dataset.get("in_memory") else prepared.locate(config.dataset)
        if folder is not None:
            missing = [host for host in hosts if not host.call("has_data", dict(config.dataset))]
            self._ship_data(config, folder, missing)

    def _ship_data(self, config: Config, folder: Path, hosts: Sequence[RemoteHost]) -> None:
        """Bring prepared arrays to hosts that lack them."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        # The last one says that they are complete.
        paths.sort(key=lambda path: path == folder / "meta.json")
        size = sum(path.stat().st_size for path in paths)
        for host in hosts:
            if (room := host.call("room")) < size:
                raise CannotRunHere(
                    f"dataset={config.dataset['name']}: host {host.address} has {room:,} bytes free for its "
                    f"{size:,}; make room, or set SCALEGUIDE_CACHE there to a folder on another disk"
                )
        if not hosts:
            return
        text = f"bringing {config.dataset['name']} ({size / 1e6:,.0f} MB) to {len(hosts)} host(s)"
        with phase(text, SILENT_SECONDS), ThreadPoolExecutor(len(hosts)) as pool:

            def bring(host: RemoteHost) -> None:
                for path in paths:
                    for piece in pieces_of(path, str(path.relative_to(folder))):
                        host.call("put_data", dict(config.dataset), piece)

            list(pool.map(bring, hosts))

    def close(self) -> None:
        """End the agents, and disconnect unless other clusters of this command are on the same engine."""
        if self._closed:
            return
        self._closed = True
        for host in self.hosts:
            host.close()
        self.hosts.clear()
        _leave(self._engine)


def _asked(config: Config) -> tuple[str, int, list[str]]:
    """Return what a host is asked to describe: devices of a kind and size, and a run's libraries."""
    libraries = [name for name in software_of(config)["libraries"] if name != "python"]
    return config.hardware.device, config.hardware.cores_per_device, libraries


_engines: dict[str, Engine] = {}
# How many clusters are on each.
_users: Counter[str] = Counter()
_clusters: dict[str, Cluster] = {}


def _engine_of(hardware: Hardware) -> Engine:
    """Return the engine that `hardware` names, to which a process connects once."""
    assert hardware.engine is not None
    key = repr([hardware.engine, hardware.address, hardware.token_file])
    if key not in _engines:
        _engines[key] = import_paths.resolve("hardware.engine", hardware.engine)(hardware)
    _users[key] += 1
    return _engines[key]


def _leave(engine: Engine) -> None:
    """Disconnect from an engine, if no other cluster is on it."""
    key = next(key for key, each in _engines.items() if each is engine)
    _users[key] -= 1
    if not _users[key]:
        _engines.pop(key).close()


def cluster_of(config: Config) -> Cluster:
    """Return the cluster of a run, which all runs of a command with the same keys share.

    Raises:
        CannotRunHere: where there is none, or not of this size.
        ConfigError: where a host would compute otherwise than this one.
    """
    hardware = config.hardware
    keys = ("engine", "address", "token_file", "hosts", "lost_seconds", "device", "cores_per_device")
    key = repr([hardware[name] for name in keys])
    if key not in _clusters:
        _clusters[key] = Cluster(config)
        atexit.register(_clusters[key].close)
    return _clusters[key]
