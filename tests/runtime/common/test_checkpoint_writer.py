"""A checkpoint is written while the training goes on, one at a time, and what goes wrong is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from src.run import variables
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from tests.support import config

PER_EPOCH = 10


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    return make(tmp_path)


def make(folder: Path, *words: str) -> CheckpointWriter:
    arrays: Any = SimpleNamespace(train_samples=8 * PER_EPOCH)
    return CheckpointWriter(RankContext(config("batch=8", *words), 0, 1, arrays, folder, (0,)))


def begin(
    writer: CheckpointWriter, step: int, save: Callable[[Path], None], broken: str | None = None
) -> None:
    epoch, within = divmod(step, PER_EPOCH)
    writer.write(epoch=epoch, step=within, broken=lambda: broken, save=save)


def text(content: str) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        path.write_text(content)

    return save


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def disk() -> Iterator[Any]:
    """A disk that takes what it is given once `ready` is set; `begun` says that it was given something."""
    made = SimpleNamespace(begun=threading.Event(), ready=threading.Event())

    def save(path: Path) -> None:
        made.begun.set()
        assert made.ready.wait(60)
        path.write_text("slow")

    made.save = save
    yield made
    made.ready.set()


def test_the_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, writer: CheckpointWriter, disk: Any
) -> None:
    begin(writer, 5, text("fast"))
    # It returns, though the disk waits for this thread.
    begin(writer, 6, disk.save)
    assert disk.begun.wait(60)
    writer.check()
    # Until it is whole, the one before it is the run's.
    assert files(tmp_path) == {"checkpoint.pt": "fast"}
    disk.ready.set()
    writer.finish(lambda newest: newest == 6)
    assert files(tmp_path) == {"checkpoint.pt": "slow"}


def test_the_next_one_waits_for_the_one_before(tmp_path: Path, writer: CheckpointWriter, disk: Any) -> None:
    begin(writer, 1, disk.save)
    assert disk.begun.wait(60)
    nexts = threading.Thread(target=lambda: begin(writer, 2, text("next")))
    nexts.start()
    nexts.join(0.05)
    assert nexts.is_alive()
    disk.ready.set()
    nexts.join()
    writer.wait()
    assert (tmp_path / "checkpoint.pt").read_text() == "next"


@pytest.mark.parametrize("asked", ["check", "wait", "write"])
def test_an_error_of_the_writing_is_raised_in_the_training(
    tmp_path: Path, writer: CheckpointWriter, asked: str, until: Callable[..., float]
) -> None:
    begin(writer, 1, text("first"))
    writer.wait()

    def save(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    begin(writer, 2, save)
    raised = []

    def ask() -> bool:
        try:
            {"check": writer.check, "wait": writer.wait, "write": lambda: begin(writer, 3, save)}[asked]()
        except OSError as error:
            raised.append(error.errno)
        return bool(raised)

    until(ask, 60, "the error")
    assert raised == [28]
    assert files(tmp_path) == {"checkpoint.pt": "first"}


def test_a_state_that_is_not_finite_takes_no_good_ones_place(
    tmp_path: Path, writer: CheckpointWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(writer, 11, text("good"))
    begin(writer, 12, text("bad"), broken="a weight")
    writer.finish(lambda newest: newest == 11)
    assert files(tmp_path) == {"checkpoint.pt": "good"}
    assert "no checkpoint of epoch 1, step 2: a weight isn't finite" in capsys.readouterr().out


def test_a_job_that_diverges_as_it_is_started_again_leaves_the_one_before(
    tmp_path: Path, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        begin(writer, step, text(str(step)))
    writer.wait()
    monkeypatch.setenv(variables.RESUME, str(tmp_path / "checkpoint.pt"))
    again = make(tmp_path)
    again.resume_at(20)
    again.finish(lambda newest: newest != 20)
    assert files(tmp_path) == {"checkpoint.pt": "10"}


def test_the_last_ones_are_kept_by_their_steps(tmp_path: Path) -> None:
    writer = make(tmp_path, "checkpoint_every=5", "checkpoint_keep=2")
    for step in (5, 10, 15, 17):
        begin(writer, step, text(str(step)))
    writer.finish(lambda newest: newest == 17)
    assert files(tmp_path) == {"checkpoint.pt": "17", "checkpoint-15.pt": "15"}
