"""Preparation goes on where it was killed, never leaves half a dataset, and says what it can't do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from src.data import prepare
from src.data.samples import Samples
from src.machine import terminal_bar
from tests.data.tiles import SIDE, Tiles
from tests.support import ROOT, has_ended

Until = Callable[[Callable[[], object], float, str], float]
SECONDS = 60.0
# Ten samples a shard.
SHARD_BYTES = 10 * (3 * SIDE * SIDE + 8)
COMMAND = f"""
import sys
from src.data import decoding, prepare
from src.preprocess import main
prepare.SHARD_BYTES = {SHARD_BYTES}
# Two processes, however many cores there are, and however little they have to read.
decoding.SMALL_BYTES = 0
decoding.usable_cores = lambda: [0, 1]
if __name__ == "__main__":
    sys.exit(main(["tiles"]))
"""


def tiles(folder: Path, **options: Any) -> dict[str, Any]:
    """The dataset of tests/data/tiles.py."""
    fixed: dict[str, Any] = {
        "reader": "tests.data.tiles.read",
        "source": "generated",
        "files": {},
        "sources": [],
    }
    return {"name": "tiles", **fixed, "options": {"folder": str(folder), **options}}


class Preparations:
    """Runs preparations of the tiles in `folder`, as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = folder / "prepared" / "tiles-generated"
        self.started: list[subprocess.Popen[str]] = []
        (folder / "conf" / "dataset").mkdir(parents=True)

    def start(self, **options: Any) -> subprocess.Popen[str]:
        """Start one; `options` are the dataset's."""
        dataset = tiles(self.folder, samples=60, **options)
        (self.folder / "conf" / "dataset" / "tiles.yaml").write_text(json.dumps(dataset))
        self.started.append(
            subprocess.Popen(
                [sys.executable, "-c", COMMAND],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return self.started[-1]

    def run(self, **options: Any) -> tuple[int, str]:
        """Run one to its end; return its status and what it printed."""
        process = self.start(**options)
        _, errors = process.communicate(timeout=SECONDS)
        return process.returncode, errors

    def notes(self) -> list[Path]:
        """The notes of finished shards."""
        return list(self.folder.glob("prepared/.tiles-*.partial/notes/*.json"))

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def read(self) -> Counter[int]:
        """How often each sample was read; the first of each split is looked at once more beforehand."""
        return Counter(map(int, (self.folder / "read").read_text().split()))

    def prepared(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.target.iterdir()}


@pytest.fixture
def preparations(tmp_path: Path) -> Iterator[Callable[[str], Preparations]]:
    made: list[Preparations] = []

    def make(name: str) -> Preparations:
        made.append(Preparations(tmp_path / name))
        return made[-1]

    yield make
    for each in made:
        for process in each.started:
            process.kill()
            process.wait()


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def started(preparations: Preparations, until: Until) -> subprocess.Popen[str]:
    """A preparation that has finished some shards, and can't finish the others."""
    process = preparations.start(free=30)

    def finished() -> bool:
        assert process.poll() is None, process.communicate()
        return len(preparations.notes()) >= 3

    until(finished, SECONDS, "three shards")
    return process


def gone(processes: list[psutil.Process]) -> bool:
    return all(has_ended(each.pid) for each in processes)


def test_who_is_killed_leaves_what_is_finished_to_the_next(
    preparations: Callable[[str], Preparations], until: Until
) -> None:
    killed, whole = preparations("killed"), preparations("whole")
    process = started(killed, until)
    workers = children(process)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    until(lambda: gone(workers), SECONDS, "the workers' end")
    assert not killed.target.exists()
    finished = {json.loads(path.read_text())["shard"]["start"] for path in killed.notes()}
    kept = [number for start in finished if start < 30 for number in range(max(start, 1), start + 10)]
    killed.open_gate()
    assert killed.run(free=30) == (0, "")
    assert {killed.read()[number] for number in kept} == {1}

    whole.open_gate()
    assert whole.run(free=30) == (0, "")
    assert set(whole.read()) == set(range(70))
    changed = {"meta.json"}  # the options name the folder
    assert killed.prepared().keys() == whole.prepared().keys()
    assert all(
        killed.prepared()[name] == whole.prepared()[name] for name in whole.prepared().keys() - changed
    )
    first, second = (json.loads(each.prepared()["meta.json"]) for each in (killed, whole))
    assert first | {"fingerprint": ""} == second | {"fingerprint": ""}
    assert first["shards"] == {"train": [10] * 6, "test": [10]}
    assert [path.name for path in killed.target.parent.iterdir()] == ["tiles-generated"]


def test_ctrl_c_is_one_line_and_ends_the_workers(
    preparations: Callable[[str], Preparations], until: Until
) -> None:
    interrupted = preparations("interrupted")
    process = started(interrupted, until)
    workers = children(process)
    # As a terminal does: to all processes of the command.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (130, "interrupted\n")
    until(lambda: gone(workers), SECONDS, "the workers' end")
    assert not interrupted.target.exists()
    assert len(interrupted.notes()) >= 3


def test_a_killed_worker_is_a_sentence_and_the_next_try_goes_on(
    preparations: Callable[[str], Preparations], until: Until
) -> None:
    disturbed = preparations("disturbed")
    process = started(disturbed, until)
    workers = children(process)
    # The last one that was started; the first is Python's own, which looks after semaphores.
    max(workers, key=lambda worker: worker.pid).kill()
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert errors == (
        "error: tiles: a process that reads samples was killed; what is finished is kept for the next try\n"
    )
    until(lambda: gone(workers), SECONDS, "the workers' end")
    disturbed.open_gate()
    assert disturbed.run(free=30) == (0, "")
    assert disturbed.read()[5] == 1


def test_of_two_at_once_the_second_waits_and_finds_it_done(
    preparations: Callable[[str], Preparations], until: Until
) -> None:
    both = preparations("both")
    first = started(both, until)
    second = both.start(free=30)
    assert second.stderr is not None
    assert f"tiles is being prepared: waiting for pid {first.pid}" in second.stderr.readline()
    both.open_gate()
    assert (first.wait(SECONDS), second.wait(SECONDS)) == (0, 0)
    assert {both.read()[number] for number in range(1, 60)} == {1}
    assert [path.name for path in both.target.parent.iterdir()] == ["tiles-generated"]


def test_what_comes_from_an_older_file_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "SHARD_BYTES", SHARD_BYTES)
    dataset, target = tiles(tmp_path, samples=60) | {"files": {"raw": None}}, tmp_path / "prepared" / "tiles"
    (tmp_path / "raw").touch()
    other = target.with_name(".tiles-0123456789ab.partial")
    other.mkdir(parents=True)
    (other / "left").touch()

    def interrupted(self: Tiles, start: int, stop: int) -> Samples:
        if start == 30:
            raise KeyboardInterrupt
        return read(self, start, stop)

    read = Tiles.read
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Tiles, "read", interrupted)
            prepare.prepare(dataset, tmp_path, target)
    counts = (tmp_path / "read").read_text().split()
    assert counts.count("15") == 1, "the second time went on after the first"
    (work,) = target.parent.iterdir()
    provenance = json.loads((work / "raw.json").read_text())
    (work / "raw.json").write_text(json.dumps(provenance | {"files": "another"}, sort_keys=True))
    prepare.prepare(dataset, tmp_path, target)
    assert (tmp_path / "read").read_text().split().count("15") == 2
    assert [path.name for path in target.parent.iterdir()] == ["tiles"]


def test_without_a_terminal_lines_tell_how_many_samples_are_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal_bar, "LINE_SECONDS", 0)
    prepare.prepare(tiles(tmp_path, samples=60), tmp_path, tmp_path / "tiles")
    assert capsys.readouterr().err.splitlines()[-1] == "  tiles: 70 of 70 samples prepared"
