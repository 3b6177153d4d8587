"""What arrives of a host's changes is written whole and in order, whatever goes wrong meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from src.launch.cluster.arrivals import Arrivals
from src.launch.cluster.engine import HostLost
from src.launch.cluster.run_folder import Piece
from src.run import files

CHECKPOINT = files.CHECKPOINTS["torch"]


def telling(*times: list[Piece]) -> Callable[[], list[Piece]]:
    """A function that tells these changes, one list a call, and then nothing."""
    left = list(times)
    return lambda: left.pop(0) if left else []


def test_what_could_not_be_written_comes_first_at_the_next_call(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, "there")
    changes = telling([Piece("a", 0, b"1"), Piece("b", 0, b"1")], [Piece("a", 1, b"2", appended=True)])
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        arrivals.fetch(changes)
    (tmp_path / "a").rmdir()
    assert arrivals.fetch(changes) is None
    # Nothing is missing in between, which would read as zeros.
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"12", "b": b"1"}


def test_hosts_that_have_a_file_in_common_do_not_disturb_each_other(tmp_path: Path) -> None:
    """As that which tells that a rank is alive, which is there for the ranks of each host."""
    first, second = Arrivals(tmp_path, "first"), Arrivals(tmp_path, "second")
    first.fetch(telling([Piece("alive", 0, b"half", last=False)]))
    second.fetch(telling([Piece("alive", 0, b"whole")]))
    first.fetch(telling([Piece("alive", 4, b" more")]))
    assert [path.name for path in tmp_path.iterdir()] == ["alive"]
    assert (tmp_path / "alive").read_text() == "half more"


def test_the_newest_checkpoint_is_held_back_and_none_of_a_lost_host_is(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, "there")
    held = arrivals.fetch(telling([Piece(CHECKPOINT, 0, b"old")], [Piece(CHECKPOINT, 0, b"new")]))
    assert held is not None and held.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [held] and held.name.startswith(f".{CHECKPOINT}")
    held.unlink()

    def lost() -> list[Piece]:
        if list(tmp_path.iterdir()):
            raise HostLost("for the test")
        return [Piece(CHECKPOINT, 0, b"newer")]

    with pytest.raises(HostLost):
        arrivals.fetch(lost)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_fetched_after_the_end(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path, "there")
    arrivals.fetch(telling([Piece("a", 0, b"1")]))
    arrivals.end()
    # The host removes its files then.
    arrivals.fetch(telling([Piece("a", 0, b"", removed=True)]))
    assert (tmp_path / "a").exists() and arrivals.names == {"a"}
