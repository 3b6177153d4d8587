"""Find the cgroups of this process, of version 1 or 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

MOUNT, PROC = Path("/sys/fs/cgroup"), Path("/proc")


def own(controller: str) -> Iterator[tuple[int, tuple[Path, Path]]]:
    """Yield the version of each hierarchy with a controller, and two folders; one is this process's group.

    That is the second one where the mount shows the group of a container as its root.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (PROC / "self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            # Under version 1 there is a hierarchy for each controller.
            yield 1, (MOUNT / f"{controller}{path}", MOUNT / controller)
        elif not controllers:
            yield 2, (MOUNT / path.lstrip("/"), MOUNT)
