"""Tell what a parent must know of a host of a cluster, and what processes there must not inherit."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

from src.launch import surroundings
from src.machine import devices
from src.machine.devices import Device, processor
from src.machine.interfaces import LOOPBACK
from src.measure.environment import gpu_names

ROOT = Path(__file__).parents[3]
# An engine sets these for processes of its own, by names that are others', too.
SET_BY_ENGINES = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONBREAKPOINT", "PYTHONPATH")


@dataclass(frozen=True)
class HostFacts:
    """The facts of a host that decide whether it can take part in a run.

    Attributes:
        name: its hostname.
        address: by which the cluster's other hosts reach it.
        interface: the network interface with that address, `None` if none has it.
        python: the path of the Python that runs there.
        prefix: the folder of its environment.
        code: the fingerprint of this project's code there.
        versions: of Python and of the libraries that were asked for, by name; `None` of a missing one.
        niceness: of the agent, which its processes inherit.
        devices: those that the agent may use.
        processor: the processor's name.
        gpus: the names of its GPUs.
        process: the agent's process id.
    """

    name: str
    address: str
    interface: str | None
    python: str
    prefix: str
    code: str
    versions: dict[str, str | None]
    niceness: int
    devices: tuple[Device, ...]
    processor: str
    gpus: tuple[str, ...]
    process: int


def of_this_host(address: str, kind: str, cores_per_device: int, libraries: Iterable[str]) -> HostFacts:
    """Return the facts of this host, with its devices of a kind and the versions of some libraries."""
    return HostFacts(
        name=socket.gethostname(),
        address=address,
        interface=interface_of(address),
        python=sys.executable,
        prefix=sys.prefix,
        code=code_fingerprint(),
        versions={"python": platform.python_version(), **{name: version_of(name) for name in libraries}},
        niceness=os.nice(0),
        devices=tuple(devices.find(kind, cores_per_device)),
        processor=processor(),
        gpus=tuple(gpu_names()),
        process=os.getpid(),
    )


def version_of(library: str) -> str | None:
    """Return the version of an installed library, `None` of one that isn't."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(library)
    return None


def interface_of(address: str) -> str | None:
    """Return the name of the interface of this host that has an address; 127.0.0.0/8 is all loopback's."""
    if address.startswith("127."):
        return LOOPBACK
    for name, every in psutil.net_if_addrs().items():
        if any(each.address == address for each in every):
            return name
    return None


@cache
def code_fingerprint() -> str:
    """Return a hash of all code of this project that processes of a run can import."""
    found = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def scrubbed() -> dict[str, str]:
    """Return this process's environment without what an engine has set for itself."""
    return {name: value for name, value in surroundings.inherited().items() if name not in SET_BY_ENGINES}
