"""A namespace keeps what listens inside to itself, whoever makes it, and ends with its maker."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from src.machine.namespaces import Namespace, NotAllowed
from tests.support import has_ended

ROOT = Path(__file__).parents[2]
# An ordinary user, who may read this Python wherever it lies, and nothing else.
ORDINARY = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
)  # fmt: skip
# Root of a user namespace that may have no network namespaces.
FORBIDDEN = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', "sh")


def needs(prefix: Sequence[str]) -> None:
    """Skip the test where this machine can't run commands under `prefix`, or make a namespace."""
    if prefix and (shutil.which(prefix[0]) is None or subprocess.run([*prefix, "true"]).returncode):
        pytest.skip(f"{prefix[0]} isn't there, or may not do that")
    try:
        Namespace().close()
    except NotAllowed as reason:
        pytest.skip(f"no network namespace here: {reason}")


@contextlib.contextmanager
def maker(prefix: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process that has made a namespace, in which another one listens, and what it tells."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.machine.namespace_maker"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def addresses() -> list[str]:
    """This host's IPv4 addresses."""
    found = [address for each in psutil.net_if_addrs().values() for address in each]
    return [address.address for address in found if address.family == socket.AF_INET]


@pytest.mark.parametrize(("prefix", "user"), [((), os.getuid()), (ORDINARY, 65534)], ids=["this", "ordinary"])
def test_what_listens_inside_is_reached_from_inside_alone(prefix: Sequence[str], user: int) -> None:
    needs(prefix)
    with maker(prefix) as (_, facts):
        assert facts["interfaces"] == ["lo"]
        assert facts["user"] == user
        assert facts["received"] == "inside"
        assert facts["sent"] >= len("inside")
        for address in addresses():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, facts["port"]), timeout=2)


def test_the_namespace_ends_with_its_maker_even_a_killed_one(until: Callable[..., float]) -> None:
    needs(())
    with maker() as (process, facts):
        process.kill()
        process.wait()
        until(lambda: has_ended(facts["holder"]), 5, "the holder ends")


def test_a_system_that_forbids_it_is_asked_why() -> None:
    needs(FORBIDDEN)
    code = "from src.machine.namespaces import Namespace; Namespace()"
    asked = subprocess.run([*FORBIDDEN, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert asked.stderr.splitlines()[-1] == f"{NotAllowed.__module__}.NotAllowed: user.max_net_namespaces=0"
