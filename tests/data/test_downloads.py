"""An interrupted download goes on where it ended, whatever the server does, and nothing wrong is kept."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from src.data import downloads
from src.data.errors import DataError
from src.data.sources import fetch
from src.machine import terminal_bar
from tests.data.range_server import Served, serve
from tests.support import ROOT

SIZE = 1_000_000
BODY = random.Random(0).randbytes(SIZE)
OTHER = random.Random(1).randbytes(SIZE)
LIMIT_SECONDS = 60


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")


@pytest.fixture
def served() -> Iterator[Served]:
    with serve(Served(BODY)) as server:
        yield server


def dataset(served: Served, checksum: str | None = hashlib.sha256(BODY).hexdigest()) -> dict[str, Any]:
    return {"name": "toy", "files": {"big.bin": checksum}, "sources": [{"url": served.url}]}


def fetched(toy: dict[str, Any], tmp_path: Path) -> bytes:
    fetch(toy, tmp_path / "target", tmp_path / "cache")
    assert not list((tmp_path / "cache" / "incomplete").glob("*"))
    return (tmp_path / "target/big.bin").read_bytes()


def interrupt(served: Served, tmp_path: Path, **checksum: None) -> int:
    """A try that ends after 400,000 bytes; returns how many of them were kept."""
    served.cuts, served.pause = [400_000], None
    toy = dataset(served, **checksum)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "CUTS", 0)
        with pytest.raises(DataError, match="the connection was cut"):
            fetch(toy, tmp_path / "target", tmp_path / "cache")
    (part,) = (tmp_path / "cache" / "incomplete").glob("*/*-big.bin")
    return part.stat().st_size


def test_connections_that_are_cut_are_made_anew_for_the_rest(served: Served, tmp_path: Path) -> None:
    served.cuts = [300_000, 200_000, 100_000]
    assert fetched(dataset(served), tmp_path) == BODY
    assert [asked is not None for asked, _ in served.asked] == [False, True, True, True]
    # Of each connection less than a chunk is lost.
    assert served.sent < SIZE + 3 * downloads.CHUNK


def test_the_next_command_goes_on_where_the_last_one_ended(served: Served, tmp_path: Path) -> None:
    kept = interrupt(served, tmp_path)
    assert kept > 400_000 - downloads.CHUNK
    assert fetched(dataset(served), tmp_path) == BODY
    assert served.asked[-1] == (f"bytes={kept}-", served.etag)
    assert served.sent == 400_000 + SIZE - kept


def test_a_server_that_ignores_ranges_sends_the_whole(served: Served, tmp_path: Path) -> None:
    interrupt(served, tmp_path)
    served.ranges = False
    assert fetched(dataset(served), tmp_path) == BODY


@pytest.mark.parametrize("size", [SIZE, 1000])
def test_a_file_that_has_changed_in_between_is_never_mixed_with_the_old_one(
    size: int, served: Served, tmp_path: Path
) -> None:
    # No checksum would notice it.
    interrupt(served, tmp_path, checksum=None)
    served.body = OTHER[:size]
    assert fetched(dataset(served, checksum=None), tmp_path) == served.body
    assert served.asked[-1][0] is not None


def test_without_a_validator_a_cut_download_begins_anew(served: Served, tmp_path: Path) -> None:
    served.validators, served.cuts = False, [400_000]
    with pytest.raises(DataError, match="the connection was cut"):
        fetch(dataset(served), tmp_path / "target", tmp_path / "cache")
    assert not list((tmp_path / "cache" / "incomplete").glob("*"))
    assert fetched(dataset(served), tmp_path) == BODY
    assert served.asked == [(None, None), (None, None)]


def test_a_whole_file_that_was_not_used_yet_is_not_downloaded_again(served: Served, tmp_path: Path) -> None:
    interrupt(served, tmp_path)
    (part,) = (tmp_path / "cache" / "incomplete").glob("*/*-big.bin")
    part.write_bytes(BODY)
    assert fetched(dataset(served), tmp_path) == BODY
    assert len(served.asked) == 1


def test_a_part_that_was_altered_is_thrown_away_and_the_next_try_succeeds(
    served: Served, tmp_path: Path
) -> None:
    interrupt(served, tmp_path)
    (part,) = (tmp_path / "cache" / "incomplete").glob("*/*-big.bin")
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(DataError, match="its bytes have sha256"):
        fetch(dataset(served), tmp_path / "target", tmp_path / "cache")
    assert fetched(dataset(served), tmp_path) == BODY


def test_checksums_may_be_md5_or_unknown(served: Served, tmp_path: Path) -> None:
    assert fetched(dataset(served, f"md5:{hashlib.md5(BODY).hexdigest()}"), tmp_path / "md5") == BODY
    assert fetched(dataset(served, None), tmp_path / "none") == BODY
    assert fetched(dataset(served, None), tmp_path / "none") == BODY
    assert len(served.asked) == 2, "the cache has what has no checksum, too"
    with pytest.raises(DataError, match=r"its bytes have md5 .*, expected 000000000000"):
        fetched(dataset(served, f"md5:{'0' * 32}"), tmp_path / "wrong")


def test_room_is_looked_for_before_the_first_byte_is_kept(served: Served, tmp_path: Path) -> None:
    served.length = 10**16
    with pytest.raises(DataError, match=r"big.bin: needs 10,000,000,000.0 MB, and the file system .* free"):
        fetch(dataset(served), tmp_path / "target", tmp_path / "cache")
    served.length = None
    unpacked = dataset(served) | {"unpack": {"bytes": 10**16, "files": 1}}
    with pytest.raises(DataError, match=r"needs 1.0 MB and up to 10,000,000,000.0 MB for what it unpacks to"):
        fetch(unpacked, tmp_path / "target", tmp_path / "cache")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_without_a_terminal_progress_is_lines(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal_bar, "LINE_SECONDS", 0)
    fetched(dataset(served), tmp_path)
    assert capsys.readouterr().err.splitlines()[-1] == "big.bin: 1.0 MB of 1.0 MB (100%)"


class Project:
    """A folder with a study of one dataset, and `python -m src.fetch` in it."""

    def __init__(self, folder: Path, toy: dict[str, Any], cache: Path | None = None) -> None:
        self.folder, self.cache = folder, cache or folder / "cache"
        (folder / "conf/dataset").mkdir(parents=True)
        whole = {"reader": "a.read", "source": "original", **toy}
        (folder / "conf/dataset/toy.yaml").write_text(json.dumps(whole))
        (folder / "params.yaml").write_text(json.dumps({"study": {"datasets": ["toy"]}}))

    def start(self) -> subprocess.Popen[str]:
        own = {"PYTHONPATH": str(ROOT), "SCALEGUIDE_CACHE": str(self.cache)}
        return subprocess.Popen(
            [sys.executable, "-m", "src.fetch"],
            cwd=self.folder,
            env=os.environ | own,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kept(self) -> int:
        """How many bytes of the unfinished file there are."""
        return sum(path.stat().st_size for path in self.cache.glob("incomplete/*/*-big.bin"))


def wait_for_part(project: Project, served: Served) -> None:
    """Until the server has sent what it sends, and most of it is on the disk."""
    assert served.pause is not None and served.paused.wait(LIMIT_SECONDS)
    deadline = time.monotonic() + LIMIT_SECONDS
    while project.kept() <= served.pause - 2 * downloads.CHUNK:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_is_ended_in_the_middle_is_gone_on_with(
    number: signal.Signals, served: Served, tmp_path: Path
) -> None:
    served.pause = 600_000
    project = Project(tmp_path, dataset(served))
    first = project.start()
    wait_for_part(project, served)
    first.send_signal(number)
    _, said = first.communicate(timeout=LIMIT_SECONDS)
    if number == signal.SIGINT:
        assert (first.returncode, said.splitlines()[-1]) == (130, "interrupted")
    assert not list((tmp_path / "downloads/toy").iterdir())
    kept, served.pause = project.kept(), None
    second = project.start()
    _, said = second.communicate(timeout=LIMIT_SECONDS)
    assert second.returncode == 0, said
    assert served.asked[-1] == (f"bytes={kept}-", served.etag)
    assert (tmp_path / "downloads/toy/big.bin").read_bytes() == BODY
    assert not list(tmp_path.glob("cache/incomplete/*"))


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (("one", "other"), "toy: big.bin is being fetched: waiting for pid {first}"),
        (("one", "one"), "downloads: waiting for pid {first}"),
    ],
    ids=["of two projects", "of one project"],
)
def test_of_two_commands_at_once_one_downloads_and_the_other_waits(
    folders: tuple[str, str], words: str, served: Served, tmp_path: Path
) -> None:
    served.pause = 100_000
    projects = {name: Project(tmp_path / name, dataset(served), tmp_path / "cache") for name in set(folders)}
    first = projects[folders[0]].start()
    assert served.paused.wait(LIMIT_SECONDS)
    second = projects[folders[1]].start()
    assert second.stderr is not None
    line = second.stderr.readline()
    assert words.format(first=first.pid) in line
    served.go_on.set()
    for command in (first, second):
        _, said = command.communicate(timeout=LIMIT_SECONDS)
        assert command.returncode == 0, said
    assert len(served.asked) == 1
    for name in folders:
        assert (tmp_path / name / "downloads/toy/big.bin").read_bytes() == BODY
        assert not (tmp_path / name / "downloads.lock").exists()
