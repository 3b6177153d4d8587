"""Emulated hosts reach each other by links as asked, nobody else, and are gone with whoever made them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from src.launch.emulated import link_measurement
from src.launch.emulated.hosts import SWITCH_MODULE, EmulatedHost
from src.launch.emulated.switch import SwitchError, run
from src.machine import namespaces
from src.machine.link import Direction, Link

ROOT = Path(__file__).parents[3]
VPN = Link(Direction(20, 10), Direction(20, 10))
LAN = Link(Direction(1000), Direction(1000))
RADIO = Link(Direction(100, 1.5), Direction(100, 1.5))
MAKER = f"""
import os, subprocess, sys
switch = subprocess.Popen([sys.executable, "-m", "{SWITCH_MODULE}", str(os.getpid())])
print(switch.pid, flush=True)
switch.wait()
"""


class Switch:
    """A switch whose parent is another process, as `src.train` is one."""

    def __init__(self) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-c", MAKER],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.parent.stdout is not None
        self.pid = int(self.parent.stdout.readline())
        first = self.hear()
        if "error" in first:
            self.end()
            pytest.skip(f"no emulated hosts here: {first['error']}")
        self.ready = first["ready"]
        self.holders: list[int] = []

    def hear(self) -> dict[str, Any]:
        assert self.parent.stdout is not None
        return json.loads(self.parent.stdout.readline())

    def host(self, link: Link) -> EmulatedHost:
        assert self.parent.stdin is not None
        self.parent.stdin.write(json.dumps({"name": "any", "link": link.describe()}) + "\n")
        self.parent.stdin.flush()
        made = self.hear()
        if "error" in made:
            pytest.skip(f"no such link here: {made['error']}")
        self.holders.append(made["holder"])
        environment = namespaces.variable_of(made["holder"])
        place = made["address"], made["interface"], environment, made["holder"]
        return EmulatedHost(*place, link=link, made_by=made["by"])

    def end(self) -> None:
        self.parent.kill()
        self.parent.communicate()


@pytest.fixture
def switch() -> Iterator[Switch]:
    made = Switch()
    yield made
    made.end()


def network(process: int) -> str:
    return os.readlink(f"/proc/{process}/ns/net")


def users(networks: set[str]) -> list[int]:
    """Processes in one of these network namespaces."""
    found = []
    for each in psutil.pids():
        with contextlib.suppress(OSError):
            if network(each) in networks:
                found.append(each)
    return found


def test_rate_and_round_trip_are_as_asked_and_bytes_cross_the_interfaces(switch: Switch) -> None:
    hosts = {"lan": switch.host(LAN), "vpn": switch.host(VPN), "radio": switch.host(RADIO)}
    # Both ways, through the kernel alone, through the router, and from one to the other.
    by = "netem" if switch.ready["netem"] else "router"
    assert [host.made_by for host in hosts.values()] == ["tbf", by, by]
    for way in link_measurement.measure(hosts, switch.pid):
        asked, measured = way["asked"], way["measured"]
        # Other tests keep the cores busy: `python -m bench.link_accuracy` is exact.
        assert 0.7 * asked["rate_mbit"] < measured["rate_mbit"] < 1.1 * asked["rate_mbit"], way
        assert asked["round_trip_ms"] <= measured["round_trip_ms"] < asked["round_trip_ms"] + 10, way


def test_without_a_limit_hosts_are_joined_plainly(switch: Switch) -> None:
    assert [switch.host(Link()).made_by, switch.host(Link()).made_by] == ["plain", "plain"]


def test_hosts_see_their_own_interface_and_nothing_of_this_machine(switch: Switch) -> None:
    host = switch.host(RADIO)
    seen = (
        "from src.machine import interfaces, namespaces; namespaces.enter(); print(*interfaces.counters_of())"
    )
    names = subprocess.run(
        [sys.executable, "-c", seen],
        cwd=ROOT,
        env={**os.environ, **host.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert names.stdout.split() == ["lo", "eth0"]
    before = set(os.listdir("/sys/class/net"))
    switch.host(LAN)
    assert set(os.listdir("/sys/class/net")) == before


@pytest.mark.parametrize("killed", ["parent", "switch"])
def test_everything_ends_with_the_parent_or_the_switch_even_if_they_are_killed_or_stand_still(
    switch: Switch, until: Callable[..., float], killed: str
) -> None:
    switch.host(VPN)
    switch.host(LAN)
    networks = {network(switch.pid), *map(network, switch.holders)}
    assert len(networks) == 3
    assert len(users(networks)) == 3
    # What stands still is ended, too.
    os.kill(switch.holders[0], signal.SIGSTOP)
    if killed == "parent":
        os.kill(switch.pid, signal.SIGSTOP)
        switch.parent.kill()
    else:
        os.kill(switch.pid, signal.SIGKILL)
    until(lambda: not users(networks), 5, "nobody is left")


def test_what_the_system_refuses_is_an_error_in_its_own_words() -> None:
    with pytest.raises(SwitchError, match='tc qdisc del dev nowhere root: Cannot find device "nowhere"'):
        run("tc", "qdisc", "del", "dev", "nowhere", "root")
    with pytest.raises(SwitchError, match=r"nosuchprogram is missing \(Debian: apt-get install iproute2\)"):
        run("nosuchprogram")


def test_a_link_whose_switch_has_ended_is_not_waited_for(switch: Switch) -> None:
    hosts = {"one": switch.host(VPN), "two": switch.host(VPN)}
    os.kill(switch.pid, signal.SIGKILL)
    with pytest.raises(link_measurement.NotMeasured, match="the switch has ended"):
        link_measurement.measure(hosts, switch.pid)


def test_clean_ends_what_a_lost_parent_left_and_nothing_else(
    switch: Switch, until: Callable[..., float]
) -> None:
    switch.host(LAN)
    # As if the kernel had not told this one: it names a parent that it doesn't have.
    stranger = subprocess.Popen(
        [
            "unshare",
            "-n",
            sys.executable,
            "-c",
            "import time; time.sleep(60)",
            SWITCH_MODULE,
            "1000000000",
        ]
    )
    inside: list[subprocess.Popen[bytes]] = []
    try:
        until(lambda: network(stranger.pid) != network(os.getpid()), 5, "it has a network")
        inside.append(subprocess.Popen(["nsenter", f"--net=/proc/{stranger.pid}/ns/net", "sleep", "60"]))
        until(lambda: network(inside[0].pid) == network(stranger.pid), 5, "somebody is inside")
        cleaning = subprocess.Popen(
            [sys.executable, "-m", "src.launch.links", "--clean"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        # It waits until they are gone, and not only dead.
        assert [each.wait(30) for each in (stranger, *inside)] == [-signal.SIGKILL] * 2
        printed, _ = cleaning.communicate(timeout=30)
        assert cleaning.returncode == 0
        assert f"ended {stranger.pid} " in printed
        assert f"ended {inside[0].pid} sleep 60" in printed
        assert printed.endswith("2 process(es) of emulated hosts were left; 0 are left now\n")
        assert psutil.pid_exists(switch.pid)
        assert all(psutil.pid_exists(holder) for holder in switch.holders)
    finally:
        for each in (stranger, *inside):
            each.kill()
            each.wait()
