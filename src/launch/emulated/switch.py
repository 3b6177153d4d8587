"""Make emulated hosts, namespaces joined by a switch, and hold them.

It is started as `python -m src.launch.emulated.switch PARENT`, with the id of the process that starts it. It
reads lines of JSON and answers each by one. Its first line, before it reads any, is `{"ready": {...}}`, what
the system offers, or `{"error": ...}`:

    {"name": "worker-0", "link": {"up": {...}, "down": {...}}}
    {"holder": 4711, "address": "10.93.1.2", "interface": "eth0", "by": "tbf"}

It ends, and with it all that it has made, when its standard input does, and when its parent ends in any way.
Each host's namespace is that of a child process, its holder; the switch's is that of this process. None of
them has a name or a part in the namespace in which the command was given, so that nothing is left when these
processes and those inside have ended.

How a link is made depends on what it asks for and what the kernel has:

    plain    nothing asked: a veth pair
    tbf      a rate: the same, limited by tc-tbf(8) at both ends
    netem    a delay or loss too, where the kernel has tc-netem(8)
    router   the same, where it hasn't: a TUN device, and the router in this process (`router.py`)
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from src.launch.emulated.router import HEADER, Port, Router
from src.machine import namespaces, process
from src.machine.link import Direction, Link

# Addresses are some of those for private use (RFC 1918); nobody outside sees them.
NETWORK = "10.93"
# The name of each host's interface.
INTERFACE = "eth0"
# The router's priority: above all processes that have none of their own.
PRIORITY = 50
# A tc-tbf sends so much at once, more than the longest packet, and lets one wait so long at most.
BURST_KB, LATENCY_MS = 128, 100
# Packets that tc-netem holds back, enough for the delay at a high rate.
NETEM_PACKETS = 100_000
# <linux/if_tun.h>, <linux/prctl.h>
TUN, TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = "/dev/net/tun", 0x400454CA, 0x400454D0, 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
PR_SET_TIMERSLACK = 29
# Hosts would otherwise ask each other for routers and addresses, which interfaces count.
WITHOUT_IPV6 = {"net/ipv6/conf/all/disable_ipv6": 1, "net/ipv6/conf/default/disable_ipv6": 1}
# What switch and holder tell each other.
DONE = b"done"


class SwitchError(Exception):
    """The error where the system refuses something that emulated hosts need; its text has the reason."""


class Switch:
    """The switch, and the hosts that it has made."""

    def __init__(self) -> None:
        """Move this process into a new network namespace, which is the switch's.

        Raises:
            SwitchError: where that isn't allowed, or a program is missing.
        """
        namespaces.make_network()
        _configure({**WITHOUT_IPV6, "net/ipv4/ip_forward": 1})
        self.netem = _has_netem()
        self.router = Router()
        self._routes = False
        self._hosts = 0

    def add(self, link: Link) -> dict[str, Any]:
        """Make a host and its link to the switch; return where it is and how its link is made."""
        self._hosts += 1
        number = self._hosts
        by = self._method(link)
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        switch, child = os.getpid(), os.fork()
        if not child:
            process.die_with(switch)
            _hold(other, number, link, by)
        other.close()
        try:
            files = _answer(own)
            if by == "router":
                self._join_router(files[0], number, link)
            else:
                self._join_switch(child, number, link, by)
            own.send(DONE)
            _answer(own)
        finally:
            own.close()
        return {"holder": child, "address": address(number), "interface": INTERFACE, "by": by}

    def _method(self, link: Link) -> str:
        """Return how a link is made."""
        if link.delayed:
            return "netem" if self.netem else "router"
        return "tbf" if link.up.rate_mbit or link.down.rate_mbit else "plain"

    def _join_switch(self, child: int, number: int, link: Link, by: str) -> None:
        """Join the host held by `child` by a veth pair, and shape what the switch sends there."""
        name = f"host{number}"
        run("ip", "link", "add", name, "type", "veth", "peer", "name", INTERFACE, "netns", str(child))
        run("ip", "addr", "add", f"{gateway(number)}/24", "dev", name)
        run("ip", "link", "set", name, "up")
        shape(name, link.down, by)

    def _join_router(self, file: int, number: int, link: Link) -> None:
        """Join a host by its TUN device, which `file` describes."""
        if not self._routes:
            # What comes from the router's hosts to others, and back, crosses a device of the switch.
            self.router.add(Port(open_tun("router"), Link()), None)
            run("ip", "link", "set", "router", "up")
            self._routes = True
        self.router.add(Port(file, link), socket.inet_aton(address(number)))
        run("ip", "route", "add", f"{address(number)}/32", "dev", "router")


def address(number: int) -> str:
    """Return the address of host `number`, from 1."""
    return f"{NETWORK}.{number}.2"


def gateway(number: int) -> str:
    """Return the switch's address in the network of host `number`."""
    return f"{NETWORK}.{number}.1"


def shape(device: str, way: Direction, by: str) -> None:
    """Limit what a device of this process's namespace sends, as `by` says."""
    rate = None if way.rate_mbit is None else f"{round(way.rate_mbit * 1000)}kbit"
    if by == "netem":
        words = ["netem", "delay", f"{way.delay_ms}ms", "loss", f"{100 * way.loss}%"]
        words += ["limit", str(NETEM_PACKETS), *(["rate", rate] if rate else [])]
    elif by == "tbf" and rate:
        words = ["tbf", "rate", rate, "burst", f"{BURST_KB}kb", "latency", f"{LATENCY_MS}ms"]
    else:
        return
    run("tc", "qdisc", "add", "dev", device, "root", *words)


def open_tun(name: str) -> int:
    """Make a TUN device in this process's namespace; return its descriptor, which doesn't block.

    Packets begin with a `virtio_net_hdr`, and may be as long as the kernel likes.
    """
    file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(file, TUNSETVNETHDRSZ, struct.pack("i", HEADER.size))
    fcntl.ioctl(file, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return file


def _hold(other: socket.socket, number: int, link: Link, by: str) -> NoReturn:
    """Make a host's namespace in this process, and hold it until the switch ends; tell `other` if it did."""
    # What the switch has open is none of the host's.
    kept = other.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number_of in (0, 1):
        os.dup2(nothing, number_of)
    try:
        namespaces.make_network()
        _configure(WITHOUT_IPV6)
        if by == "router":
            file = open_tun(INTERFACE)
            socket.send_fds(other, [DONE], [file])
            os.close(file)
        else:
            other.send(DONE)
        # Until the switch has joined it.
        other.recv(len(DONE))
        run("ip", "addr", "add", f"{address(number)}/{32 if by == 'router' else 24}", "dev", INTERFACE)
        run("ip", "link", "set", INTERFACE, "up")
        via = ["dev", INTERFACE] if by == "router" else ["via", gateway(number)]
        run("ip", "route", "add", "default", *via)
        if by != "router":
            shape(INTERFACE, link.up, by)
        other.send(DONE)
    except (OSError, SwitchError) as error:
        other.send(describe(error).encode())
    other.close()
    while True:
        signal.pause()


def _answer(own: socket.socket) -> list[int]:
    """Return the descriptors that a holder gives once it has done its part, or raise `SwitchError`."""
    said, files, _, _ = socket.recv_fds(own, 4096, 1)
    if said != DONE:
        raise SwitchError(said.decode() or "the process that should hold a host ended at once")
    return files


def run(*command: str) -> None:
    """Run a program of iproute2 in this namespace; raise `SwitchError` where it fails, or isn't there."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SwitchError(
            f"the program {command[0]} is missing (Debian: apt-get install iproute2)"
        ) from error
    if done.returncode:
        raise SwitchError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def _configure(settings: Mapping[str, int]) -> None:
    """Set kernel settings of this process's namespace, named as below /proc/sys."""
    for name, value in settings.items():
        Path("/proc/sys", name).write_text(str(value))


def _has_netem() -> bool:
    """Return whether the kernel has tc-netem, by trying it on this namespace's loopback interface."""
    try:
        run("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except SwitchError:
        return False
    run("tc", "qdisc", "del", "dev", "lo", "root")
    return True


def _take_priority() -> str:
    """Have the scheduler run this process before all others, where that is allowed; return its priority."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        # Its children, holders and programs, don't inherit it.
        how = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, how, os.sched_param(PRIORITY))
    except OSError:
        return "as others"
    return f"real-time {PRIORITY}"


def describe(error: Exception) -> str:
    """Return the reason why the system refused something."""
    if isinstance(error, PermissionError) and error.filename == "unshare":
        return "it may not make network namespaces"
    if isinstance(error, OSError) and error.filename == TUN:
        return f"{TUN}: {error.strerror}"
    return str(error)


def main() -> None:
    """Make the switch, and hosts as standard input asks, until that ends."""
    process.die_with(int(sys.argv[1]))
    process.set_name("emulated-switch")
    try:
        switch = Switch()
    except (OSError, SwitchError) as error:
        print(json.dumps({"error": describe(error)}), flush=True)
        return
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    offered = {"netem": switch.netem, "priority": _take_priority(), "congestion_control": congestion}
    print(json.dumps({"ready": offered}), flush=True)
    switch.router.run(sys.stdin.fileno(), lambda: _handle(switch))


def _handle(switch: Switch) -> bool:
    """Answer one line of standard input; return whether there was one."""
    line = sys.stdin.buffer.readline()
    if not line:
        return False
    try:
        answer = switch.add(Link.parse(json.loads(line)["link"]))
    except (OSError, SwitchError) as error:
        answer = {"error": describe(error)}
    print(json.dumps(answer), flush=True)
    return True


if __name__ == "__main__":
    main()
