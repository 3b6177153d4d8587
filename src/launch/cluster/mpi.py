"""Start MPI ranks on the hosts of a cluster, without ssh: MPICH's `mpiexec` says what to start, agents do it.

`mpiexec -launcher manual` prints a command for each host, its proxy, and waits for these to connect to it.
Each proxy starts as many of `src.launch.mpi.agent` as the host has ranks; these run the ranks for the agent.
"""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path

from src.config import CannotRunHere, Config
from src.launch import surroundings
from src.launch.cluster.cluster_hosts import ClusterHosts
from src.launch.cluster.remote_host import ASK_SECONDS, RemoteHost
from src.launch.host import worker_host
from src.launch.launched import LaunchedProcess
from src.launch.mpi.agents import CONNECT_SECONDS
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import ChildProcess
from src.run import files
from src.run.variables import PROCESS, RANK, STARTED

# A host's own Python and socket, which `mpiexec`, with one command for all hosts, can't know.
PYTHON, SOCKET = "SCALEGUIDE_PYTHON", "SCALEGUIDE_MPI_AGENTS"
AGENT = f'exec "${PYTHON}" -m src.launch.mpi.agent "${SOCKET}"'
LAUNCH, LAST = "HYDRA_LAUNCH:", "HYDRA_LAUNCH_END"


def open_ranks(
    config: Config, logs: Path, hosts: ClusterHosts, program: str
) -> tuple[list[LaunchedProcess], int]:
    """Start `mpiexec` here and its proxies on the hosts of a run; return these, and how many ranks have come.

    Args:
        config: the run's configuration.
        logs: the folder for logs.
        hosts: where the ranks will be.
        program: the path of `mpiexec`.

    Raises:
        CannotRunHere: where it is none of MPICH's.
        HostLost: where a host is lost meanwhile.
    """
    ranks = Counter(hosts.host(worker_host(rank)) for rank in range(config.workers))
    there = ",".join(f"{host.address}:{count}" for host, count in ranks.items())
    log = logs / "mpiexec.log"
    command = [program, "-launcher", "manual", "-iface", hosts.own_interface, "-genvnone", "-wdir", "/"]
    command += ["-hosts", there, "-n", str(config.workers), "sh", "-c", AGENT]
    with log.open("ab") as errors:
        process: ChildProcess[bytes] = ChildProcess(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=surroundings.inherited(),
            start_new_session=True,
        )
    own = [LaunchedProcess(0, [], process, log, ProcessSpec({}, (), "mpiexec", serves=True))]
    try:
        proxies = _proxies(process)
        if len(proxies) != len(ranks):
            raise CannotRunHere(
                f"strategy.mpiexec={config.strategy['mpiexec']}: only MPICH's starts ranks on a cluster"
            )
        for number, (host, words) in enumerate(zip(ranks, proxies, strict=True)):
            own.append(_start_proxy(number, host, words, ranks[host], logs))
        seconds = CONNECT_SECONDS + ASK_SECONDS
        accepted = sum(host.call("accept_mpi", count, seconds=seconds) for host, count in ranks.items())
    except BaseException:
        for each in own:
            each.process.signal_group(signal.SIGKILL)
        raise
    return own, accepted


def _proxies(mpiexec: ChildProcess[bytes]) -> list[list[str]]:
    """Return the commands that `mpiexec` asks for, of which there are none where it ends first."""
    assert mpiexec.stdout is not None
    found = []
    for line in mpiexec.stdout:
        first, *words = line.decode().split() or [""]
        if first == LAUNCH:
            found.append(words)
        elif first == LAST:
            break
    return found


def _start_proxy(number: int, host: RemoteHost, words: list[str], ranks: int, logs: Path) -> LaunchedProcess:
    """Have a host start its proxy, which starts so many `ranks`."""
    name = f"mpi-proxy-{number}"
    environment = {
        RANK: "0",
        STARTED: "0",
        PROCESS: name,
        PYTHON: host.facts.python,
        SOCKET: host.call("listen_mpi"),
    }
    log = host.folder(logs.parent) / files.LOGS / f"{name}.log"
    process = host.spawn(words, environment, log)
    spec = ProcessSpec(environment, (), name, serves=True)
    return LaunchedProcess(0, [], process, logs / f"{name}.log", spec, host)
