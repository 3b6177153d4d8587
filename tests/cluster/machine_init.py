"""Become the first process of a machine: `python machine_init.py DESCRIPTION`, in namespaces of its own.

DESCRIPTION is JSON: `hostname`; `hidden`, folders that are empty here; `kept`, what of those is seen after
all; `hosts`, the text of /etc/hosts. The answer is one line: this process's id as it is known outside, or why
it failed. It goes on until standard input ends, and the machine, all processes in it, ends with it.

This file is run without the project's modules, so it needs nothing but Python's own library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

# <sys/mount.h>
MS_BIND, MS_REC = 0x1000, 0x4000
# A folder that is hidden on every machine, and so has room for a file of this process.
OWN = "/run"


def main() -> None:
    """Set the machine up, say so, and wait."""
    description = json.loads(sys.argv[1])
    # As long as /proc is the one of outside.
    outside = os.readlink("/proc/self")
    try:
        set_up(description)
    except OSError as error:
        print(error, flush=True)
        return
    # Nobody waits here for the orphans of the machine: the kernel then removes them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(outside, flush=True)
    sys.stdin.read()


def set_up(description: dict[str, str]) -> None:
    """Give this process's namespaces the machine's name, and the files that it sees."""
    socket.sethostname(description["hostname"])
    # What is kept can be found by its descriptor once its path is hidden.
    kept = {path: os.open(path, os.O_PATH) for path in description["kept"] if os.path.exists(path)}
    for folder in description["hidden"]:
        # One may lie below another, and is hidden with that.
        if os.path.isdir(folder):
            mount("tmpfs", folder, "tmpfs", 0, "mode=1777")
    for path, descriptor in kept.items():
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(descriptor)):
            os.makedirs(path, exist_ok=True)
            mount(f"/proc/self/fd/{descriptor}", path, "", MS_BIND | MS_REC)
        os.close(descriptor)
    hosts = Path(OWN, "hosts")
    hosts.write_text(description["hosts"])
    mount(str(hosts), "/etc/hosts", "", MS_BIND)
    mount("proc", "/proc", "proc", 0)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Do what mount(2) does."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(*(each.encode() for each in (source, target, kind)), flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


if __name__ == "__main__":
    main()
