"""Say why a training failed: a mistake that the ranks found, a full disk, or a process's last lines."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.data.errors import mount_point
from src.launch.supervise.job_result import JobResult
from src.machine.folders import FULL
from src.run import files
from src.run.status import Status

# A file system without room for as much counts as full.
PROBE_BYTES = 64 * 1024
# So many last lines of a log are shown; and what names an error: in Python, or by a word of its own.
LINES = 8
NAMED = re.compile(r"\w(Error|Exception)\b|\b(error|fatal|not found|no such file|denied)\b", re.IGNORECASE)


def mistake_of(job: JobResult, out: Path) -> str | None:
    """Return the sentence in which a rank describes the user's mistake, `None` if there is none."""
    # A run with a mistake is removed, but not one that completed steps before a restart.
    if job.outcome.code != Status.MISTAKE.process or job.restarts:
        return None
    blamed = job.blamed()
    assert blamed is not None
    return (files.rank_folder(out, blamed.rank) / files.MISTAKE).read_text()


def report_failure(job: JobResult, out: Path) -> None:
    """Print why a training failed: its reason, and the last lines of the blamed process's log."""
    blamed = job.blamed()
    # A process that couldn't even open its log can't say why it failed.
    if job.outcome.code == Status.DISK_FULL.process or _is_full(out):
        there = None if blamed is None or _is_full(out) else blamed.host.describe()
        print(disk_full(out) if there is None else _host_full(there, out), file=sys.stderr)
    if job.outcome.timed_out or blamed is None:
        limit = "its wall-clock limit (2 x max_minutes + hardware.grace_minutes)"
        print(
            f"error: the run took longer than {limit}; the ranks' logs are in {out / files.LOGS}",
            file=sys.stderr,
        )
        return
    text = blamed.log.read_text(errors="replace") if blamed.log.exists() else ""
    print(f"error: {job.describe_failure()}; its log is {blamed.log}", file=sys.stderr)
    for line in _telling(text):
        print(f"  | {line}", file=sys.stderr)


def _telling(text: str) -> list[str]:
    """Return the last lines of a log; if none of them names an error, the last one that does before them."""
    lines = [line for line in text.splitlines() if line.strip()]
    before, last = lines[:-LINES], lines[-LINES:]
    named = [line for line in before if NAMED.search(line)]
    # A launcher says in a banner that it has failed, below what says why.
    return last if not named or any(map(NAMED.search, last)) else [named[-1], "...", *last]


def _is_full(folder: Path) -> bool:
    """Return whether there is no room for a small file in a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, PROBE_BYTES)
    except OSError as error:
        return error.errno in FULL
    return False


def _host_full(host: Mapping[str, Any], out: Path) -> str:
    """Return the message for a full disk of another host, of which these are the facts."""
    return (
        f"error: the file system for temporary files of host {host['address']} ({host['name']}) is full; "
        f"what was recorded before is in {out}, and the run can be repeated once there is room"
    )


def disk_full(path: Path) -> str:
    """Return the message for a full disk, on which the run's directory `path` is."""
    mount = mount_point(path)
    free = shutil.disk_usage(mount).free
    return (
        f"error: the file system at {mount} is full ({free:,} bytes free); what was recorded before is in "
        f"{path}, and the run can be repeated once there is room"
    )
