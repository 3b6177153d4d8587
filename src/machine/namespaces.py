"""Make network namespaces that have nothing but the loopback interface, and move processes into them.

    python namespaces.py --hold               make a namespace, hold it until standard input ends
    python namespaces.py COMMAND...           enter the namespace of the environment, and become COMMAND

What listens inside is reached from inside alone, whatever address it listens at. A namespace lasts as long as
a process in it: its holder, which ends with the process that has made the namespace, and those that have
entered. Root makes a network namespace at once; others make a user namespace first, in which their user and
group ids stay as they are.

This file is run as a script as well, so it needs nothing but Python's own library.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# The environment variable that names the namespace to enter: its identity, and the holder's /proc/<pid>/ns.
NAMESPACE = "SCALEGUIDE_NAMESPACE"
# <linux/sched.h>, <linux/sockios.h>, <linux/if.h>
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
OWN = Path("/proc/self/ns")
READY = "ready"
# Settings of the kernel that forbid namespaces, with the value that does.
FORBIDDING = {
    "kernel.unprivileged_userns_clone": "0",
    "user.max_user_namespaces": "0",
    "user.max_net_namespaces": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
}


class NotAllowed(Exception):
    """The error where no namespace can be made; its text has the reason."""


class Namespace:
    """A network namespace, held open until `close`, or until this process ends in any way.

    Attributes:
        environment: the variable by which a process enters the namespace.
        holder: id of the process that holds the namespace.
    """

    def __init__(self) -> None:
        """Make a namespace; raise `NotAllowed` where the system forbids it."""
        self._holder = subprocess.Popen(
            [*_script(), "--hold"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # A Ctrl-C reaches the parent alone.
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        answer = self._holder.stdout.readline().strip()
        if answer != READY:
            self.close()
            raise NotAllowed(answer or "the process that should hold it ended at once")
        self.holder = self._holder.pid
        self.environment = variable_of(self.holder)

    def close(self) -> None:
        """Let go of the namespace, which ends with the last process in it."""
        assert self._holder.stdin is not None and self._holder.stdout is not None
        # Its standard input wouldn't end if this process had forked, without another command, meanwhile.
        self._holder.kill()
        self._holder.wait()
        self._holder.stdin.close()
        self._holder.stdout.close()


def variable_of(holder: int) -> dict[str, str]:
    """Return the variable by which a process enters the namespaces of the process `holder`."""
    folder = Path(f"/proc/{holder}/ns")
    return {NAMESPACE: f"{os.readlink(folder / 'net')} {folder}"}


def inside() -> bool:
    """Return whether this process's environment names a namespace, which it has entered or will enter."""
    return NAMESPACE in os.environ


def holder() -> str:
    """Return the process whose `/proc` entry shows the environment's network, `self` without a namespace."""
    return Path(os.environ[NAMESPACE].split()[1]).parent.name if inside() else "self"


def enter() -> None:
    """Move this process into the namespace that its environment names, unless it is there already.

    The process must have a single thread: other threads would stay outside.

    Raises:
        OSError: where that fails, as when the namespace's holder has ended.
    """
    if not inside():
        return
    identity, folder = os.environ[NAMESPACE].split()
    if os.readlink(OWN / "net") == identity:
        return
    kinds = [("net", CLONE_NEWNET)]
    if os.readlink(Path(folder, "user")) != os.readlink(OWN / "user"):
        # This comes first, for it permits the other.
        kinds.insert(0, ("user", CLONE_NEWUSER))
    # Opened at once: from within the new user namespace the folder may be closed.
    opened = [(os.open(Path(folder, name), os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in kinds]
    for descriptor, kind in opened:
        _call("setns", descriptor, kind)
        os.close(descriptor)


def entering(command: list[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the command that enters the namespace of its `environment`, if any, and becomes `command`."""
    return [*_script(), *command] if NAMESPACE in environment else command


def _script() -> list[str]:
    """Return the command that runs this file, without modules beside it or of the site."""
    return [sys.executable, "-I", "-S", __file__]


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library that returns 0; raise `OSError` where it doesn't."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _hold() -> None:
    """Make a namespace, say so, and hold it until standard input ends."""
    try:
        _make()
    except OSError as error:
        print(_reason(error), flush=True)
        return
    print(READY, flush=True)
    sys.stdin.read()


def _make() -> None:
    """Move this process into a new network namespace, or raise `OSError` where that isn't allowed."""
    try:
        make_network()
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _raise_loopback()


def make_network() -> None:
    """Move this process into a new network namespace, whose loopback interface is up.

    Raises:
        PermissionError: where this process isn't root, here or in its user namespace.
    """
    _call("unshare", CLONE_NEWNET)
    _raise_loopback()


def _raise_loopback() -> None:
    """Turn this namespace's loopback interface on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


def _reason(error: OSError) -> str:
    """Return why no namespace could be made: the settings that forbid it, else the system's error."""
    found = []
    for name, value in FORBIDDING.items():
        path = Path("/proc/sys", *name.split("."))
        if path.exists() and path.read_text().strip() == value:
            found.append(f"{name}={value}")
    return ", ".join(found) or f"{error.filename or 'ioctl'}: {error.strerror}"


def main() -> None:
    """Hold a new namespace, or enter one and become another command."""
    if sys.argv[1:] == ["--hold"]:
        _hold()
    else:
        enter()
        os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
