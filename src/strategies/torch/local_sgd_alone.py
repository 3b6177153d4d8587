"""Train by local SGD's rule in one process, for `src.audit` to hold the ranks of a run against.

The copies take their steps in turn, each on its own parts of batches, and their parameters are averaged every
`sync_every` steps, as `src/strategies/torch/local_sgd.py` says; here nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from src.config import Config
from src.measure.recorder import Recorder
from src.run import files
from src.run.status import Status
from src.runtime.common.context import RankContext
from src.runtime.common.learning_rate import LearningRate
from src.runtime.common.step_policy import StepPolicy
from src.runtime.torch import setup, step_seeds, update_rule, vectors
from src.runtime.torch.audit import changes
from src.runtime.torch.audit.watch import Watch
from src.runtime.torch.feed import Batch
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.outer_optimizer import OuterOptimizer
from src.tasks.torch.outputs import autocast


class Copy:
    """One rank's copy of the model, and what trains it."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        self._context = context
        self.recorder = recorder
        device = setup.root_device(context)
        self._module = TrainingModule(context, setup.build(context).to(device))
        self.trained = [each for each in self._module.model.parameters() if each.requires_grad]
        self._optimizer = self._module.configure_optimizers()
        self.feed = self._module.feed(recorder, device)
        self._batches: Iterator[Batch] = iter(())
        self._rate = LearningRate.of(context.config, context.arrays.train_samples)
        folder = files.rank_folder(context.folder, context.rank)
        self._watch = Watch(folder, self._module.model)

    def step(self, step: int) -> float:
        """Take the step with that number, from 0, on the rank's part of its batch; return the rate of it."""
        epoch, within = divmod(step, self.feed.steps)
        if within == 0:
            self.feed.start_at(epoch, 0)
            self._batches = iter(self.feed)
        rate = self._rate(step)
        config, parts = self._context.config, self.feed.parts
        self._watch.begin(step + 1)
        step_seeds.seed(config, self._context.rank, step)
        self._optimizer.zero_grad()
        for part in range(parts):
            with changes.state_kept(config, self._module.model):
                with autocast(config.precision, self.feed.device):
                    loss = self._module.training_step(next(self._batches), part)
                assert loss is not None
                (loss / parts).backward()
        if changes.ZERO_GRADIENTS in config.changes:
            changes.fill_gradients(self._optimizer)
        self._module.configure_gradient_clipping(self._optimizer)
        update_rule.set_rate(self._optimizer, rate)
        self._optimizer.step()
        self._watch.look_at_gradients()
        samples = self._module.step_samples
        self.recorder.step(self._module.take_loss(), samples, epoch=epoch + 1)
        self._watch.end(step + 1)
        return rate


def train(context: RankContext, recorder: Recorder) -> None:
    """Train all copies of the run that the audit `follows`, as one process."""
    assert context.config.audit is not None
    audit = context.config.audit
    followed = replace(Config(**audit["follows"]), audit=audit)
    setup.prepare_process(context)
    copies = [
        Copy(
            replace(context, config=followed, rank=rank, world_size=followed.workers),
            recorder.for_rank(rank) if rank else recorder,
        )
        for rank in range(followed.workers)
    ]
    outer = OuterOptimizer.of(followed.strategy, vectors.to_vector(copies[0].trained))
    for copy in copies:
        copy.recorder.start()
    for step in range(StepPolicy(followed, copies[0].feed.steps).last_step):
        rates = [copy.step(step) for copy in copies]
        if (step + 1) % followed.strategy["sync_every"] == 0:
            mean = torch.stack([vectors.to_vector(copy.trained) for copy in copies]).mean(0)
            values = mean if outer is None else outer.step(mean, rates[0])
            for copy in copies:
                vectors.from_vector(values, copy.trained)
    for copy in copies:
        copy.recorder.finish(Status.OK)
