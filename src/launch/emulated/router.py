"""Route packets between hosts, each through a TUN device, at a limited rate and with delay and loss.

This stands in for tc-netem(8) where a kernel lacks it. The router reads whole IP packets from one host's
device and writes them to another's, after the time that the two links take:

    sender     waits for the link up, sends | delay up |
    switch                                             waits for the link down, sends | delay down |
    receiver                                                                          the packet

A link's queue holds what it sends in `QUEUE_SECONDS`, and drops what comes beyond. The second link sends a
packet while the first still does (cut-through), since a packet may be as long as 64 KiB: the kernel hands
TCP's segments over together (generic segmentation offload), which costs less than single ones do.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import select
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from src.machine.link import Direction, Link

QUEUE_SECONDS = 0.1
# <linux/virtio_net.h>: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
HEADER = struct.Struct("=BBHHHH")
# An Ethernet header, which a TUN device leaves away and a limit by tc counts.
FRAME_BYTES = 14
LARGEST_PACKET = HEADER.size + 65535 + FRAME_BYTES
# Packets that are read from a device before others have their turn.
BURST = 64


@dataclass
class Lane:
    """The present state of one direction of a link: when it will have sent all that it was given."""

    way: Direction
    free: float = 0.0

    def seconds(self, size: int) -> float:
        """Return how long it takes to send `size` bytes."""
        return 0.0 if self.way.rate_mbit is None else size * 8e-6 / self.way.rate_mbit

    def accept(self, moment: float, size: int, arriving: float = 0.0) -> tuple[float, float] | None:
        """Take a packet of `size` bytes; return when it begins to be sent and has been, `None` if it is lost.

        `moment` is when its first byte is there, and `arriving` how many seconds later its last one.
        """
        begin = max(moment, self.free)
        if begin - moment > QUEUE_SECONDS or (self.way.loss and random.random() < self.way.loss):
            return None
        self.free = max(begin + self.seconds(size), moment + arriving)
        return begin, self.free


@dataclass
class Port:
    """A TUN device by which the router reaches a host, or all hosts that have none of their own.

    Attributes:
        file: descriptor of the device, which must not block.
        link: that of the host.
    """

    file: int
    link: Link
    up: Lane = field(init=False)
    down: Lane = field(init=False)

    def __post_init__(self) -> None:
        self.up, self.down = Lane(self.link.up), Lane(self.link.down)


def wire_bytes(packet: bytes) -> int:
    """Return how many bytes of Ethernet frames a packet is on the wire, cut into segments if it is to be."""
    _, kind, header, segment, _, _ = HEADER.unpack_from(packet)
    size = len(packet) - HEADER.size
    segments = 1 if not kind or not segment else max(1, -(-(size - header) // segment))
    return size + (segments - 1) * header + segments * FRAME_BYTES


class Router:
    """Moves packets between ports until `run` returns."""

    def __init__(self) -> None:
        self._ports: dict[int, Port] = {}
        self._by_address: dict[bytes, Port] = {}
        self._other: Port | None = None
        # (moment, order, continuation): what happens next, at moments of the monotonic clock.
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    def add(self, port: Port, address: bytes | None) -> None:
        """Reach the host with an IPv4 `address` by `port`; with none, all hosts that have no port."""
        self._ports[port.file] = port
        if address is None:
            self._other = port
        else:
            self._by_address[address] = port

    def run(self, control: int, handle: Callable[[], bool]) -> None:
        """Route packets; call `handle` when the descriptor `control` can be read, until it returns false."""
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            # `select` is exact to microseconds, where `poll` is to milliseconds.
            ready = select.select([control, *self._ports], [], [], wait)[0]
            for file in ready:
                if file == control:
                    if not handle():
                        return
                else:
                    self._read(self._ports[file])
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                moment, _, then, arguments = heapq.heappop(self._due)
                then(moment, *arguments)

    def _read(self, sender: Port) -> None:
        now = time.monotonic()
        for _ in range(BURST):
            try:
                packet = os.read(sender.file, LARGEST_PACKET)
            except BlockingIOError:
                return
            # IPv4 alone; a host's own messages about its neighbours are IPv6.
            if len(packet) < HEADER.size + 20 or packet[HEADER.size] >> 4 != 4:
                continue
            receiver = self._by_address.get(packet[HEADER.size + 16 : HEADER.size + 20], self._other)
            if receiver is None or receiver is sender:
                continue
            size = wire_bytes(packet)
            if (taken := sender.up.accept(now, size)) is not None:
                begin, end = taken
                arrival = begin + sender.link.up.delay_ms / 1e3
                self._at(arrival, self._arrive, receiver, packet, size, end - begin)

    def _arrive(self, moment: float, receiver: Port, packet: bytes, size: int, arriving: float) -> None:
        """Take a packet at the switch, whose first byte is there now, and its last in `arriving` seconds."""
        if (taken := receiver.down.accept(moment, size, arriving)) is not None:
            self._at(taken[1] + receiver.link.down.delay_ms / 1e3, self._deliver, receiver, packet)

    def _deliver(self, moment: float, receiver: Port, packet: bytes) -> None:
        # The packet is lost where its device's queue is full, or the device is down.
        with contextlib.suppress(OSError):
            os.write(receiver.file, packet)

    def _at(self, moment: float, then: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._due, (moment, self._order, then, arguments))
