"""Launch ranks that `mpiexec` starts on this machine: MPICH's from pip, or any on the PATH.

The parent starts one `mpiexec -n N python -m src.launch.mpi.agent`. Each of its processes asks the parent for
a rank to run, and sends back the rank's exit status. So a rank has the same environment, log and cores as
under other launchers, the parent knows its process id and exit status, and `mpiexec` is watched like one more
process of the run.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from src.config import CannotRunHere, Config
from src.launch import surroundings
from src.launch.cluster import mpi
from src.launch.cluster.cluster_hosts import ClusterHosts
from src.launch.host import worker_host
from src.launch.hosts import Hosts
from src.launch.launched import LaunchedProcess
from src.launch.launcher import Launcher
from src.launch.local import reaper
from src.launch.mpi.agents import MPIAgents
from src.launch.process_spec import ProcessSpec, rank_spec
from src.launch.spawn import QUIET, ChildProcess, Spawn, spawn_child
from src.launch.supervise import processes
from src.launch.torch_ranks import rendezvous_environments
from src.machine import namespaces
from src.machine.folders import for_sockets

# By default Open MPI refuses to run as root, refuses more ranks than cores, and pins ranks, which here pin
# themselves. Other MPIs ignore these variables.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
# Between hosts there is no shared memory, neither MPICH's own nor that of the libraries below it.
ACROSS_HOSTS = {"MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "tcp", "UCX_TLS": "tcp,self"}


class MPIRanks(Launcher):
    """A launcher of one rank a worker, each run by an agent that `mpiexec` has started.

    Ranks aren't forked, for each process must import and start MPI itself.
    """

    def check(self, config: Config) -> None:
        """Raise `CannotRunHere` where there is no `mpiexec` (`strategy.mpiexec`) or no mpi4py."""
        program = config.strategy.get("mpiexec")
        if mpiexec_path(config) is None:
            hint = (
                "none is installed beside this Python; `pip install mpich`, or strategy.mpiexec=mpiexec for "
                "the one on the PATH"
                if program is None
                else "no such program, here or on the PATH; leave it away for the one that pip installed"
            )
            raise CannotRunHere(f"strategy.mpiexec={program}: {hint}")
        if importlib.util.find_spec("mpi4py") is None:
            raise CannotRunHere(f"strategy={config.strategy['name']}: needs mpi4py; `pip install mpi4py`")

    def process_specs(self, config: Config, hosts: Hosts) -> list[ProcessSpec]:
        """Return a rank for each worker, on a host each."""
        library = library_environment(config) | (ACROSS_HOSTS if config.hardware.links else {})
        # Lightning itself needs a process group, over gloo.
        rendezvous: Sequence[Mapping[str, str]] = (
            rendezvous_environments(config, hosts)
            if config.framework == "torch"
            else [QUIET] * config.workers
        )
        names = [worker_host(rank) for rank in range(config.workers)]
        return [
            rank_spec(
                rank, config.workers, (rank,), {**library, **environment, **_network(hosts, name)}, name
            )
            for rank, (name, environment) in enumerate(zip(names, rendezvous, strict=True))
        ]

    def open(self, config: Config, logs: Path, hosts: Hosts) -> tuple[list[LaunchedProcess], Spawn | None]:
        """Start `mpiexec` and wait for its agents; return its process, and the function that starts a rank.

        The function is `None` where agents are missing after a while, or once `mpiexec` has ended.
        The log in the folder `logs` then says so.
        """
        program = mpiexec_path(config)
        if isinstance(hosts, ClusterHosts):
            own, connected = mpi.open_ranks(config, logs, hosts, str(program))
            if connected < config.workers:
                return [_missing(own, program, connected, config.workers)], None
            return own, spawn_child
        log = logs / "mpiexec.log"
        alive = reaper.remove_at_end("segments", repr(time.time()))
        with tempfile.TemporaryDirectory(prefix="scaleguide-", dir=for_sockets()) as folder:
            reaper.remove_at_end("folder", folder)
            agents = MPIAgents(Path(folder))
            command = [str(program), "-n", str(config.workers)]
            command += [sys.executable, "-m", "src.launch.mpi.agent", agents.address]
            place = {**surroundings.inherited(), **hosts.environment}
            process = spawn_child(
                namespaces.entering(command, place), {**OPEN_MPI, **hosts.environment}, log, [alive]
            )
            mpiexec = LaunchedProcess(0, [], process, log, ProcessSpec({}, (), "mpiexec"))
            try:
                connected = agents.accept(config.workers, lambda: process.poll() is None)
            except BaseException:
                processes.stop([mpiexec])
                raise
        if connected < config.workers:
            return [_missing([mpiexec], program, connected, config.workers)], None
        # Like a server, mpiexec runs until it is ended. From now on rank 0's log tells more of a failure than
        # the log of mpiexec.
        mpiexec.spec = dataclasses.replace(mpiexec.spec, serves=True)
        mpiexec.log = logs / "rank-0.log"
        log.unlink()
        return [mpiexec], agents.spawn


def _missing(own: Sequence[LaunchedProcess], program: str | None, came: int, workers: int) -> LaunchedProcess:
    """End `mpiexec`, the first process, and its proxies; return it as one that has failed to start ranks."""
    mpiexec = own[0]
    code = mpiexec.process.poll()
    processes.stop(list(own))
    with mpiexec.log.open("a") as output:
        print(f"{program} started {came} of {workers} processes", file=output)
    assert isinstance(mpiexec.process, ChildProcess)
    # It may have ended well, or by what has just stopped it.
    mpiexec.process.returncode = code or 1
    mpiexec.spec = dataclasses.replace(mpiexec.spec, serves=False)
    return mpiexec


def _network(hosts: Hosts, name: str) -> dict[str, str]:
    """Return the variables that keep a rank's connections, by UCX or libfabric, to its host's interface.

    The port of `mpiexec` can't be told to.
    """
    return dict.fromkeys(("UCX_NET_DEVICES", "FI_TCP_IFACE"), hosts.host(name).interface)


def mpiexec_path(config: Config) -> str | None:
    """Return the path of `strategy.mpiexec`, by default of pip's `mpiexec`; `None` if it is missing."""
    program = config.strategy.get("mpiexec")
    return shutil.which(program or Path(sysconfig.get_path("scripts"), "mpiexec"))


def library_environment(config: Config) -> dict[str, str]:
    """Return the variable that has mpi4py load the library beside `mpiexec`, as both must be of one MPI."""
    program = mpiexec_path(config)
    assert program is not None, "a checked configuration has one"
    prefix = Path(program).resolve().parent.parent
    return {"MPI4PY_LIBMPI": os.pathsep.join((f"{prefix}/lib", f"{prefix}/lib64", ""))}
