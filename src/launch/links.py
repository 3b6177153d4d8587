"""End what emulated hosts and links have left here: `python -m src.launch.links --clean`."""

from __future__ import annotations

import contextlib
import os
import sys

import psutil

from src.launch.emulated.hosts import SWITCH_MODULE

# A killed process is gone at once, unless the kernel is busy.
END_SECONDS = 5.0


def left() -> list[psutil.Process]:
    """Return the switches and holders of this user whose parent has ended, and that should have with it."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError):
            words = each.cmdline()
            if SWITCH_MODULE in words and each.uids().real == os.getuid():
                parent = int(words[words.index(SWITCH_MODULE) + 1])
                # A holder has its switch's command line; the parent's number may be somebody else's by now.
                if all(above.pid != parent for above in each.parents()):
                    found.append(each)
    return found


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
