"""Find the cgroups of this process, of version 1 or 2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

MOUNT, PROC = Path("/sys/fs/cgroup"), Path("/proc")


def own(controller: str) -> Iterator[tuple[int, tuple[Path, ...]]]:
    """Yield the version of each hierarchy with a controller, and the folders of this process's groups.

    The first is its own, the others are those above.
    A limit of any of them holds. The last one is the root of the mount, which may be the group of a
    container.
    """
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (PROC / "self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            # Under version 1 there is a hierarchy for each controller.
            yield 1, _levels(MOUNT / controller, path)
        elif not controllers:
            yield 2, _levels(MOUNT, path)


def _levels(root: Path, path: str) -> tuple[Path, ...]:
    """Return the folders of the group `path` and of those above it, the last of which is the mount `root`."""
    shown = _shown_at(root)
    parts = [part for part in path.removeprefix(shown).split("/") if part]
    return tuple(root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))


def _shown_at(root: Path) -> str:
    """Return the group that a mount shows as its root, without a slash at its end.

    A container's own may have groups within, while its processes know the whole path on the host.
    """
    with contextlib.suppress(OSError):
        # proc(5): the number of a mount, its parent's, its device, the folder that it shows, and where.
        for line in (PROC / "self/mountinfo").read_text().splitlines():
            words = line.split(" ")
            if words[4] == str(root):
                return words[3].rstrip("/")
    return ""
