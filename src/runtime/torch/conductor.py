"""The clock, the evaluations and the agreed end of one rank's training, as a Lightning callback."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor

from src.measure import memory
from src.measure.recorder import Recorder
from src.runtime.shares import Window
from src.runtime.torch import checkpoint
from src.runtime.torch.feed import Batch, Feed
from src.runtime.torch.module import Training
from src.worker import Run

# Ranks agree on whether to go on about this often.
AGREE_SECONDS = 0.5


class Conductor(pl.Callback):
    """The clock, the evaluations and the agreed end of one rank's training."""

    def __init__(
        self,
        run: Run,
        recorder: Recorder,
        feed: Feed,
        before_evaluation: Callable[[], None],
        resumed: Mapping[str, Any] | None,
    ) -> None:
        self.run = run
        self.recorder = recorder
        self.feed = feed
        self.before_evaluation = before_evaluation
        self.resumed = resumed
        self.device = feed.device
        self.status = "ok"
        self.agree_at = 1
        # What the ranks' clocks say, on its way.
        self.asked: tuple[Tensor, dist.Work | None] | None = None
        self.written_at = -1
        self.window = Window()

    def on_train_start(self, trainer: pl.Trainer, module: Training) -> None:
        """Every rank starts its clock when all are ready."""
        if self.resumed is not None:
            checkpoint.restore(self.resumed, module.model, trainer.optimizers[0], module.prefix)
            self.resumed = None
        self.recorder.facts["steps_per_epoch"] = self.feed.steps
        self._sum(torch.zeros(1))
        self.recorder.begin()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Training, outputs: object, batch: Batch, index: int
    ) -> None:
        """Records a completed optimizer step."""
        config = self.run.config
        if (index + 1) % self.feed.parts:
            return
        # Stages that don't see labels have those of the batch all the same.
        samples = module.step_samples or config.worker_batch
        self.recorder.step(module.take_loss(), samples, epoch=self.feed.epoch + 1)
        if self.feed.shares.automatic:
            self._rebalance(samples)
        self._agree(trainer)
        every = config.evaluate_every
        if every and self.recorder.steps % every == 0:
            self._evaluate(module)
        every = config.checkpoint_every
        if every and self.recorder.steps % every == 0:
            self._checkpoint(trainer, module)

    def _rebalance(self, samples: int) -> None:
        speed = self.window.add(samples, self.recorder.own_seconds)
        if speed is not None:
            mine = torch.zeros(self.run.world_size, dtype=torch.float64)
            mine[self.run.rank] = speed
            with self.recorder.exchanging():
                speeds = self._sum(mine).tolist()
            if self.feed.shares.rebalance(speeds):
                self.window = Window()

    def _checkpoint(self, trainer: pl.Trainer, module: Training) -> None:
        if self.written_at == self.recorder.steps:
            return
        self.written_at = self.recorder.steps
        with self.recorder.off_clock():
            shares = module.shares(trainer.optimizers[0])
            if shares is not None:
                epoch, step = divmod(self.recorder.steps, self.feed.steps)
                path = self.run.folder / checkpoint.FILE
                samples = self.run.arrays.train_samples
                checkpoint.write(path, shares, self.run.config, samples, epoch=epoch, step=step)
            # The others wait off the clock for rank 0 to have written.
            self._sum(torch.zeros(1))

    def _agree(self, trainer: pl.Trainer) -> None:
        """All ranks end at the same step, by the slowest one's clock.

        It is asked after one step and answered after the next, in which they exchange anyway: a rank would
        otherwise wait here for the slowest one's optimizer.
        """
        if self.asked is not None:
            self._hear(trainer)
        elif self.recorder.steps >= self.agree_at:
            self.recorder.flush()
            clocks = [self.recorder.train_seconds, float(self.recorder.diverged)]
            mine, work = torch.tensor(clocks, dtype=torch.float64), None
            if self.run.world_size > 1:
                mine = mine.to(self.device)
                work = dist.all_reduce(mine, dist.ReduceOp.MAX, async_op=True)
            self.asked = mine, work
            if work is None:
                self._hear(trainer)

    def _hear(self, trainer: pl.Trainer) -> None:
        assert self.asked is not None
        (found, work), self.asked = self.asked, None
        with self.recorder.exchanging():
            if work is not None:
                work.wait()
            seconds, diverged = found.tolist()
        if diverged:
            self.status, trainer.should_stop = "diverged", True
        elif seconds > self.run.config.max_minutes * 60:
            self.status, trainer.should_stop = "time_limit", True
        pace = seconds / self.recorder.trained_steps
        self.agree_at = self.recorder.steps + min(50, max(1, round(AGREE_SECONDS / pace)))

    def on_train_epoch_end(self, _: pl.Trainer, module: Training) -> None:
        """One evaluation an epoch."""
        self._evaluate(module)
        self.feed.end_epoch()

    def on_train_end(self, trainer: pl.Trainer, module: Training) -> None:
        """Ends the record; what is measured here is outside the clock."""
        recorder = self.recorder
        if self.asked is not None:
            self._hear(trainer)
        if self.run.config.checkpoint_every:
            self._checkpoint(trainer, module)
        recorder.facts |= memory.peak(self.device) | module.facts(self.device)
        recorder.flush()
        status = "diverged" if recorder.diverged else self.status
        if status == "time_limit" and recorder.steps == self.feed.steps * self.run.config.epochs:
            status = "ok"
        recorder.finish(status)

    def _evaluate(self, module: Training) -> None:
        if self.recorder.evaluated_at == self.recorder.steps:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        with self.recorder.off_clock():
            self.before_evaluation()
            start = time.perf_counter()
            tested = self._sum(module.evaluate(self.device))
            seconds = time.perf_counter() - start
            trained = self._sum(module.sums.to(self.device))
            module.sums = torch.zeros(3, dtype=torch.float64)
            loss, correct, count = tested.tolist()
            train_loss, train_correct, train_count = trained.tolist()
            self.recorder.facts["validation_samples_per_second"] = count / seconds
            self.recorder.evaluated(
                epoch=self.recorder.steps / self.feed.steps,
                train_loss=train_loss / train_count if train_count else None,
                train_accuracy=train_correct / train_count if train_count else None,
                loss=loss / count if math.isfinite(loss) else math.nan,
                accuracy=correct / count,
                seconds=seconds,
            )
            # Rank 0 logs to MLflow in there; the others wait for it off the clock too.
            self._sum(torch.zeros(1))

    def _sum(self, values: Tensor) -> Tensor:
        if self.run.world_size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values
