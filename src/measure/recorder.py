"""Record one rank's training: time its steps, write its tables, and inform listeners of begin and end.

A strategy reports each completed optimizer step and each evaluation to the recorder, which writes them to the
rank's tables, where they survive a kill, and the parent reads them while the rank trains.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, SupportsFloat

from src.config import Config
from src.measure import exchanges, probe
from src.measure.exchanges import Exchange, Tally
from src.measure.rank_record import RankRecord, RankTables
from src.measure.step_clock import Interval, StepClock
from src.measure.traffic import TrafficMeter
from src.run import files, phases
from src.run.tables import write_text

ACCURACY = "accuracy"
# Completed steps are written to disk as often as this.
FLUSH_SECONDS = 0.5


class RecordListener(Protocol):
    """A follower of a rank's record while the rank trains."""

    def on_start(self) -> None:
        """Handle the beginning of the first step."""

    def on_steps(self, steps: int) -> None:
        """Handle the end of steps, of which the run has now done so many; off the clock."""

    def on_finish(self) -> None:
        """Handle the end of the last step."""


class Recorder(StepClock):
    """A recorder of one rank's training into `folder` (`<out>/ranks/<rank>`).

    Attributes:
        config: the run's configuration.
        rank: the rank that is recorded.
        folder: where its files are.
        diverged: whether a written loss was infinite or NaN.
        diverged_at: the first step with such a loss, `None` without one.
        evaluated_at: the number of steps at the last evaluation, -1 before it.
        target_reached: whether an evaluation has reached `target_accuracy`.
        payload_bytes: bytes that the rank has handed to its backend.
        facts: further figures of the rank, for its `record.json`.
    """

    def __init__(
        self,
        config: Config,
        rank: int,
        folder: Path,
        *,
        started: float,
        listeners: Sequence[RecordListener] = (),
        probes: bool = True,
    ) -> None:
        """Make `folder`; the clock doesn't run yet.

        The run began at `started`, in seconds since 1970. The `listeners` follow the record. The cores are
        probed if `probes` says so, and must then be the rank's own.
        """
        super().__init__(config.warmup_steps)
        folder.mkdir(parents=True, exist_ok=True)
        self.config = config
        self.rank = rank
        self.folder = folder
        self.diverged = False
        self.diverged_at: int | None = None
        self.evaluated_at = -1
        self.payload_bytes = 0
        self.facts: RankRecord = {}
        self._exchanges: dict[Exchange, Tally] = {}
        self._counted_from = 0
        self._started = started
        self._listeners = listeners
        self._probes = probes
        self._tables = RankTables(folder)
        # One rank counts for all hosts.
        self._traffic = TrafficMeter() if rank == 0 else None
        self._pending: list[tuple[int, int, Interval, int, SupportsFloat | None, float | None]] = []
        self.target_reached = False
        self._last_evaluation_seconds = 0.0
        self._last_flush = time.perf_counter()

    def for_rank(self, rank: int) -> Recorder:
        """Make another rank's recorder, for a coordinator that records for all of them."""
        folder = self.folder.parent / str(rank)
        return Recorder(self.config, rank, folder, started=self._started, probes=False)

    def resume_at(self, step: int, *, batches: int, per_epoch: int) -> None:
        """Count steps from `step`, which a checkpoint holds, as it holds `batches` global batches.

        If this job had recorded such steps before it was started again, their rows and seconds are kept. An
        epoch has `per_epoch` batches.
        """
        self.steps = self.first_step = step
        steps, epochs = self._tables.keep(step, batches=batches, per_epoch=per_epoch)
        if steps:
            self.first_step = int(steps[0]["step"]) - 1
        self.train_seconds = sum(row["seconds"] for row in steps)
        for row in epochs:
            self._last_evaluation_seconds += row["seconds"]
            taken = round(row["epoch"] * per_epoch)
            self._check_target(row["accuracy"], self._last_evaluation_seconds, taken)

    def start(self) -> None:
        """Start the clock of the first step; the time before it, and what was exchanged, is start-up."""
        self.payload_bytes, self._exchanges, self._counted_from = 0, {}, self.steps
        self._tables.open()
        self.facts["probe_before"] = probe.gflops() if self._probes else None
        for listener in self._listeners:
            listener.on_start()
        phases.announce(self.folder, phases.FIRST_STEP)
        self.facts["startup_seconds"] = time.time() - self._started
        self._last_flush = time.perf_counter()
        if self._traffic is not None:
            self._traffic.start()
        self.start_clock()

    @contextmanager
    def off_clock(self) -> Iterator[None]:
        """Stop the clock of the running step, and the counts of what is sent, within the block."""
        if self._traffic is not None:
            self._traffic.stop()
        payload, tallies = self.payload_bytes, copy.deepcopy(self._exchanges)
        with super().off_clock():
            yield
        self.payload_bytes, self._exchanges = payload, tallies
        if self._traffic is not None:
            self._traffic.start()

    def hand_over(self, kind: str, size: int, axis: str = "data", *, ranks: int | None = None) -> None:
        """Count an exchange in which this rank takes part.

        Args:
            kind: `all_reduce`, `reduce_scatter`, `all_gather` or `point_to_point`.
            size: bytes that this rank hands to its backend.
            axis: along which axis of the mesh: `data`, `shard`, `pipeline` or `tensor`.
            ranks: how many take part, if not all along the axis.
        """
        self.payload_bytes += size
        ranks = getattr(self.config.degrees, axis) if ranks is None else ranks
        tally = self._exchanges.setdefault(Exchange(axis, kind, ranks), Tally())
        tally.count += 1
        tally.size += size

    def note(self, text: str) -> None:
        """Write a text for the person who waits; the parent shows that of rank 0."""
        write_text(self.folder / files.NOTES, text)

    def step(
        self,
        loss: SupportsFloat | None,
        samples: int,
        *,
        epoch: int,
        staleness: float | None = None,
        ended: float | None = None,
    ) -> None:
        """Record one completed optimizer step; the arguments are those of `completed`."""
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
        """Record steps that a backend completed together, and divide their time evenly between them.

        Args:
            losses: this rank's mean loss of each step; one on a device is read later, so as not to stop the
                device's queue, and one with an attribute `arrived` once that is true, if the time allows.
            samples: this rank's samples of each step.
            epoch: the epoch of these steps, from 1.
            staleness: updates between the weights that their gradient is of, and its own.
            ended: when they ended, on `time.perf_counter`'s clock, if not now.
        """
        first = self.steps + 1
        seconds = self.tick(len(losses), ended)
        for step, loss in enumerate(losses, first):
            self._pending.append((epoch, step, seconds, samples, loss, staleness))
        if time.perf_counter() - self._last_flush > FLUSH_SECONDS:
            self.flush(waits=False)
        if self.config.profiler and self.trained_steps <= self.config.warmup_steps:
            with self.off_clock():
                for listener in self._listeners:
                    listener.on_steps(self.trained_steps)

    def flush(self, *, waits: bool = True) -> None:
        """Write pending steps to disk, and set `diverged` if a loss is infinite or NaN.

        Steps from the first one on whose loss is still to arrive are left for later, unless it `waits`.
        """
        self.settle()
        cells: list[Sequence[Any]] = []
        for epoch, step, interval, samples, loss, staleness in self._pending:
            if not waits and not getattr(loss, "arrived", True):
                break
            seconds = float(interval)
            value = None if loss is None else float(loss)
            if value is not None and not math.isfinite(value) and not self.diverged:
                self.diverged, self.diverged_at = True, step
            cells.append((epoch, step, f"{seconds:.9f}", samples, value, staleness))
        del self._pending[: len(cells)]
        self._tables.add_steps(cells)
        self._last_flush = time.perf_counter()

    def evaluated(
        self,
        *,
        epoch: float,
        train_loss: float | None,
        loss: float,
        seconds: float,
        accuracy: float | None = None,
        train_accuracy: float | None = None,
        metrics: Mapping[str, float | None] | None = None,
        train_metrics: Mapping[str, float | None] | None = None,
        step: int | None = None,
        train_seconds: float | None = None,
    ) -> None:
        """Record one evaluation on the whole test set; every rank calls this within `off_clock`.

        Args:
            epoch: epochs completed, with a fraction within one.
            train_loss: mean loss of the steps since the last evaluation.
            loss: mean loss on the test set.
            seconds: duration of the evaluation.
            accuracy: share of correct answers on the test set, short for `metrics` that hold nothing else.
            train_accuracy: that in the steps since the last evaluation, likewise.
            metrics: the task's metrics on the test set.
            train_metrics: those of the steps since the last evaluation.
            step: global batches trained, if not as many as this rank's steps.
            train_seconds: seconds of training, if not those of this rank's steps.
        """
        self.flush()
        self.evaluated_at = self.steps
        step = self.steps if step is None else step
        train_seconds = self.train_seconds if train_seconds is None else train_seconds
        test = metrics if metrics is not None else _known(accuracy)
        train = train_metrics if train_metrics is not None else _known(train_accuracy)
        first = self.config.task["metrics"][0]
        self._check_target(test.get(ACCURACY), train_seconds, step)
        row = {
            "epoch": round(epoch, 4),
            "seconds": train_seconds - self._last_evaluation_seconds,
            "train_loss": train_loss,
            "train_accuracy": train.get(ACCURACY),
            "loss": loss,
            "accuracy": test.get(ACCURACY),
            "validation_seconds": seconds,
            "step": step,
            "score": test.get(first),
            "train_score": train.get(first),
            "metrics": json.dumps(dict(test)),
            "train_metrics": json.dumps(dict(train)),
        }
        self._last_evaluation_seconds = train_seconds
        self._tables.add_epoch(row)

    def _check_target(self, accuracy: float | None, seconds: float, steps: int) -> None:
        target = self.config.target_accuracy
        if target is None or accuracy is None or self.target_reached:
            return
        if accuracy >= target:
            self.target_reached = True
            self.facts |= {"seconds_to_target": seconds, "steps_to_target": steps}

    @property
    def finished(self) -> bool:
        """Return whether the record is closed."""
        return "status" in self.facts

    def end_traffic(self) -> None:
        """Count what hosts send no longer: the training is over, though not the record."""
        if self._traffic is not None:
            self._traffic.stop()
            self.facts["traffic"] = self._traffic.by_host()

    def finish(self, status: str) -> None:
        """Close the record with a status: `ok`, `time_limit` or `diverged`.

        A rank that leaves no record counts as failed.
        """
        self.end_traffic()
        self.flush()
        for listener in self._listeners:
            listener.on_finish()
        self._tables.close()
        self.facts |= self.clock_facts()
        self.facts |= {
            "status": status,
            "payload_bytes": self.payload_bytes,
            "exchanges": exchanges.facts(self._exchanges, self.steps - self._counted_from),
            "probe_after": probe.gflops() if self._probes else None,
        }
        self.save()

    def save(self) -> None:
        """Write `record.json`; call it again when further facts are known after `finish`."""
        write_text(self.folder / files.RECORD, json.dumps(self.facts))


def _known(accuracy: float | None) -> dict[str, float]:
    """Return the metrics of a task of which only the accuracy is known, if that is."""
    return {} if accuracy is None else {ACCURACY: accuracy}
