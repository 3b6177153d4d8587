"""What the processes of a run listen at, as `ss -ltunp` and `ss -lx` show it, in their own namespaces."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

# States in /proc/<pid>/net: TCP's LISTEN, and a UDP socket that isn't connected.
LISTENING = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}


@dataclass(frozen=True)
class Listening:
    """A socket of a process that others may send to.

    `address` is an IP address, or the name of an abstract Unix socket with its @.
    """

    process: str
    namespace: str
    address: str
    port: int

    @property
    def open(self) -> bool:
        """Whether other hosts can reach it, or other users whom nobody asks who they are."""
        return self.address.startswith("@") or not ipaddress.ip_address(self.address).is_loopback


def own_namespace() -> str:
    return os.readlink("/proc/self/ns/net")


def listening(processes: Iterable[psutil.Process]) -> set[Listening]:
    """What these processes listen at now."""
    found: set[Listening] = set()
    for process in processes:
        with contextlib.suppress(OSError, psutil.Error):
            folder = Path("/proc", str(process.pid))
            inodes = {link[8:-1] for link in _links(folder / "fd") if link.startswith("socket:[")}
            namespace, name = os.readlink(folder / "ns/net"), process.name()
            found |= {Listening(name, namespace, *where) for where in _bound(folder / "net", inodes)}
    return found


def _links(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            yield os.readlink(path)


def _bound(folder: Path, inodes: set[str]) -> Iterator[tuple[str, int]]:
    for table, state in LISTENING.items():
        for line in (folder / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state and fields[9] in inodes:
                address, port = fields[1].split(":")
                yield _address(address), int(port, 16)
    for line in (folder / "unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith("@") and fields[6] in inodes:
            yield fields[7], 0


def _address(written: str) -> str:
    """An address as the kernel writes it: words of 32 bits in the machine's order."""
    words = [int(written[i : i + 8], 16) for i in range(0, len(written), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))
