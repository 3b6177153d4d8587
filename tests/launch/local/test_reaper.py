"""Whatever ends a command, what it has made besides its run's directory is removed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from src.machine import quota
from tests.conftest import Commands
from tests.support import ROOT

Until = Callable[[Callable[[], object], float, str], float]
MPICH = "mpich_shm_scaleguide_test"
# What a command does, and how it ends.
MAKE = """
import mmap, os, subprocess, sys, time
from src.launch.local import reaper
folder, pid = sys.argv[1], os.getpid()
pipe = reaper.remove_at_end("segments", repr(time.time()))
reaper.remove_at_end("folder", folder)
reaper.remove_at_end("cgroups", f"{folder}-group-{pid}-")
for number in range(2):
    os.mkdir(f"{folder}-group-{pid}-{number}")
for name in ("left", "mapped"):
    with open(f"/dev/shm/mpich_shm_scaleguide_test_{pid}_{name}", "wb") as file:
        file.write(b"x")
child = "import mmap, sys, time; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 1); "
child += "print('mapped', flush=True); time.sleep(600)"
path = f"/dev/shm/mpich_shm_scaleguide_test_{pid}_mapped"
other = subprocess.Popen([sys.executable, "-c", child, path], stdout=subprocess.PIPE)
other.stdout.readline()
inheriting = subprocess.Popen(["sleep", "600"], pass_fds=[pipe])
print(pid, other.pid, inheriting.pid, flush=True)
"""
ENDS = {"return": "", "exit": "os._exit(0)", "kill": "time.sleep(600)"}


@pytest.fixture
def segments() -> Iterator[None]:
    yield
    for path in Path("/dev/shm").glob(f"{MPICH}_*"):
        path.unlink()


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_all_is_removed_once_the_command_and_those_that_inherit_have_ended(
    tmp_path: Path, segments: None, until: Until, end: str
) -> None:
    folder = tmp_path / "made"
    (folder / "deep").mkdir(parents=True)
    old = Path(f"/dev/shm/{MPICH}_old")
    old.touch()
    os.utime(old, (time.time() - 60,) * 2)
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE + ENDS[end], str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid, other, inheriting = map(int, process.stdout.readline().split())
    try:
        left, mapped = (Path(f"/dev/shm/{MPICH}_{pid}_{name}") for name in ("left", "mapped"))
        if end == "kill":
            process.kill()
        process.wait()
        # One that inherits the pipe may still use what it has made.
        assert folder.exists() and left.exists()
        os.kill(inheriting, signal.SIGKILL)
        until(lambda: list(tmp_path.iterdir()) == [], 10, "the removal")
        until(lambda: not left.exists(), 10, "the removal of the segment")
        # In use, and older than the command.
        assert mapped.exists() and old.exists()
    finally:
        for number in (other, inheriting):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def test_a_command_waits_for_the_removal_as_it_ends(tmp_path: Path) -> None:
    made = str(tmp_path / "made")
    code = f"from src.launch.local import reaper; reaper.remove_at_end('folder', {made!r})"
    code += f"; import os; os.mkdir({made!r}); print(os.listdir({str(tmp_path)!r}))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "['made']\n"), ended.stderr
    assert list(tmp_path.iterdir()) == []


RUN = (
    "workers=2", "model=mlp", "epochs=1000", "out=run", "tracking.backend=none",
    "hardware.device=cpu", "hardware.share_devices=true",
)  # fmt: skip
KINDS = {
    "shared memory": ("strategy=ddp",),
    "hogwild": ("strategy=hogwild",),
    "mpi": ("strategy=mpi",),
    "cgroups": ("strategy=ddp", "hardware.speeds=[1,0.5]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_is_killed_as_it_starts_leaves_nothing(
    mnist: None, commands: Commands, until: Until, tmp_path: Path, kind: str
) -> None:
    if kind == "cgroups":
        try:
            quota.find()
        except quota.NotAllowed as error:
            pytest.skip(str(error))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    generator = random.Random(kind)

    def left() -> list[object]:
        """What is there of the command, and wasn't before."""
        memory = {path.name for path in Path("/dev/shm").glob("scaleguide*")} | mpich_segments()
        found = [*commands.left(), *(memory - before), *temporary.iterdir()]
        if kind == "cgroups":
            found += quota.find().folder.glob(f"{quota.PREFIX}{process.pid}-*")
        return found

    for _ in range(2):
        before = mpich_segments()
        process = commands.start(*RUN, *KINDS[kind], TMPDIR=str(temporary))
        time.sleep(generator.uniform(0.3, 3))
        process.kill()
        process.wait()
        until(lambda: left() == [], 20, "the end of all that the command has made")


def mpich_segments() -> set[str]:
    """The shared memory of MPICH that has a name and no process."""
    named = {path.name for path in Path("/dev/shm").glob("mpich_shm_*")}
    used = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            used += maps.read_text()
    return {name for name in named if name not in used}
