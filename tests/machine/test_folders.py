"""Where no folder can be made is told before anything is, and nothing is left by asking."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from src.machine.folders import FULL, obstacle
from tests.support import mounted


def test_a_folder_that_can_be_made_has_no_obstacle_and_is_not_made(tmp_path: Path) -> None:
    assert obstacle(tmp_path) is None
    assert obstacle(tmp_path / "a/b/c") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("file", "is a file"),
        ("file/x/y", "file is a file"),
        ("dangling", "is a link to nowhere, which isn't there"),
        ("dangling/x", "dangling is a link to nowhere, which isn't there"),
        ("round", "is a link to round"),
        ("x" * 250, "File name too long"),
        ("/".join(["x" * 200] * 20), "File name too long"),
        ("a\0b", "null character"),
    ],
)
def test_an_obstacle_is_told_in_words(tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "round").symlink_to("round")
    before = set(tmp_path.iterdir())
    assert says in str(obstacle(tmp_path / path))
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("path", ["/proc/x", "/proc/self", "/sys/x/y", "/dev/x", "/dev/fd/x"])
def test_the_kernels_own_folders_are_refused(path: str) -> None:
    assert "can't be written" in str(obstacle(Path(path)))


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no /dev/shm to write to")
def test_shared_memory_is_a_disk() -> None:
    assert obstacle(Path("/dev/shm/scaleguide-test")) is None


def test_a_full_disk_is_raised(tmp_path: Path) -> None:
    # The one inode is that of the root folder.
    with mounted(tmp_path / "disk", "nr_inodes=1") as disk, pytest.raises(OSError, match="No space") as full:
        obstacle(disk)
    assert full.value.errno in FULL
