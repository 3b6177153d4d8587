"""Run one rank for the parent, as an agent that `mpiexec` has started, and send the rank's exit status.

    mpiexec -n N python -m src.launch.mpi.agent SOCKET

The agent stays beside the rank, because only the process that has started another one learns its exit status,
and `mpiexec` reports one status for all of its processes. Agent and parent exchange lines of JSON through the
parent's Unix socket, whose path is SOCKET:

    to the parent      {"rank": 1}
    from the parent    {"command": [...], "environment": {...}, "log": "..."}
    to the parent      {"pid": 4711}
    to the parent      {"code": 0}                  the exit status; negative: the number of a signal

When one of them ends, however that happens, the socket is closed, so that the other one notices.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from io import BufferedRWPair

from src.launch.local.agents import send_line
from src.run.variables import PARENT

# Variables with a process's rank under MPICH and Intel MPI, Open MPI, and any MPI that uses PMIx.
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")


def rank_of(environment: Mapping[str, str]) -> int:
    """Return this process's rank among those that an `mpiexec` has started.

    Raises:
        SystemExit: if `environment` has none of the known variables.
    """
    for name in RANK_VARIABLES:
        if name in environment:
            return int(environment[name])
    raise SystemExit(f"mpiexec sets none of {', '.join(RANK_VARIABLES)}: not an MPI that is known here")


def main() -> None:
    """Run one rank to its end; the argument is the path of the parent's socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        stream = connection.makefile("rwb")
        send_line(stream, {"rank": rank_of(os.environ)})
        line = stream.readline()
        if not line:
            raise SystemExit("the parent has gone")
        order = json.loads(line)
        with open(order["log"], "ab") as output:
            process = subprocess.Popen(
                order["command"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The rank dies with its parent, which is this process.
                env={**os.environ, **order["environment"], PARENT: str(os.getpid())},
                start_new_session=True,
                # MPICH's ranks reach mpiexec through an inherited file.
                close_fds=False,
            )
        send_line(stream, {"pid": process.pid})
        threading.Thread(target=_end_with_parent, args=(stream, process), daemon=True).start()
        code = process.wait()
        with contextlib.suppress(OSError):
            send_line(stream, {"code": code})
        # Wait until the parent ends all agents. If this one ended now, mpiexec would take it for a failed
        # rank and end the others, so that the parent couldn't tell which rank failed first. MPICH's mpiexec
        # does so even where the status is 0: it expects to hear from MPI's exit handlers, which no rank runs.
        signal.pause()


def _end_with_parent(stream: BufferedRWPair, process: subprocess.Popen[bytes]) -> None:
    """Wait until the parent closes the stream; then kill the rank's process group and end the agent."""
    with contextlib.suppress(OSError):
        stream.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
