"""Name the environment variables by which the parent tells a process its part in a run.

Ranks also have torchrun's variables (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, ...) or TensorFlow's `TF_CONFIG`,
which their frameworks read.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass

RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
# Id of the parent's process, with whose end this process ends, too.
PARENT = "SCALEGUIDE_PARENT"
# When the command was given, in seconds since 1970.
STARTED = "SCALEGUIDE_STARTED"
# Name of the process and of its log.
PROCESS = "SCALEGUIDE_PROCESS"
# Numbers of the cores that the process is pinned to, with commas.
CORES = "SCALEGUIDE_CORES"
# Set for a process that serves others and has no end of its own.
SERVES = "SCALEGUIDE_SERVES"
# Path of the checkpoint at which a job that is started again resumes.
RESUME = "SCALEGUIDE_RESUME"
# The hosts whose traffic can be counted, as JSON: by name the process whose /proc entry shows its network.
NETWORKS = "SCALEGUIDE_NETWORKS"
# A folder with the sockets, by framework, of fork servers that another process has started.
FORK_SERVERS = "SCALEGUIDE_FORK_SERVERS"
# Variables that say how many threads numerical libraries use.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Name, in the folder of all ranks' records, of the file through which torch's ranks find each other.
STORE = "SCALEGUIDE_STORE"
# The processes of a parameter-server job show each other this: a secret of this start of the job.
TOKEN, TOKEN_CHARACTERS = "SCALEGUIDE_TOKEN", 64
# The processes of a parameter-server job, as JSON (`ClusterSpec`).
CLUSTER = "SCALEGUIDE_CLUSTER"


@dataclass(frozen=True)
class ClusterSpec:
    """The processes of a parameter-server job, and this process's part in it.

    The names are those of TensorFlow's `TF_CONFIG`.

    Attributes:
        addresses: `host:port` of each process, by the job `worker`, `server` or `coordinator`.
        job: the job of this process.
        task: the index of this process in that job.
    """

    addresses: Mapping[str, list[str]]
    job: str
    task: int

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that holds this cluster."""
        return {CLUSTER: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> ClusterSpec:
        """Read this process's cluster from its environment.

        Raises:
            KeyError: in a process without a cluster.
        """
        return cls(**json.loads(os.environ[CLUSTER]))


def rank() -> int:
    """Return this process's rank, 0 if none is set."""
    return int(os.environ.get(RANK, "0"))


def world_size() -> int:
    """Return the number of ranks of this job, 1 if none is set."""
    return int(os.environ.get(WORLD_SIZE, "1"))


def new_token() -> str:
    """Return a new secret for `TOKEN`, of `TOKEN_CHARACTERS` digits."""
    return secrets.token_hex(TOKEN_CHARACTERS // 2)


def token() -> str:
    """Return this job's secret.

    Raises:
        KeyError: in a process without one.
    """
    return os.environ[TOKEN]
