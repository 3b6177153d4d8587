"""Start the first process of a machine (`machine_init.py`) in namespaces of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from src.machine.namespaces import NotAllowed

INIT = Path(__file__).with_name("machine_init.py")
# Where programs leave files for a while: these folders are each machine's own.
OWN_FOLDER = Path(tempfile.gettempdir())
TEMPORARY = ("/tmp", str(OWN_FOLDER), "/dev/shm", "/run")


def boot(
    number: int,
    holder: int,
    addresses: Sequence[str],
    seen: Sequence[Path],
    hidden: Sequence[Path],
    environment: Mapping[str, str],
) -> subprocess.Popen[str]:
    """Start machine `number`, with the network of the process `holder`; `answer` waits for it.

    It sees the folders `seen` wherever they lie, and empty ones instead of `hidden`. Machines know each other
    by name, in the order of `addresses`.
    """
    hosts = "".join(f"{address} machine{i}\n" for i, address in enumerate(addresses, 1))
    description = {
        "hostname": f"machine{number}",
        "hosts": f"127.0.0.1 localhost\n{hosts}",
        "hidden": [*TEMPORARY, *map(str, hidden)],
        "kept": [*map(str, seen)],
    }
    network = ["nsenter", f"--net=/proc/{holder}/ns/net"]
    others = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
    first = [sys.executable, "-I", "-S", str(INIT), json.dumps(description)]
    return subprocess.Popen(
        # With the thread that starts it ends what becomes unshare, and with that the machine's first process.
        ["setpriv", "--pdeathsig", "KILL", *network, *others, *first],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def answer(number: int, process: subprocess.Popen[str]) -> int:
    """Return the id of the first process of machine `number`, once the machine is set up.

    Raises:
        NotAllowed: where the system forbids it.
    """
    assert process.stdout is not None and process.stderr is not None
    said = process.stdout.readline().strip()
    if not said.isdigit():
        reason = said or process.stderr.read().strip() or "its first process ended at once"
        raise NotAllowed(f"machine {number}: {reason}")
    return int(said)


def environment_folders() -> list[Path]:
    """Return where this Python and its packages are installed."""
    return [Path(sys.prefix), Path(sys.base_prefix), *package_folders()]


def package_folders() -> list[Path]:
    """Return the folders from which this Python imports what is installed."""
    return [Path(each) for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
