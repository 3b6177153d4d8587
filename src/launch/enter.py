"""A process that `mpiexec` has started: it asks the parent which rank to run, runs it and tells how it ended.

    mpiexec -n N python -m src.launch.enter SOCKET

It stays beside the rank, as the kernel tells a process's exit status to who has started it and to nobody
else, and `mpiexec` makes one number of all of them. A line of JSON each goes through the parent's socket:

    to the parent      {"rank": 1}
    from the parent    {"command": [...], "environment": {...}, "log": "..."}
    to the parent      {"pid": 4711}
    to the parent      {"code": 0}                  negative: a signal

The socket closes with its process, however that ends: each side then knows that the other has gone.
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
from typing import IO

# MPICH and Intel MPI, Open MPI, and whoever speaks PMIx.
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")


def rank_of(environment: Mapping[str, str]) -> int:
    """This process's number among those that an `mpiexec` has started.

    Raises:
        SystemExit: if none of the known variables says so.
    """
    for name in RANK_VARIABLES:
        if name in environment:
            return int(environment[name])
    raise SystemExit(f"mpiexec sets none of {', '.join(RANK_VARIABLES)}: not an MPI that is known here")


def main() -> None:
    """Runs one rank to its end; the argument is the path of the parent's socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        stream = connection.makefile("rwb")
        tell(stream, {"rank": rank_of(os.environ)})
        told = stream.readline()
        if not told:
            raise SystemExit("the parent has gone")
        order = json.loads(told)
        with open(order["log"], "ab") as output:
            process = subprocess.Popen(
                order["command"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The rank dies with its parent, which is this process.
                env={**os.environ, **order["environment"], "SCALEGUIDE_PARENT": str(os.getpid())},
                start_new_session=True,
                # MPICH's ranks reach mpiexec through an inherited file.
                close_fds=False,
            )
        tell(stream, {"pid": process.pid})
        threading.Thread(target=_end_with_parent, args=(stream, process), daemon=True).start()
        code = process.wait()
        with contextlib.suppress(OSError):
            tell(stream, {"code": code})
        # Until the parent ends them all. mpiexec takes a process that ends for a failed rank, and ends the
        # others: MPICH's even one that ends well, as it hears a good-bye from exit handlers only, and a rank
        # runs none. After a failure the parent couldn't tell which rank was first.
        signal.pause()


def tell(stream: IO[bytes], what: Mapping[str, object]) -> None:
    """Sends one line."""
    stream.write(json.dumps(what).encode() + b"\n")
    stream.flush()


def _end_with_parent(stream: IO[bytes], process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        stream.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
