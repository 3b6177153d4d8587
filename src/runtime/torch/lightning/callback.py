"""Record, evaluate, save checkpoints and end one rank's training, as a Lightning callback."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor

from src.compat.torch import as_in_ddp
from src.measure import memory
from src.measure.recorder import Recorder
from src.run.status import Status
from src.run.variables import RESUME
from src.runtime.common.batch_split import SpeedWindow
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from src.runtime.common.resume import complete_payload
from src.runtime.common.step_policy import StepPolicy
from src.runtime.torch import checkpoint, compilation, scoring, state_bytes, step_seeds
from src.runtime.torch.feed import Batch, Feed
from src.runtime.torch.lightning.logged import TRAIN, VALIDATION
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.lightning.step_callback import StepCallback

# Ranks agree on whether to go on at intervals of about so many seconds, and of so many steps at most.
AGREE_SECONDS = 0.5
AGREE_STEPS = 50


class TrainingCallback(StepCallback):
    """A Lightning callback that follows one rank's training; all ranks act at the same steps.

    Attributes:
        status: how the training ends (`OK`, `TIME_LIMIT` or `DIVERGED`), once the ranks have agreed on that.
    """

    def __init__(
        self,
        context: RankContext,
        recorder: Recorder,
        feed: Feed,
        module: TrainingModule,
        evaluating: Callable[[], AbstractContextManager[None]],
        resumed: Mapping[str, Any] | None,
    ) -> None:
        """Follow the training of one rank.

        Args:
            context: the rank's context.
            recorder: the rank's recorder.
            feed: the rank's feed, which is turned to the next epoch at the end of each.
            module: the module that is trained, or that records for the author's.
            evaluating: makes the ranks' copies of the model equal within its block, for each evaluation.
            resumed: the checkpoint to go on from, or `None`.
        """
        super().__init__(context, module)
        self.recorder = recorder
        self.feed = feed
        self.evaluating = evaluating
        self.resumed = resumed
        self.device = feed.device
        self.policy = StepPolicy(context.config, feed.steps)
        self.status: Status | None = None
        # An evaluation that isn't recorded yet: test scores, training scores, and its seconds.
        self.evaluated: tuple[scoring.Scores, scoring.Scores | None, float] | None = None
        self.agree_at = 1
        # An agreement in progress: the slowest rank's clock and whether some rank has diverged [2], and the
        # reduction of both over the ranks.
        self.agreement: tuple[Tensor, dist.Work | None] | None = None
        # Steps that were done when this process began to train.
        self.first = 0
        self.saved_at = -1
        # Rank 0 alone writes.
        self.writer = CheckpointWriter(context)
        # Steps at which the test loss was infinite or NaN.
        self.scored_badly_at = -1
        self.speeds = SpeedWindow()

    def on_train_start(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        """Restore the checkpoint, if there is one, and start the clock once all ranks are ready."""
        module = self.module
        module.on_start(trainer)
        if self.resumed is not None:
            module.restore(self.resumed, trainer.optimizers[0])
            if RESUME in os.environ:
                # The steps since the last evaluation count in the next one.
                module.sums = self.resumed["sums"][self.context.rank].clone()
            self.resumed = None
            self.writer.resume_at(self.recorder.steps)
        self.set_rate(trainer, self.recorder.steps)
        with as_in_ddp(trainer.strategy.model):
            module.warm_up(self.feed)
        self.recorder.facts["steps_per_epoch"] = self.feed.steps
        # In a job that is started again a rank may have been killed before it recorded what others did.
        reached = torch.tensor([float(self.recorder.target_reached)], dtype=torch.float64)
        self.recorder.target_reached = bool(self._sum(reached) > 0)
        self._end_at_target(trainer)
        self.first = self.recorder.steps
        self.recorder.start()

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Batch, index: int
    ) -> None:
        """Seed what the first micro-batch of a step, and those after it, draw."""
        if index % self.feed.parts == 0:
            step_seeds.seed(self.context.config, self.context.rank, self.recorder.steps)

    def end_batch(self, trainer: pl.Trainer, index: int) -> None:
        """Record a completed optimizer step, and evaluate, save or end where that is due."""
        module = self.module
        if (index + 1) % self.feed.parts:
            return
        self.writer.check()
        # Stages that see no labels count no samples; each has trained on its worker's whole batch.
        samples = module.step_samples or self.context.config.worker_batch
        step = self.recorder.steps + 1
        if self.policy.evaluates(step - 1, step) or self.policy.saves(step - 1, step):
            module.drain()
        loss, epoch = module.take_loss(), self.feed.epoch + 1
        self.recorder.step(loss, samples, epoch=epoch, staleness=module.staleness)
        if self.feed.split.automatic:
            self._rebalance(samples)
        self._agree(trainer)
        if self.rate is not None and not self.rate.constant:
            self.set_rate(trainer, step)
        if self.policy.evaluates(step - 1, step):
            self._evaluate(module)
            self._end_at_target(trainer)
        if self.policy.saves(step - 1, step):
            self._save(trainer, module)

    def _rebalance(self, samples: int) -> None:
        """Add a step of `samples` to this rank's speed, and split batches anew once that is measured."""
        self.recorder.settle()
        speed = self.speeds.add(samples, self.recorder.own_seconds)
        if speed is None:
            return
        speeds = torch.zeros(self.context.world_size, dtype=torch.float64)
        speeds[self.context.rank] = speed
        with self.recorder.exchanging():
            speeds = self._sum(speeds)
        if self.feed.split.rebalance(speeds.tolist()):
            self.speeds = SpeedWindow()

    def _save(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        """Write a checkpoint, unless this step's is written already or some rank has diverged."""
        step = self.recorder.steps
        if step in (self.saved_at, self.scored_badly_at):
            return
        self.saved_at = step
        module.drain()
        with self.recorder.off_clock():
            self.recorder.flush()
            diverged = float(self._sum(torch.tensor([float(self.recorder.diverged)])))
            if diverged:
                return
            self.writer.wait()
            sums = torch.zeros(self.context.world_size, len(module.sums), dtype=torch.float64)
            sums[self.context.rank] = module.sums
            sums = self._sum(sums).cpu()
            parts = module.rank_states(trainer.optimizers[0])
            if parts is not None:
                epoch, within = divmod(step, self.feed.steps)
                checkpoint.write(self.writer, self.context, parts, epoch=epoch, step=within, sums=sums)
            # The others wait off the clock for rank 0 to have copied.
            self._barrier()

    def _settle(self) -> None:
        """End with the last good checkpoint; all ranks call this method."""
        own = self.recorder.diverged_at
        first = torch.tensor([math.inf if own is None else float(own)], dtype=torch.float64)
        if self.context.world_size > 1:
            first = first.to(self.device)
            dist.all_reduce(first, dist.ReduceOp.MIN)
        if self.context.rank == 0:
            # The loss of a step is that of the state before it.
            self.writer.finish(lambda newest: float(first) != newest + 1)

    def _agree(self, trainer: pl.Trainer) -> None:
        """Have all ranks end at the same step, by the slowest rank's clock.

        An agreement begins after one step and is completed after the next, in which the ranks exchange
        gradients anyway, or as much later as ranks may be apart. If the agreement were completed at once, a
        rank would wait here for the slowest rank's optimizer.
        """
        if self.agreement is not None:
            if self.recorder.steps >= self.agree_at + self.module.lag:
                self._complete_agreement(trainer)
        elif self.recorder.steps >= self.agree_at:
            self.agree_at = self.recorder.steps
            self.recorder.flush(waits=self.module.lag == 1)
            clocks = [self.recorder.train_seconds, float(self.recorder.diverged)]
            largest, work = torch.tensor(clocks, dtype=torch.float64), None
            if self.context.world_size > 1:
                largest = largest.to(self.device)
                work = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)
            self.agreement = largest, work
            if work is None:
                self._complete_agreement(trainer)

    def _complete_agreement(self, trainer: pl.Trainer) -> None:
        """Wait for the agreement in progress, and stop the training if that is its outcome."""
        assert self.agreement is not None
        (largest, work), self.agreement = self.agreement, None
        with self.recorder.exchanging():
            if work is not None:
                work.wait()
            seconds, diverged = largest.tolist()
        late = self.policy.is_late(seconds)
        self.status = self.policy.status(self.recorder.steps, diverged=bool(diverged), late=late)
        trainer.should_stop = self.status is not None
        pace = seconds / self.recorder.trained_steps
        self.agree_at = self.recorder.steps + min(AGREE_STEPS, max(1, round(AGREE_SECONDS / pace)))

    def _end_at_target(self, trainer: pl.Trainer) -> None:
        """Stop the training if its last evaluation has reached the target; all ranks have the same one."""
        reached = self.recorder.target_reached
        if self.policy.status(self.recorder.steps, diverged=False, late=False, reached=reached) == Status.OK:
            trainer.should_stop = True

    def end_epoch(self, trainer: pl.Trainer) -> None:
        """Evaluate, if that isn't done at this step, and turn the feed to the next epoch."""
        self._evaluate(self.module)
        self._record_evaluation()
        self._end_at_target(trainer)
        self.feed.end_epoch()

    def on_train_end(self, trainer: pl.Trainer, _: pl.LightningModule) -> None:
        """Write the last checkpoint if it is due, and finish the record with the facts of the model."""
        recorder, module = self.recorder, self.module
        module.drain()
        if self.agreement is not None:
            self._complete_agreement(trainer)
        recorder.flush()
        diverged = recorder.diverged or self.status == Status.DIVERGED
        late = self.status == Status.TIME_LIMIT
        reached = recorder.target_reached
        status = self.policy.status(recorder.steps, diverged=diverged, late=late, reached=reached)
        if self.policy.saves(recorder.steps, recorder.steps, self.status or Status.OK):
            self._save(trainer, module)
        if self.context.config.checkpoint_every is not None:
            self._settle()
        complete_payload(recorder, self.first)
        recorder.facts |= memory.peak(self.device) | state_bytes.facts(module.model, trainer.optimizers)
        recorder.facts |= module.facts(self.device)
        # Without a status the job was started again after a failure and had had all its epochs done.
        recorder.finish(status or Status.OK)

    def _evaluate(self, module: TrainingModule) -> None:
        """Score the test set, unless it was scored at this step.

        At the end of an epoch that is recorded once the module's own hooks have been called.
        """
        if self.recorder.evaluated_at == self.recorder.steps or self.evaluated is not None:
            return
        module.drain()
        with self.recorder.off_clock():
            with self.evaluating(), compilation.without(self.context):
                self.recorder.settle()
                start = time.perf_counter()
                # As numbers: a device that works behind the host has then come to the end.
                test = scoring.scores(module.task, self._sum(module.evaluate(self.device)).tolist())
                seconds = time.perf_counter() - start
            train_sums = self._sum(module.take_sums()).tolist()
            # None where a run ends without a step since the last evaluation.
            train = scoring.scores(module.task, train_sums) if train_sums[scoring.SAMPLES] else None
            if not math.isfinite(test.loss):
                self.scored_badly_at = self.recorder.steps
            self.recorder.facts["validation_samples_per_second"] = test.samples / seconds
            self.evaluated = test, train, seconds
            if self.recorder.steps % self.feed.steps:
                self._record_evaluation()
            # Rank 0 writes more than the others, who wait for that off the clock too.
            self._barrier()

    def _record_evaluation(self) -> None:
        """Record the evaluation that was made last, if that isn't done yet, with what the module logged."""
        if self.evaluated is None:
            return
        (test, train, seconds), self.evaluated = self.evaluated, None
        module = self.module
        with self.recorder.off_clock():
            logged = module.take_logged(VALIDATION)
            logged_training = module.take_logged(TRAIN)
            scores = train.metrics if train and module.scores_training else {}
            self.recorder.evaluated(
                epoch=self.recorder.steps / self.feed.steps,
                train_loss=None if train is None else train.loss,
                train_metrics={**logged_training, **scores},
                loss=test.loss,
                metrics={**logged, **test.metrics},
                seconds=seconds,
            )

    def _sum(self, values: Tensor) -> Tensor:
        """Return the sum of all ranks' `values`; all ranks call this method."""
        if self.context.world_size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def _barrier(self) -> None:
        self._sum(torch.zeros(1))
