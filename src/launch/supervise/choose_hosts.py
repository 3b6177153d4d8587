"""Choose the hosts of a run: this one, emulated ones, or those of a cluster."""

from __future__ import annotations

from pathlib import Path

from src.config import Config
from src.config.slurm import is_submitted
from src.launch.cluster import cluster_hosts
from src.launch.cluster.cluster import cluster_of
from src.launch.cluster.cluster_hosts import ClusterHosts
from src.launch.cluster.cluster_trace import ClusterTrace
from src.launch.emulated import hosts as emulated_hosts
from src.launch.emulated.hosts import EmulatedHosts
from src.launch.hosts import Hosts
from src.launch.local.hosts import LocalHosts
from src.launch.local.trace import LocalTrace, Trace
from src.launch.slurm import jobs
from src.run import files


def check(config: Config) -> None:
    """Raise `ConfigError` where the hosts of a run can't be had as configured."""
    if is_submitted(config):
        jobs.check(config)
    elif config.on_cluster:
        cluster_hosts.check(config)
    elif config.across_hosts:
        emulated_hosts.check(config)


def bring_data(config: Config) -> None:
    """Bring a run's dataset, which must be prepared, and own code to the hosts of a cluster that lack it.

    Raises:
        CannotRunHere: where there is no room for it.
        HostLost: where a host is lost meanwhile.
    """
    if config.on_cluster and not is_submitted(config):
        cluster = cluster_of(config)
        cluster.ship(config, cluster.alive())


def hosts_of(config: Config, out: Path, resume: Path | None = None) -> Hosts:
    """Make the hosts of one start of a job in the run directory `out`, which may resume a checkpoint there.

    Raises:
        CannotRunHere: where the system doesn't allow them, or a cluster has none left.
        HostLost: where a host of a cluster is lost meanwhile.
    """
    if config.on_cluster:
        return ClusterHosts(config, out, resume)
    return EmulatedHosts(config, out / files.LOGS) if config.across_hosts else LocalHosts()


def trace_of(config: Config, out: Path) -> Trace:
    """Prepare the trace of a run in the directory `out`."""
    kind = ClusterTrace if config.on_cluster else LocalTrace
    return kind(out / files.TRACE, config.hardware.sample_seconds)
