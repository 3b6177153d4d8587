"""Take devices for one command, so that no two commands of a user run on the same ones at once.

A device is taken by flock(2) on files in the user's runtime folder, one a core and one a GPU: CPU devices of
different sizes overlap by their cores, and a GPU's number depends on which GPUs a command sees. The kernel
frees a lock when the process that holds it ends, however that happens; children don't inherit it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from src.machine import devices
from src.machine.devices import Device
from src.machine.file_locks import holders, unlock

FOLDER = "scaleguide"


class Taken(Exception):
    """The error where devices are taken; its text says which, by whom, and what is free."""


class NoFolder(Exception):
    """The error where there is no folder for locks that is the user's alone."""


@dataclass(frozen=True)
class Request:
    """A wish for devices.

    Attributes:
        kind: `cpu` or `gpu`.
        cores_per_device: cores of a CPU device.
        numbers: indices of the devices that it must be, `None` for any.
        shared: whether others that share, too, may have the devices at the same time.
        count: number of devices; all of them, if there are fewer.
    """

    kind: str
    cores_per_device: int
    numbers: tuple[int, ...] | None
    shared: bool
    count: int


@dataclass
class Lease:
    """Devices that this process has taken, until `close` or the process's end.

    Attributes:
        waited_seconds: how long it waited for them.
    """

    waited_seconds: float = 0.0
    _devices: dict[tuple[object, ...], list[Device]] = field(default_factory=dict)
    _files: dict[str, int] = field(default_factory=dict)

    def of(self, request: Request) -> list[Device]:
        """Return the devices taken for a request that was among those of the lease, or a smaller one."""
        return self._devices[_group(request)][: request.count]

    def close(self) -> None:
        """Free the devices."""
        for file in self._files.values():
            unlock(file)
        self._files.clear()

    def add(self, request: Request) -> bool:
        """Take devices for a request besides those taken already; return whether there were enough."""
        candidates = devices.find(request.kind, request.cores_per_device, request.numbers)
        count = min(request.count, len(candidates))
        chosen: list[Device] = []
        for device in candidates:
            if len(chosen) < count and self._lock(_names(device, request.shared)):
                chosen.append(device)
        self._devices[_group(request)] = chosen
        return len(chosen) == count

    def _lock(self, names: Iterable[tuple[str, bool]]) -> bool:
        """Lock files (name, shared), but for those locked already; return whether all could be."""
        locked: dict[str, int] = {}
        for name, shared in names:
            if name in self._files:
                continue
            file = _open(name)
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                for other in locked.values():
                    unlock(other)
                return False
            locked[name] = file
        self._files |= locked
        return True


def take(requests: Sequence[Request]) -> Lease:
    """Take the devices of all requests, or none of them.

    Raises:
        Taken: if others have devices that are needed.
        NoFolder: if there is no folder for the locks.
    """
    largest: dict[tuple[object, ...], Request] = {}
    for request in requests:
        before = largest.get(_group(request))
        if before is None or before.count < request.count:
            largest[_group(request)] = request
    lease = Lease()
    with _alone():
        # A file is locked once a process: the stricter lock first, and named devices before any.
        for request in sorted(
            largest.values(), key=lambda each: (each.shared, each.kind, each.numbers is None)
        ):
            if not lease.add(request):
                lease.close()
                raise Taken(_describe(request))
    return lease


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Have no other command try locks meanwhile: each would see what the other tries as taken."""
    file = _open("all")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        unlock(file)


def _group(request: Request) -> tuple[object, ...]:
    return (request.kind, request.cores_per_device, request.numbers, request.shared)


def _names(device: Device, shared: bool) -> list[tuple[str, bool]]:
    """Return the files of a device, and whether each is locked together with others.

    GPUs share cores, as there may be fewer of these, but not with CPU devices.
    """
    is_gpu = device.kind == "gpu"
    cores = [(f"core-{core}", shared or is_gpu) for core in device.cores]
    return [(f"gpu-{device.uuid.replace('/', '-')}", shared), *cores] if is_gpu else cores


def _describe(request: Request) -> str:
    """Say which devices others have, and which are free."""
    taken, free = [], []
    for device in devices.find(request.kind, request.cores_per_device):
        lease = Lease()
        if lease.add(dataclasses.replace(request, numbers=(device.index,), count=1)):
            free.append(str(device.index))
        elif request.numbers is None or device.index in request.numbers:
            found = dict.fromkeys(
                holder for name, _ in _names(device, request.shared) for holder in holders(_path(name))
            )
            by = " and ".join(found) or "another process"
            taken.append(f"{request.kind} device {device.index} is taken by {by}")
        lease.close()
    return f"{'; '.join(taken)}; free: {', '.join(free) or 'none'}"


def _open(name: str) -> int:
    """Open a file for a lock, and have it look new to those who tidy temporary folders."""
    file = os.open(_path(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.utime(file)
    return file


def _path(name: str) -> Path:
    return folder() / f"{name}.lock"


def folder() -> Path:
    """Return the user's folder for locks, which is made if it isn't there.

    Raises:
        NoFolder: if it can't be made, or isn't the user's alone.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.path.isdir(runtime) else None
    path = base / FOLDER if base else Path(tempfile.gettempdir()) / f"{FOLDER}-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise NoFolder(f"{path}: no folder for the locks of devices ({error.strerror})") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NoFolder(f"{path}: must be a folder that you alone may write to, for the locks of devices")
    return path
