"""The record of a rank, on a clock that the test turns by hand."""

from __future__ import annotations

import csv
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from src.measure.recorder import FLUSH_SECONDS, Recorder
from tests.support import config


class Clock:
    """Stands still but for `pass_`; the wall clock runs a thousand seconds ahead."""

    def __init__(self) -> None:
        self.now = 100.0

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    monkeypatch.setattr(time, "time", lambda: made.now + 1000)
    return made


class Log:
    """A listener that only remembers."""

    def __init__(self) -> None:
        self.logged: list[Any] = []

    def on_start(self) -> None:
        self.logged.append("start")

    def on_finish(self) -> None:
        self.logged.append("finish")


def recorder(folder: Path, *words: str, listeners: tuple[Log, ...] = ()) -> Recorder:
    chosen = config("batch=8", *words)
    # A probe of the cores needs a clock that goes on.
    return Recorder(chosen, 0, folder, started=1090.0, listeners=listeners, probes=False)


def evaluate(made: Recorder, epoch: float = 1, accuracy: float = 0.5) -> None:
    made.evaluated(
        epoch=epoch, train_loss=None, train_accuracy=None, loss=0.5, accuracy=accuracy, seconds=2.0
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "record.json").read_text())


def test_a_steps_time_is_the_interval_between_updates_less_what_ran_off_the_clock(
    tmp_path: Path, clock: Clock
) -> None:
    made = recorder(tmp_path)
    clock.pass_(3)  # start-up
    made.start()
    clock.pass_(0.25)
    made.step(2.5, 8, epoch=1)
    clock.pass_(0.125)
    with made.off_clock():
        clock.pass_(40)
    clock.pass_(0.25)
    made.step(2.0, 8, epoch=1)
    made.finish("ok")
    assert [float(row["seconds"]) for row in rows(tmp_path / "steps.csv")] == [0.25, 0.375]
    assert made.train_seconds == 0.625
    rank_record = record(tmp_path)
    # Started at 1090, the wall clock stood at 1100, and 3 seconds passed.
    assert rank_record["startup_seconds"] == 13
    assert rank_record["off_clock"] == [[1103.375, 1143.375]]
    assert (rank_record["status"], rank_record["steps"], rank_record["train_seconds"]) == ("ok", 2, 0.625)


def test_the_clock_runs_on_after_an_evaluation_that_failed(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path)
    made.start()
    with pytest.raises(OSError), made.off_clock():
        clock.pass_(5)
        raise OSError
    clock.pass_(0.5)
    made.step(1.0, 8, epoch=1)
    assert made.train_seconds == 0.5


@pytest.mark.parametrize("warmup", [0, 2])
def test_the_window_opens_after_the_warm_up(tmp_path: Path, clock: Clock, warmup: int) -> None:
    made = recorder(tmp_path, f"hardware.warmup_steps={warmup}")
    made.start()
    for _ in range(4):
        with made.waiting_for_input():
            clock.pass_(0.25)
        made.communication_seconds += 0.125
        clock.pass_(0.75)
        made.step(1.0, 8, epoch=1)
    made.finish("ok")
    rank_record, timed = record(tmp_path), 4 - warmup
    assert len(rows(tmp_path / "steps.csv")) == 4, "warm-up steps are rows too"
    assert rank_record["window_seconds"] == timed
    assert rank_record["input_seconds"] == 0.25 * timed
    assert rank_record["communication_seconds"] == 0.125 * timed
    assert rank_record["window"] == [1100 + warmup, 1104]


def test_a_ranks_own_time_is_the_step_less_its_exchanges(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path, "hardware.warmup_steps=0")
    made.start()
    for waited in (0.5, 0.25):
        clock.pass_(1)
        with made.exchanging():
            clock.pass_(waited)
        made.step(1.0, 8, epoch=1)
        assert made.own_seconds == 1.0
        with made.off_clock(), made.exchanging():
            clock.pass_(7)
    # After the last step it is in no step's time.
    with made.exchanging():
        clock.pass_(3)
    made.finish("ok")
    assert record(tmp_path)["communication_seconds"] == 0.75
    assert record(tmp_path)["busy_seconds"] == 2.0


def test_a_run_shorter_than_its_warm_up_has_no_window(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path)
    made.start()
    made.step(1.0, 8, epoch=1)
    made.finish("ok")
    assert "window" not in record(tmp_path)


def test_waits_that_a_strategy_cannot_tell_stay_unknown(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path, "hardware.warmup_steps=1")
    made.communication_seconds = None
    made.start()
    for _ in range(2):
        clock.pass_(1)
        made.step(1.0, 8, epoch=1)
    made.finish("ok")
    assert record(tmp_path)["communication_seconds"] is None


@pytest.mark.parametrize("known", [None, 0.5])
def test_busy_is_what_is_left_of_the_waits_unless_it_is_known(
    tmp_path: Path, clock: Clock, known: float | None
) -> None:
    made = recorder(tmp_path, "hardware.warmup_steps=1")
    made.start()
    for _ in range(3):
        clock.pass_(1)
        made.communication_seconds += 0.125
        if known is not None:
            made.busy_seconds = (made.busy_seconds or 0.0) + known
        made.step(1.0, 8, epoch=1)
    made.finish("ok")
    assert record(tmp_path)["busy_seconds"] == 2 * (known or 0.875)


def test_a_step_that_is_told_of_late_took_until_it_ended(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path)
    made.start()
    begun = time.perf_counter()
    clock.pass_(5)
    made.step(1.0, 8, epoch=1, ended=begun + 1)
    made.step(1.0, 8, epoch=1, ended=begun + 3)
    made.finish("ok")
    assert [float(row["seconds"]) for row in rows(tmp_path / "steps.csv")] == [1, 2]


def test_a_job_that_is_started_again_keeps_what_its_checkpoint_had_done(tmp_path: Path, clock: Clock) -> None:
    words = ("hardware.warmup_steps=2", "target_accuracy=0.5")
    killed = recorder(tmp_path, *words)
    killed.start()
    for step in range(1, 7):
        clock.pass_(1)
        killed.step(float(step), 8, epoch=1 + (step > 2))
        if step % 2 == 0:
            with killed.off_clock():
                killed.evaluated(
                    epoch=step / 2, train_loss=1, train_accuracy=0, loss=1, accuracy=step / 4, seconds=1
                )
    again = recorder(tmp_path, *words)
    # Nothing is lost before it begins: it might fail on the way.
    assert len(rows(tmp_path / "steps.csv")) == 6
    # Two steps an epoch; the checkpoint was written after the fourth step, in the second of three epochs.
    again.resume_at(4, batches=4, per_epoch=2)
    clock.pass_(60)
    again.start()
    clock.pass_(3)
    again.step(50.0, 8, epoch=3)
    again.finish("ok")
    assert [(row["step"], float(row["loss"])) for row in rows(tmp_path / "steps.csv")] == [
        ("1", 1),
        ("2", 2),
        ("3", 3),
        ("4", 4),
        ("5", 50),
    ]
    assert [row["epoch"] for row in rows(tmp_path / "epochs.csv")] == ["1.0", "2.0"]
    rank_record = record(tmp_path)
    assert (rank_record["steps"], rank_record["train_seconds"]) == (5, 7)
    assert (rank_record["seconds_to_target"], rank_record["steps_to_target"]) == (2, 2)
    # Its warm-up was over before the restart.
    assert rank_record["window_seconds"] == 3


def test_a_job_that_is_started_anew_forgets_what_it_had_recorded(tmp_path: Path, clock: Clock) -> None:
    killed = recorder(tmp_path)
    killed.start()
    clock.pass_(1)
    killed.step(1.0, 8, epoch=1)
    killed.evaluated(epoch=1, train_loss=1, train_accuracy=0, loss=1, accuracy=0, seconds=1)
    again = recorder(tmp_path)
    again.start()
    clock.pass_(2)
    again.step(2.0, 8, epoch=1)
    again.finish("ok")
    assert [float(row["loss"]) for row in rows(tmp_path / "steps.csv")] == [2]
    assert not (tmp_path / "epochs.csv").exists()
    assert record(tmp_path)["train_seconds"] == 2


def test_what_was_flushed_survives_a_kill(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path)
    made.start()
    for _ in range(3):
        clock.pass_(FLUSH_SECONDS / 2)
        made.step(1.0, 8, epoch=1)
    # The third step came more than FLUSH_SECONDS after the start: all three are on disk, unclosed.
    assert [row["step"] for row in rows(tmp_path / "steps.csv")] == ["1", "2", "3"]
    clock.pass_(FLUSH_SECONDS / 2)
    made.step(1.0, 8, epoch=1)
    assert len(rows(tmp_path / "steps.csv")) == 3
    evaluate(made)
    assert len(rows(tmp_path / "steps.csv")) == 4
    assert rows(tmp_path / "epochs.csv")[0]["accuracy"] == "0.5"
    assert not (tmp_path / "record.json").exists(), "without a record a rank counts as failed"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_noticed_when_it_is_read(
    tmp_path: Path, clock: Clock, loss: float
) -> None:
    class OnDevice:
        """Says its value only when asked, as a loss on a GPU would."""

        read = 0

        def __float__(self) -> float:
            OnDevice.read += 1
            return loss

    made = recorder(tmp_path)
    made.start()
    made.step(OnDevice(), 8, epoch=1)
    assert not made.diverged and OnDevice.read == 0
    made.flush()
    assert made.diverged and OnDevice.read == 1
    assert not math.isfinite(float(rows(tmp_path / "steps.csv")[0]["loss"]))


class Arriving:
    """A loss that comes by a message."""

    arrived = False

    def __float__(self) -> float:
        return 0.5


def test_a_loss_that_is_still_under_way_holds_up_its_step_and_later_ones(
    tmp_path: Path, clock: Clock
) -> None:
    made, coming = recorder(tmp_path), Arriving()
    made.start()
    for loss in (0.25, coming, 0.75):
        clock.pass_(FLUSH_SECONDS + 1)
        made.step(loss, 8, epoch=1)
    assert [row["loss"] for row in rows(tmp_path / "steps.csv")] == ["0.25"]
    coming.arrived = True
    made.flush(waits=False)
    assert [row["loss"] for row in rows(tmp_path / "steps.csv")] == ["0.25", "0.5", "0.75"]
    made.step(Arriving(), 8, epoch=1)
    made.finish("ok")
    assert [row["step"] for row in rows(tmp_path / "steps.csv")] == ["1", "2", "3", "4"]


def test_a_step_without_loss_leaves_its_cell_empty(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path)
    made.start()
    made.step(None, 8, epoch=1, staleness=3)
    made.finish("ok")
    row = rows(tmp_path / "steps.csv")[0]
    assert (row["loss"], row["staleness"]) == ("", "3")
    assert not made.diverged


def test_the_target_is_reached_once_in_training_time(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path, "target_accuracy=0.9")
    made.start()
    for accuracy in (0.8, 0.9, 0.95):
        clock.pass_(2)
        made.step(1.0, 8, epoch=1)
        with made.off_clock():
            clock.pass_(10)
            evaluate(made, accuracy=accuracy)
    made.finish("ok")
    rank_record = record(tmp_path)
    assert (rank_record["seconds_to_target"], rank_record["steps_to_target"]) == (4, 2)


def test_a_target_that_was_not_reached_is_not_guessed(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path, "target_accuracy=0.9")
    made.start()
    evaluate(made, accuracy=0.8999)
    made.finish("ok")
    assert "seconds_to_target" not in record(tmp_path)


def test_an_epochs_seconds_are_training_since_the_evaluation_before(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path)
    made.start()
    for epoch, seconds in ((0.5, 3), (1, 5)):
        clock.pass_(seconds)
        made.step(1.0, 8, epoch=1)
        with made.off_clock():
            clock.pass_(100)
            evaluate(made, epoch)
    seconds_of_epochs = [(row["epoch"], float(row["seconds"])) for row in rows(tmp_path / "epochs.csv")]
    assert seconds_of_epochs == [("0.5", 3), ("1", 5)]
    assert rows(tmp_path / "epochs.csv")[0]["train_loss"] == ""
    assert made.evaluated_at == 2


def test_a_listener_follows_the_record(tmp_path: Path, clock: Clock) -> None:
    log = Log()
    made = recorder(tmp_path, listeners=(log,))
    made.start()
    for _ in range(2):
        made.step(1.0, 8, epoch=1)
    made.flush()
    assert log.logged == ["start"]
    evaluate(made)
    made.step(1.0, 8, epoch=2)
    evaluate(made, 2)
    made.finish("ok")
    assert log.logged == ["start", "finish"]
    assert [row["step"] for row in rows(tmp_path / "epochs.csv")] == ["2", "3"]


def test_steps_completed_together_share_their_time(tmp_path: Path, clock: Clock) -> None:
    words = ("strategy=tf_single", "strategy.steps_per_execution=4", "hardware.warmup_steps=5")
    made = recorder(tmp_path, *words)
    made.start()
    for losses in ([4.0, 3.0, 2.0, 1.0], [1.0] * 4, [1.0] * 4):
        clock.pass_(2.0)
        made.completed(losses, 8, epoch=1)
    made.finish("ok")
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 13))
    assert {float(row["seconds"]) for row in rows} == {0.5}
    assert [float(row["loss"]) for row in rows[:4]] == [4.0, 3.0, 2.0, 1.0]
    record = json.loads((tmp_path / "record.json").read_text())
    # The call in which the warm-up ends is left out whole.
    assert made.config.warmup_steps == 8
    assert record["window_seconds"] == pytest.approx(2.0)
    assert record["train_seconds"] == pytest.approx(6.0)


def test_a_wait_that_cannot_be_told_is_not_recorded(tmp_path: Path, clock: Clock) -> None:
    made = recorder(tmp_path, "hardware.warmup_steps=0")
    made.input_seconds = None
    made.start()
    with made.waiting_for_input():
        clock.pass_(1.0)
    made.step(1.0, 8, epoch=1)
    made.finish("ok")
    assert json.loads((tmp_path / "record.json").read_text())["input_seconds"] is None
