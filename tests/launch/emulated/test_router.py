"""The router's arithmetic on numbers worked by hand, and packets that it moves between two devices."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from src.launch.emulated import router
from src.launch.emulated.router import HEADER, Lane, Port, Router, wire_bytes
from src.machine.link import Direction, Link, rate_between, round_trip_between

pytestmark = pytest.mark.timed

# A byte a microsecond.
EIGHT_MBIT = Direction(rate_mbit=8)


def test_a_link_sends_one_packet_after_the_other_at_its_rate() -> None:
    lane = Lane(EIGHT_MBIT)
    assert lane.accept(10.0, 1000) == (10.0, pytest.approx(10.001))
    # It comes while the first is sent, and waits.
    assert lane.accept(10.0005, 500) == (pytest.approx(10.001), pytest.approx(10.0015))
    # It comes later, and doesn't.
    assert lane.accept(11.0, 2000) == (11.0, pytest.approx(11.002))


def test_what_a_queue_has_no_room_for_is_lost() -> None:
    lane = Lane(EIGHT_MBIT)
    sizes = [50_000, 50_000, 1000, 1000]
    # The third waits for 0.1 s, the most; the fourth would wait for longer.
    taken = [lane.accept(0.0, size) is not None for size in sizes]
    assert router.QUEUE_SECONDS == 0.1
    assert taken == [True, True, True, False]


def test_the_second_link_sends_a_packet_while_the_first_still_does() -> None:
    # 10,000 bytes take the first link 10 ms, and the second, which is ten times as fast, 1 ms.
    fast = Lane(Direction(rate_mbit=80))
    assert fast.accept(5.0, 10_000, arriving=0.010) == (5.0, pytest.approx(5.010))
    # A slower one takes its own time.
    slow = Lane(Direction(rate_mbit=4))
    assert slow.accept(5.0, 10_000, arriving=0.010) == (5.0, pytest.approx(5.020))


def test_packets_are_lost_as_often_as_asked() -> None:
    random.seed(0)
    for loss in (0.0, 0.02, 0.5):
        lane = Lane(Direction(loss=loss))
        lost = [lane.accept(0.0, 1) is None for _ in range(100_000)]
        # The standard deviation of that share is 0.0016 at most.
        assert sum(lost) / len(lost) == pytest.approx(loss, abs=0.005)


def packet(source: str, target: str, payload: bytes, *, segment: int = 0) -> bytes:
    """An IPv4 packet as a TUN device gives it; with `segment` TCP's, to be cut into so many bytes."""
    head = HEADER.pack(0, 1 if segment else 0, 40 if segment else 0, segment, 0, 0)
    body = bytes([0x45, *bytes(11)]) + socket.inet_aton(source) + socket.inet_aton(target)
    return head + body + (bytes(20) if segment else b"") + payload


def test_a_packet_is_as_long_as_the_frames_that_it_is_cut_into() -> None:
    # 20 bytes of IP, 14 of Ethernet.
    assert wire_bytes(packet("10.0.0.1", "10.0.0.2", bytes(100))) == 134
    # 3,000 bytes in segments of 1,448: three frames, each with 40 bytes of IP and TCP and 14 of Ethernet.
    assert wire_bytes(packet("10.0.0.1", "10.0.0.2", bytes(3000), segment=1448)) == 3000 + 3 * 54


def test_rate_and_round_trip_between_two_hosts() -> None:
    radio = Link(up=Direction(20, 10), down=Direction(50, 15))
    wire = Link(up=Direction(1000, 1), down=Direction(100, 2))
    assert rate_between(radio, wire) == 20
    assert rate_between(wire, radio) == 50
    assert rate_between(Link(), Link()) is None
    assert round_trip_between(radio, wire) == round_trip_between(wire, radio) == 28


HOSTS = ("10.0.0.1", "10.0.0.2")


@pytest.fixture
def devices() -> Iterator[tuple[Router, list[socket.socket]]]:
    """A running router of two hosts, and the ends of their devices."""
    made = Router()
    ends: list[socket.socket] = []
    inner: list[socket.socket] = []
    for address, link in zip(HOSTS, (Link(up=Direction(8, 20)), Link(down=Direction(None, 30))), strict=True):
        end, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        device.setblocking(False)
        end.settimeout(5)
        made.add(Port(device.fileno(), link), socket.inet_aton(address))
        ends.append(end)
        inner.append(device)
    read, write = os.pipe()
    thread = threading.Thread(target=made.run, args=(read, lambda: False))
    thread.start()
    yield made, ends
    os.write(write, b".")
    thread.join()
    for each in (*ends, *inner):
        each.close()
    os.close(read)
    os.close(write)


def test_packets_arrive_in_order_after_what_the_links_take(
    devices: tuple[Router, list[socket.socket]],
) -> None:
    _, (first, second) = devices
    start = time.monotonic()
    sent = [packet(*HOSTS, bytes([number]) * 1000) for number in range(5)]
    for each in sent:
        first.send(each)
    assert [second.recv(4096) for _ in sent] == sent
    # 5 x 1,034 bytes at a byte a microsecond, 20 ms up and 30 ms down.
    assert time.monotonic() - start >= 5 * 1034e-6 + 0.05
    back = packet(HOSTS[1], HOSTS[0], b"back")
    answers = []
    for _ in range(5):
        start = time.monotonic()
        second.send(back)
        assert first.recv(4096) == back
        answers.append(time.monotonic() - start)
    assert min(answers) < 0.05


def test_what_goes_nowhere_or_is_no_ipv4_is_dropped_and_the_rest_goes_on(
    devices: tuple[Router, list[socket.socket]],
) -> None:
    _, (first, second) = devices
    for strange in (b"", b"short", packet(HOSTS[0], "10.9.9.9", b"x"), packet(HOSTS[0], HOSTS[0], b"x")):
        first.send(strange)
    first.send(HEADER.pack(0, 0, 0, 0, 0, 0) + bytes([0x60]) + bytes(60))
    good = packet(*HOSTS, b"good")
    first.send(good)
    assert second.recv(4096) == good
