"""Measure a run's emulated links while they are idle; `python -m src.launch.links --clean` ends left ones."""

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

import psutil

from src.launch.host import LocalHost
from src.launch.hosts import Hosts
from src.machine.links import rate_between, round_trip_between
from src.run import files
from src.run.progress import Phase
from src.run.tables import write_text

# Measuring takes some seconds, which a user without a terminal is told of after as many.
SILENT_SECONDS = 5.0
# Limit for one way to be measured.
LIMIT_SECONDS = 120.0
# How much earlier than its parent a probe may notice that the switch has ended.
NOTICE_SECONDS = 0.5
ENDED = "the switch has ended"
# A killed process is gone at once, unless the kernel is busy.
END_SECONDS = 5.0
SWITCH_MODULE = "src.machine.switch"


class NotMeasured(Exception):
    """The error where a host doesn't answer, or the switch has ended; the run can't go on."""


def record(hosts: Hosts, out: Path) -> float:
    """Measure a run's links, unless that was done, and write `network.json` into its directory `out`.

    Returns how many seconds that took; there is nothing to measure where the hosts aren't emulated.

    Raises:
        NotMeasured: where a host doesn't answer.
    """
    path = out / files.NETWORK
    if not hosts.placed or path.exists():
        return 0.0
    started = time.monotonic()
    with Phase(f"measuring the links of {len(hosts.placed)} emulated hosts", SILENT_SECONDS):
        links = measure(hosts.placed, hosts.own[0].process.pid)
    placed = {
        name: {
            "address": host.address,
            "link": host.link.describe() if host.link else None,
            "made_by": host.made_by,
        }
        for name, host in hosts.placed.items()
    }
    write_text(path, json.dumps({"switch": hosts.facts, "hosts": placed, "links": links}, indent=1))
    return time.monotonic() - started


def measure(placed: Mapping[str, LocalHost], switch: int) -> list[dict[str, Any]]:
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
        assert here.link is not None and there.link is not None, "emulated hosts have links"
        asked = {
            "rate_mbit": rate_between(here.link, there.link),
            "round_trip_ms": round_trip_between(here.link, there.link),
        }
        measured = _probe(here, there, switch)
        found.append({"from": sender, "to": receiver, "asked": asked, "measured": measured})
    return found


def _probe(sender: LocalHost, receiver: LocalHost, switch: int) -> dict[str, float]:
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
    """Return the line that a probe's process prints, unless the switch ends first.

    Raises:
        NotMeasured: where it prints none.
    """
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


def _start(host: LocalHost, *arguments: str) -> subprocess.Popen[str]:
    """Start the probe's process on a host."""
    return subprocess.Popen(
        [sys.executable, "-m", "src.machine.link_probe", str(os.getpid()), *arguments],
        env={**os.environ, **host.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left() -> list[psutil.Process]:
    """Return the switches and holders of this user whose parent has ended, and that should have with it."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError):
            words = each.cmdline()
            if SWITCH_MODULE in words and each.uids().real == os.getuid():
                parent = int(words[words.index(SWITCH_MODULE) + 1])
                # A holder has its switch's command line; the parent's number may be somebody else's by now.
                if not _is_ancestor(parent, each):
                    found.append(each)
    return found


def _is_ancestor(parent: int, child: psutil.Process) -> bool:
    return any(each.pid == parent for each in child.parents())


def clean() -> list[str]:
    """End left switches, and all processes in the networks that they hold; return what was ended."""
    found = left()
    # All before the first is killed: with a switch its holders go, and what tells of their networks.
    for each in tuple(found):
        with contextlib.suppress(OSError):
            found += _inside(os.readlink(f"/proc/{each.pid}/ns/net"))
    ended: dict[psutil.Process, str] = {}
    for each in found:
        with contextlib.suppress(psutil.Error):
            ended[each] = f"{each.pid} {' '.join(each.cmdline())[:80]}"
    for each in ended:
        with contextlib.suppress(psutil.Error):
            each.kill()
            each.wait(END_SECONDS)
    return list(ended.values())


def _inside(network: str) -> list[psutil.Process]:
    """Return the processes of a network namespace, which must not be this one's."""
    found = []
    if network == os.readlink("/proc/self/ns/net"):
        return []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.readlink(f"/proc/{each.pid}/ns/net") == network:
                found.append(each)
    return found


def main() -> int:
    """End what is left, as the command line asks, and say what that was."""
    if sys.argv[1:] != ["--clean"]:
        print("usage: python -m src.launch.links --clean", file=sys.stderr)
        return 2
    ended = clean()
    for each in ended:
        print(f"ended {each}")
    print(f"{len(ended)} process(es) of emulated hosts were left; {len(left())} are left now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
