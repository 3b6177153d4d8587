"""Keep others out of a run: its processes enter a network namespace where `hardware.isolate` says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from src.config import CannotRunHere, Config
from src.machine.namespaces import NAMESPACE, Namespace, NotAllowed


def isolates(config: Config) -> bool:
    """Return whether a run's processes are to be in a namespace that all of them share.

    Those on emulated hosts have one each.
    Under `auto` they are unless the strategy's file says `loopback: true`: its processes listen on the
    loopback interface alone, and examine what comes there.
    """
    choice = config.hardware.isolate
    if config.across_hosts:
        return False
    return choice == "always" or (choice == "auto" and not config.strategy.get("loopback", False))


def check(config: Config) -> None:
    """Raise `CannotRunHere` where every run is to have a namespace, and the system forbids that."""
    if config.hardware.isolate == "always" and (reason := _why_forbidden()) is not None:
        raise CannotRunHere(
            f"hardware.isolate=always: this system lets no network namespace be made ({reason}); choose auto "
            "or never"
        )


@cache
def _why_forbidden() -> str | None:
    """Return why no namespace can be made here, `None` where one can."""
    try:
        Namespace().close()
    except NotAllowed as reason:
        return str(reason)
    return None


@contextmanager
def isolation(config: Config) -> Iterator[dict[str, Any]]:
    """Within the block, have every process that is started for a run enter a namespace, if it is to.

    Where the system forbids namespaces, a line says so, once a command, and the run goes on without.

    Yields what `environment.json` says of that: `namespace`, whether there is one, and `forbidden`, why there
    couldn't be one, else `None`.
    """
    if not isolates(config):
        yield {"namespace": False, "forbidden": None}
        return
    try:
        namespace = Namespace()
    except NotAllowed as reason:
        _warn(str(reason))
        yield {"namespace": False, "forbidden": str(reason)}
        return
    try:
        # So it reaches those that a launcher starts, and those that they start.
        os.environ |= namespace.environment
        yield {"namespace": True, "forbidden": None}
    finally:
        os.environ.pop(NAMESPACE, None)
        namespace.close()


@cache
def _warn(reason: str) -> None:
    """Print, once, that runs of this command are not isolated."""
    print(
        f"warning: this system lets no network namespace be made ({reason}), so others on this machine, and "
        "on its network, may reach the run's processes; hardware.isolate=never silences this line",
        file=sys.stderr,
        flush=True,
    )
