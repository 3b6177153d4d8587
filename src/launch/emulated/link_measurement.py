"""Measure a run's emulated links while they are idle."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.launch.emulated.hosts import EmulatedHost, EmulatedHosts
from src.launch.host import Host
from src.machine.link import rate_between, round_trip_between
from src.run import files
from src.run.progress import phase
from src.run.tables import write_text

# Measuring takes some seconds, which a user without a terminal is told of after as many.
SILENT_SECONDS = 5.0
# Limit for one way to be measured.
LIMIT_SECONDS = 120.0
# How much earlier than its parent a probe may notice that the switch has ended.
NOTICE_SECONDS = 0.5
ENDED = "the switch has ended"


class NotMeasured(Exception):
    """The error where a host doesn't answer, or the switch has ended; the run can't go on."""


def record(hosts: EmulatedHosts, out: Path) -> float:
    """Measure a run's links, unless that was done, and write `network.json` into its directory `out`.

    Returns how many seconds that took.

    Raises:
        NotMeasured: where a host doesn't answer.
    """
    path = out / files.NETWORK
    if not hosts.placed or path.exists():
        return 0.0
    started = time.monotonic()
    with phase(f"measuring the links of {len(hosts.placed)} emulated hosts", SILENT_SECONDS):
        links = measure(hosts.placed, hosts.own[0].process.pid)
    placed = {
        name: {"address": host.address, "link": host.link.describe(), "made_by": host.made_by}
        for name, host in hosts.placed.items()
    }
    write_text(path, json.dumps({"switch": hosts.facts, "hosts": placed, "links": links}, indent=1))
    return time.monotonic() - started


def measure(placed: Mapping[str, EmulatedHost], switch: int) -> list[dict[str, Any]]:
    """Measure the way from each host to the next one, and from the last to the first, one after the other.

    Each link so is measured once in each direction.

    Args:
        placed: the hosts by name.
        switch: the process that joins them.

    Returns:
        `from` and `to` of each way, what was asked of it and what was measured: `rate_mbit`, `round_trip_ms`.

    Raises:
        NotMeasured: where a host doesn't answer.
    """
    names = list(placed)
    ways = zip(names, names[1:] + names[:1], strict=True) if len(names) > 1 else ()
    found = []
    for sender, receiver in ways:
        here, there = placed[sender], placed[receiver]
        asked = {
            "rate_mbit": rate_between(here.link, there.link),
            "round_trip_ms": round_trip_between(here.link, there.link),
        }
        measured = _probe(here, there, switch)
        found.append({"from": sender, "to": receiver, "asked": asked, "measured": measured})
    return found


def _probe(sender: Host, receiver: Host, switch: int) -> dict[str, float]:
    """Have a process on each of two hosts measure the way between them."""
    with contextlib.ExitStack() as ended:
        serving = ended.enter_context(_start(sender, "serve", sender.address))
        ended.callback(serving.kill)
        port = _line_of(serving, switch)
        asking = ended.enter_context(_start(receiver, "ask", sender.address, port))
        ended.callback(asking.kill)
        measured: dict[str, float] = json.loads(_line_of(asking, switch))
    return measured


def _line_of(probe: subprocess.Popen[str], switch: int) -> str:
    """Return the line that a probe's process prints; raise `NotMeasured` where the switch ends first."""
    assert probe.stdout is not None and probe.stderr is not None
    try:
        ends = os.pidfd_open(switch)
    except ProcessLookupError:
        raise NotMeasured(ENDED) from None
    try:
        ready = select.select([probe.stdout.fileno(), ends], [], [], LIMIT_SECONDS)[0]
        line = probe.stdout.readline().strip() if probe.stdout.fileno() in ready else ""
        if line:
            return line
        # A probe may notice before its parent does.
        if select.select([ends], [], [], NOTICE_SECONDS)[0]:
            raise NotMeasured(ENDED)
    finally:
        os.close(ends)
    if not ready:
        raise NotMeasured(f"no answer within {LIMIT_SECONDS:g} s")
    raise NotMeasured(f"a host can't be measured: {probe.stderr.read().strip()[-300:]}")


def _start(host: Host, *arguments: str) -> subprocess.Popen[str]:
    """Start the probe's process on a host."""
    return subprocess.Popen(
        [sys.executable, "-m", "src.launch.emulated.link_probe", str(os.getpid()), *arguments],
        env={**os.environ, **host.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
