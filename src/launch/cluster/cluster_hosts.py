"""Place a job on the hosts of a cluster, and bring them what it needs (a `Hosts`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from src.config import CannotRunHere, Config
from src.launch.cluster.cluster import cluster_of
from src.launch.cluster.placement import NoRoom, place_servers, place_workers
from src.launch.cluster.remote_host import RemoteHost
from src.launch.cluster.run_folder import Piece, pieces_of
from src.launch.host import COORDINATOR_HOST, server_host, worker_host
from src.launch.hosts import Hosts
from src.launch.process_spec import ProcessSpec
from src.machine.device_locks import Request
from src.machine.devices import Device
from src.run import files
from src.run.progress import phase

POLL_SECONDS = 1.0
SILENT_SECONDS = 5.0
# A job that is started again needs these of what the ranks have recorded.
RECORDS = (files.STEPS, files.EPOCHS)
# Folder, in the run's on a host, of files that the configuration names.
GIVEN = "given"


class ClusterHosts(Hosts):
    """The hosts of one start of a job on a cluster."""

    share_files = False

    def __init__(self, config: Config, out: Path, resume: Path | None) -> None:
        """Place the job on hosts that were not lost, take their devices, and bring them what it needs.

        Args:
            config: the run's configuration.
            out: the run's directory.
            resume: the checkpoint in it at which the job resumes.

        Raises:
            CannotRunHere: where the hosts that are left have too few devices, or no room for the data.
            HostLost: where a host is lost meanwhile.
        """
        super().__init__()
        self._config = config
        self._cluster = cluster_of(config)
        # What has ended the job, or an earlier run, may have been the loss of an agent.
        self._cluster.renew(config)
        hosts = self._cluster.alive()
        asked = config.hardware.hosts or 1
        if len(hosts) < asked and resume is None and not (out / files.RANKS / "0").exists():
            raise CannotRunHere(
                f"hardware.hosts={asked}: {len(hosts)} host(s) of the cluster are left, and a run begins on "
                "as many as it asks for"
            )
        workers = placed_workers(config, hosts)
        servers = place_servers(len(hosts), workers, config.strategy.get("servers", 0))
        self._by_name = {worker_host(number): hosts[index] for number, index in enumerate(workers)}
        self._by_name |= {server_host(number): hosts[index] for number, index in enumerate(servers)}
        self._by_name[COORDINATOR_HOST] = hosts[workers[0]]
        used = list(dict.fromkeys(self._by_name.values()))
        self._helpers = dict.fromkeys(used, 0)
        try:
            self._taken = self._take(used, workers, hosts)
            for host in used:
                host.peers = used
                host.begin_job(out)
            self._cluster.ship(config, used)
            for host in used:
                self._bring(host, out, resume)
        except BaseException:
            for host in used:
                host.end_job()
            raise

    @property
    def own_interface(self) -> str:
        """Return the name of this host's interface in the cluster, by which the others reach it."""
        return self._cluster.own_interface

    def host(self, name: str) -> RemoteHost:
        """Return the host on which `name` was placed."""
        return self._by_name[name or worker_host(0)]

    def devices_of(self, spec: ProcessSpec, own: Sequence[Device]) -> list[Device]:
        """Return a worker's devices on its host; those of helpers go round-robin over the host's."""
        host = self.host(spec.host)
        if not spec.helper:
            return [self._taken[host][self._place(worker)] for worker in spec.workers]
        self._helpers[host] += 1
        every = self._taken[host] or list(host.facts.devices)
        return [every[(self._helpers[host] - 1) % len(every)]]

    def free_address(self, name: str) -> str:
        """Return a `host:port` of the host of `name` that is free now."""
        host = self.host(name)
        return f"{host.address}:{host.call('free_port')}"

    def _place(self, worker: int) -> int:
        """Return the number of a worker among those of its host, modulo the devices there."""
        host = self._by_name[worker_host(worker)]
        before = [n for n in range(worker) if self._by_name[worker_host(n)] is host]
        return len(before) % len(self._taken[host])

    def _take(
        self, used: Sequence[RemoteHost], workers: Sequence[int], hosts: Sequence[RemoteHost]
    ) -> dict[RemoteHost, list[Device]]:
        """Take devices on all hosts for the workers there; wait while others have them."""
        hardware = self._config.hardware
        taken: dict[RemoteHost, list[Device]] = {}
        deadline = time.monotonic() + 60 * hardware.wait_minutes
        with phase("waiting for devices", SILENT_SECONDS):
            # In one order for all commands, of which none so has what another one waits for.
            for host in sorted(used, key=lambda host: host.address):
                count = workers.count(hosts.index(host))
                request = Request(
                    hardware.device, hardware.cores_per_device, None, hardware.share_devices, count
                )
                while isinstance(answer := host.call("take", request), str):
                    if time.monotonic() > deadline:
                        raise CannotRunHere(
                            f"waited {hardware.wait_minutes:g} minutes (hardware.wait_minutes) for "
                            f"devices of host {host.address}: {answer}"
                        )
                    time.sleep(POLL_SECONDS)
                taken[host] = answer
        return taken

    def _bring(self, host: RemoteHost, out: Path, resume: Path | None) -> None:
        """Bring a host the run's configuration, and what a job that goes on needs."""
        recorded = [path for path in (out / files.RANKS).glob("*/*") if path.name in RECORDS]
        # Processes that are started again append to their logs.
        recorded += (out / files.LOGS).glob("*.log")
        if resume is not None:
            recorded += [resume, *files.older_checkpoints(resume)]
            recorded += [path for path in [out / files.PARTITION] if path.exists()]
        brought = {str(path.relative_to(out)): path for path in recorded}
        described = yaml.safe_load((out / files.CONFIG).read_text())
        for number, (mapping, key) in enumerate(((described, "resume"), (described["model"], "pretrained"))):
            # A folder of weights, or a hub's name, is each host's own.
            if mapping.get(key) is not None and (path := Path(mapping[key])).is_file():
                name = f"{GIVEN}/{number}-{path.name}"
                brought[name], mapping[key] = path, str(host.folder(out) / name)
        for name, path in brought.items():
            for piece in pieces_of(path, name):
                host.call("put", piece)
        text = yaml.safe_dump(described, sort_keys=False)
        host.call("put", Piece(files.CONFIG, 0, text.encode()))


def placed_workers(config: Config, hosts: Sequence[RemoteHost]) -> list[int]:
    """Return the index of each worker's host; raise `CannotRunHere` where the hosts have too few devices."""
    hardware = config.hardware
    if not hosts:
        raise CannotRunHere(f"hardware={hardware.name}: no host of the cluster is left")
    try:
        return place_workers(
            [len(host.facts.devices) for host in hosts],
            config.workers,
            hardware.hosts,
            share=hardware.share_devices,
        )
    except NoRoom as error:
        kind = hardware.device
        raise CannotRunHere(
            f"workers={config.workers}: {error}, {kind} devices all; choose fewer workers, or "
            "hardware.share_devices=true to check correctness only"
        ) from error


def check(config: Config) -> None:
    """Raise `ConfigError` where a run can't be on its cluster as configured."""
    cluster = cluster_of(config)
    cluster.check(config)
    placed_workers(config, cluster.alive())
