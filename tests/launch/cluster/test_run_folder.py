"""What a host's processes write arrives at the parent, once, and whole."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from src.launch.cluster.run_folder import CHUNK_BYTES, Piece, RunFolder, pieces_of, write


class Pair:
    """A folder on a host, and its copy."""

    def __init__(self, folder: Path) -> None:
        self.there, self.here = folder / "there", folder / "here"
        self.there.mkdir()
        self.here.mkdir()
        self.followed = RunFolder(self.there)

    def fetch(self) -> list[Piece]:
        every = []
        while pieces := self.followed.changes():
            every += pieces
            for piece in pieces:
                write(self.here, piece)
        return every

    def same(self, name: str) -> bool:
        return (self.here / name).read_bytes() == (self.there / name).read_bytes()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_what_grows_is_appended(pair: Pair) -> None:
    with (pair.there / "log").open("w") as log:
        log.write("one\n")
        log.flush()
        assert [piece.data for piece in pair.fetch()] == [b"one\n"]
        before = (pair.here / "log").stat().st_ino
        log.write("two\n")
        log.flush()
        assert [(piece.offset, piece.data) for piece in pair.fetch()] == [(4, b"two\n")]
    # A reader that follows the file goes on.
    assert (pair.here / "log").stat().st_ino == before
    assert pair.same("log")
    assert pair.fetch() == []


def test_what_is_replaced_comes_whole(pair: Pair) -> None:
    (pair.there / "ranks/0").mkdir(parents=True)
    path = pair.there / "ranks/0/record.json"
    path.write_text("first")
    pair.fetch()
    (pair.there / "new").write_text("second and longer")
    os.replace(pair.there / "new", path)
    pair.fetch()
    assert pair.same("ranks/0/record.json")
    path.write_text("cut")
    pair.fetch()
    assert pair.same("ranks/0/record.json")


def test_what_is_written_over_in_place_comes_again(pair: Pair) -> None:
    # As a process announces its exit status.
    path = pair.there / "rank-0.end"
    path.write_text("none")
    pair.fetch()
    with path.open("r+") as file:
        file.write("   0")
    assert path.stat().st_size == 4
    pair.fetch()
    assert pair.same("rank-0.end")


def test_a_large_file_comes_in_pieces_and_appears_complete(pair: Pair) -> None:
    parts = [bytes([number]) * CHUNK_BYTES for number in (1, 2)]
    (pair.there / "checkpoint.pt").write_bytes(b"".join(parts) + b"end")
    (pair.there / "log").write_bytes(b"l")
    seen = []
    while pieces := pair.followed.changes():
        for piece in pieces:
            write(pair.here, piece)
            seen.append((piece.name, piece.data, (pair.here / "checkpoint.pt").exists()))
        # Whoever writes the next one replaces the file, and what has begun to come goes on.
        if len(seen) == 1:
            (pair.there / "next").write_bytes(b"abcdef")
            os.replace(pair.there / "next", pair.there / "checkpoint.pt")
    assert [data for name, data, _ in seen if name == "checkpoint.pt"][:3] == [*parts, b"end"]
    assert [complete for name, _, complete in seen if name == "checkpoint.pt"][:3] == [False, False, True]
    assert pair.same("checkpoint.pt")
    assert pair.same("log")
    assert sorted(path.name for path in pair.here.iterdir()) == ["checkpoint.pt", "log"]


def test_what_the_parent_has_brought_is_no_change(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1")
    (tmp_path / "empty").touch()
    for name in ("config.yaml", "empty"):
        for piece in pieces_of(tmp_path / name, f"given/{name}"):
            pair.followed.put(piece)
    assert (pair.there / "given/config.yaml").read_text() == "a: 1"
    assert (pair.there / "given/empty").exists()
    assert pair.fetch() == []


def test_temporary_files_stay_there(pair: Pair) -> None:
    (pair.there / ".steps.csv.writing").write_text("half")
    assert pair.fetch() == []


def test_what_is_removed_goes_here_too_but_not_what_is_about_to_be_replaced(pair: Pair) -> None:
    (pair.there / "checkpoint.pt").write_text("newest")
    (pair.there / "checkpoint-10.pt").write_text("older")
    pair.fetch()
    (pair.there / "checkpoint-10.pt").unlink()
    (pair.there / "checkpoint.pt").rename(pair.there / "checkpoint-20.pt")
    for piece in pair.followed.changes():
        write(pair.here, piece)
    assert (pair.here / "checkpoint.pt").exists()
    (pair.there / "checkpoint.pt").write_text("newest")
    pair.fetch()
    names = ["checkpoint-20.pt", "checkpoint.pt"]
    assert sorted(path.name for path in pair.here.iterdir()) == names


def test_files_come_and_are_looked_at_in_several_threads(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    stopped = threading.Event()

    def look() -> list[str]:
        found = []
        while not stopped.is_set():
            found += [piece.name for piece in folder.changes()]
        return found

    with ThreadPoolExecutor(2) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        for number in range(150):
            folder.put(Piece(f"{number}", 0, b"text"))
        stopped.set()
    # What the parent has brought is never told as a change.
    assert [each.result() for each in looking] == [[], []]
