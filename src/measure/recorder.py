"""What one rank records while it trains: steps, evaluations, waits; every file survives a kill.

A strategy tells the recorder of each completed optimizer step; the interval between two of them,
less what ran `off_clock` (evaluation, checkpoints, tracking), is the step's time.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, SupportsFloat

from src.config import Config
from src.launch import quota
from src.measure import probe
from src.measure.rank_files import RankFiles
from src.rundir import write

FLUSH_SECONDS = 0.5


class Tracker(Protocol):
    """Where rank 0 logs metrics while it trains."""

    def steps(self, rows: list[dict[str, Any]]) -> None:
        """Logs completed steps; `step` is the axis."""

    def epoch(self, row: dict[str, Any], step: int) -> None:
        """Logs one evaluation, made after `step` optimizer steps; `epoch` is the axis."""


class Recorder:
    """Records one rank's training into `folder` (`<out>/ranks/<rank>`)."""

    def __init__(
        self, config: Config, rank: int, folder: Path, *, started: float, tracker: Tracker | None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = config
        self.rank = rank
        self.folder = folder
        self.steps = 0
        self.first_step = 0
        self.train_seconds = 0.0
        self.diverged = False
        self.evaluated_at = -1
        self.reached: dict[str, float] | None = None
        # Seconds that the rank waited for its backend; None where a strategy can't tell.
        self.communication_seconds: float | None = 0.0
        # Seconds that it waited for its input; None likewise.
        self.input_seconds: float | None = 0.0
        # Seconds in which it computed, where a strategy knows them; else what is left of the others.
        self.busy_seconds: float | None = None
        # Seconds of training steps that passed with exchanges, also where the backend's can't be told whole.
        self.exchange_seconds = 0.0
        # The others of the last step, in which the rank did its own share.
        self.own_seconds = 0.0
        self.payload_bytes = 0
        self.facts: dict[str, Any] = {}
        self._started = started
        self._tracker = tracker
        self._pending: list[tuple[int, int, float, int, SupportsFloat | None, float | None]] = []
        self._untracked: list[dict[str, Any]] = []
        self._epoch_start_seconds = 0.0
        self._window: dict[str, float] = {}
        self._off_clock: list[tuple[float, float]] = []
        self._files = RankFiles(folder)
        # Whether it measures its rank's own cores.
        self._probes = True
        self._last_wall = time.time()
        self._last = self._last_flush = time.perf_counter()
        # As they were at the last step's end: what is waited for after it is in nobody's time.
        self._exchanged = 0.0
        self._communicated: float | None = 0.0

    @property
    def trained_steps(self) -> int:
        """Steps of this run, without those that a resumed checkpoint had done."""
        return self.steps - self.first_step

    def for_rank(self, rank: int) -> Recorder:
        """Another rank's recorder, for who records for all of them, on cores of its own."""
        folder = self.folder.parent / str(rank)
        made = Recorder(self.config, rank, folder, started=self._started, tracker=None)
        made._probes = False
        return made

    def resume_at(self, step: int, *, batches: int, per_epoch: int) -> None:
        """Steps are counted from here: a checkpoint had done so many, in so many batches of all ranks.

        What this rank had recorded of them before the job was started again is kept.
        """
        self.steps = self.first_step = step
        steps, epochs = self._files.keep(step, batches=batches, per_epoch=per_epoch)
        if steps:
            self.first_step = int(steps[0]["step"]) - 1
        self.train_seconds = sum(float(row["seconds"]) for row in steps)
        for row in epochs:
            self._epoch_start_seconds += float(row["seconds"])
            taken = round(float(row["epoch"]) * per_epoch)
            self._reach(float(row["accuracy"]), self._epoch_start_seconds, taken)

    def begin(self) -> None:
        """Marks the start of the first step: what came before is start-up."""
        self._files.open()
        self.facts["probe_before"] = probe.gflops() if self._probes else None
        quota.begin()
        self.facts["startup_seconds"] = time.time() - self._started
        self._last = self._last_flush = time.perf_counter()
        if self.trained_steps >= self.config.warmup_steps:
            self._open_window(time.time())

    def note(self, text: str) -> None:
        """Something that the person who waits should see; rank 0's is shown."""
        write(self.folder / "notes.txt", text)

    def step(
        self,
        loss: SupportsFloat | None,
        samples: int,
        *,
        epoch: int,
        staleness: float | None = None,
        ended: float | None = None,
    ) -> None:
        """One completed optimizer step: this rank's mean loss and number of samples.

        A loss on a device is read later, so as not to stop the device's queue. `ended` is when, on
        `time.perf_counter`'s clock, where that is told afterwards.
        """
        self.completed([loss], samples, epoch=epoch, staleness=staleness, ended=ended)

    def completed(
        self,
        losses: Sequence[SupportsFloat | None],
        samples: int,
        *,
        epoch: int,
        staleness: float | None = None,
        ended: float | None = None,
    ) -> None:
        """Steps of `samples` each that a backend completed together: their time is shared out evenly."""
        # One that is told of later than its successor took no time of its own.
        now = time.perf_counter() if ended is None else max(ended, self._last)
        seconds = now - self._last
        self._last = now
        self.own_seconds = seconds - (self.exchange_seconds - self._exchanged)
        self._exchanged = self.exchange_seconds
        self._communicated = self.communication_seconds
        self._last_wall = time.time() - (time.perf_counter() - now)
        self.train_seconds += seconds
        for loss in losses:
            self.steps += 1
            self._pending.append((epoch, self.steps, seconds / len(losses), samples, loss, staleness))
        if self.trained_steps - len(losses) < self.config.warmup_steps <= self.trained_steps:
            self._open_window(self._last_wall)
        if now - self._last_flush > FLUSH_SECONDS:
            self.flush()

    def _open_window(self, start: float) -> None:
        self._window = {
            "start": start,
            "input": self.input_seconds or 0.0,
            "communication": self.communication_seconds or 0.0,
            "train": self.train_seconds,
            "busy": self.busy_seconds or 0.0,
        }

    def flush(self) -> None:
        """Writes pending steps to disk, and notices a loss that is no number."""
        rows = []
        for epoch, step, seconds, samples, loss, staleness in self._pending:
            value = None if loss is None else float(loss)
            self.diverged |= value is not None and not math.isfinite(value)
            rows.append((epoch, step, f"{seconds:.9f}", samples, value, staleness))
            if self._tracker is not None:
                self._untracked.append({"step": step, "loss": value, "seconds": seconds})
        self._pending.clear()
        self._files.write_steps(rows)
        self._last_flush = time.perf_counter()

    @contextmanager
    def off_clock(self) -> Iterator[None]:
        """Stops the clock of the running step."""
        paused = time.perf_counter()
        exchanged = self.exchange_seconds, self.communication_seconds
        wall = time.time()
        try:
            yield
        finally:
            self._last += time.perf_counter() - paused
            self.exchange_seconds, self.communication_seconds = exchanged
            self._off_clock.append((wall, time.time()))

    @contextmanager
    def waiting_for_input(self) -> Iterator[None]:
        """Time in which the rank prepares or waits for its next batch."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.input_seconds is not None:
                self.input_seconds += time.perf_counter() - start

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Time in which the rank sends to others, receives, or waits for them."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.exchange_seconds += seconds
            if self.communication_seconds is not None:
                self.communication_seconds += seconds

    def evaluated(
        self,
        *,
        epoch: float,
        train_loss: float | None,
        train_accuracy: float | None,
        loss: float,
        accuracy: float,
        seconds: float,
        step: int | None = None,
        train_seconds: float | None = None,
    ) -> None:
        """One evaluation on the whole test set after `epoch` epochs; call it off the clock on every rank.

        `step` is how many batches that were, and `train_seconds` what they took, where this rank's own
        don't tell.
        """
        self.flush()
        self.evaluated_at = self.steps
        step = self.steps if step is None else step
        train_seconds = self.train_seconds if train_seconds is None else train_seconds
        self._reach(accuracy, train_seconds, step)
        row = {
            "epoch": round(epoch, 4),
            "seconds": train_seconds - self._epoch_start_seconds,
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
            "loss": loss,
            "accuracy": accuracy,
            "validation_seconds": seconds,
        }
        self._epoch_start_seconds = train_seconds
        self._files.write_epoch(row)
        if self._tracker is not None:
            self._tracker.steps(self._untracked)
            self._tracker.epoch(row, step)
            self._untracked = []

    def _reach(self, accuracy: float, seconds: float, steps: int) -> None:
        target = self.config.target_accuracy
        if target is not None and self.reached is None and accuracy >= target:
            self.reached = {"seconds_to_target": seconds, "steps_to_target": steps}

    def finish(self, status: str) -> None:
        """Closes the record; without it a rank counts as failed."""
        self.flush()
        quota.end()
        self._files.close()
        if self._window:
            wall = self.train_seconds - self._window["train"]
            waited = _since(self._window["input"], self.input_seconds)
            communicated = _since(self._window["communication"], self._communicated)
            busy = _since(self._window["busy"], self.busy_seconds)
            if busy is None and waited is not None and communicated is not None:
                busy = wall - waited - communicated
            self.facts |= {
                "window": [self._window["start"], self._last_wall],
                "window_seconds": wall,
                "input_seconds": waited,
                "communication_seconds": communicated,
                "busy_seconds": busy,
            }
        self.facts |= {
            "status": status,
            "steps": self.steps,
            "train_seconds": self.train_seconds,
            "off_clock": self._off_clock,
            "payload_bytes": self.payload_bytes,
            "probe_after": probe.gflops() if self._probes else None,
            **(self.reached or {}),
        }
        self.save()

    def save(self) -> None:
        """Writes the record, or again what has become known since `finish`."""
        (self.folder / "record.json").write_text(json.dumps(self.facts))


def _since(before: float, now: float | None) -> float | None:
    return None if now is None else now - before
