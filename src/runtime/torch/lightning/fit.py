"""Train any torch strategy through PyTorch Lightning: one module, one feed, one callback.

Lightning runs the loop and its Strategy distributes the training. For every strategy Scaleguide adds
`module.py`, `../feed.py` and `callback.py`: an evaluation of each test sample once, an order of samples that
all strategies share, the clock, and an end on which the ranks agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytorch_lightning as pl
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.strategies import ParallelStrategy, Strategy
from torch import nn

from src.compat.lightning import leave_sigterm_to_the_parent
from src.config import own_training
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.common.resume import resume_recorders
from src.runtime.torch import checkpoint, process_group, setup
from src.runtime.torch.device_clock import CUDAClock
from src.runtime.torch.feed import Feed
from src.runtime.torch.lightning.callback import TrainingCallback
from src.runtime.torch.lightning.memory_callback import MemoryCallback
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.lightning.own_feed import feeding
from src.runtime.torch.lightning.own_module import OwnModule
from src.runtime.torch.lightning.step_callback import StepCallback
from src.runtime.torch.lightning.watching import AuditCallback

# Called with the module around each evaluation of it.
Evaluating = Callable[[TrainingModule], AbstractContextManager[None]]

# Epochs after which Lightning itself validates.
NEVER = 10**9


def cluster_environment() -> TorchElasticEnvironment:
    """Return Lightning's environment that reads rank and world size from torchrun's variables."""
    return TorchElasticEnvironment()


def fit(
    context: RankContext,
    recorder: Recorder,
    strategy: Strategy,
    *,
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
    evaluating: Evaluating = lambda module: contextlib.nullcontext(),
) -> None:
    """Train a copy of the model in each rank under a Lightning strategy, and finish the record.

    Args:
        context: the rank's context.
        recorder: the rank's recorder.
        strategy: distributes the training.
        prepare: changes the seeded model before training, and returns it (to synchronise BatchNorm, say).
        evaluating: makes the ranks' copies of the model equal within its block, in which they are evaluated,
            and must not change the training that follows.

    Raises:
        ConfigError: when the run can't go on from the configured checkpoint.
    """
    setup.prepare_process(context)
    model = prepare(setup.build(context))
    fit_module(context, recorder, strategy, module_of(context, model), evaluating)


def module_of(context: RankContext, model: nn.Module) -> TrainingModule:
    """Make the Lightning module that trains a whole model, by the task's loss or by a step of its own."""
    return (
        OwnModule(context, model) if own_training.is_own(context.config) else TrainingModule(context, model)
    )


def fit_module(
    context: RankContext,
    recorder: Recorder,
    strategy: Strategy,
    module: TrainingModule,
    evaluating: Evaluating = lambda module: contextlib.nullcontext(),
) -> None:
    """Train `module` under a Lightning strategy, and finish the record.

    The other arguments, and what is raised, are those of `fit`.
    """
    config = context.config
    device = setup.root_device(context)
    if device.type == "cuda":
        recorder.follow_device(CUDAClock(device))
    feed = module.feed(recorder, device)
    resumed = None if config.resume is None else checkpoint.read(config, context.arrays.train_samples)
    if resumed is not None:
        feed.start_at(resumed["epoch"], resumed["step"])
        resume_recorders([recorder], resumed, feed.steps)
    if isinstance(strategy, ParallelStrategy):
        # Otherwise Lightning forms the group, by way of a port.
        own = getattr(strategy, "process_group_backend", None)
        process_group.join(context, own or setup.process_group_backend(context))
    callback = TrainingCallback(context, recorder, feed, module, lambda: evaluating(module), resumed)
    before: list[pl.Callback] = []
    after: list[pl.Callback] = []
    if config.memory_tracker:
        before = [MemoryCallback(module, recorder, device, feed.parts)]
    if config.audit is not None:
        done = feed.epoch * feed.steps + feed.skip
        after = [AuditCallback(context, module, first=done, parts=feed.parts)]
    train(make_trainer(context, strategy, feed, *before, callback, *after), module, feed, callback)


def train(trainer: pl.Trainer, module: TrainingModule, feed: Feed, callback: StepCallback) -> None:
    """Have a trainer train a module, and have `callback` told of each step and epoch that has ended."""
    if isinstance(module, OwnModule):
        module.attach(lambda index: callback.end_batch(trainer, index), lambda: callback.end_epoch(trainer))
        data = getattr(module.context.arrays, "module", None)
        if data is None:
            trainer.fit(module.trained, feed, module.test_feed)
        else:
            trainer.fit(module.trained, datamodule=feeding(data, feed, module.test_feed))
    else:
        trainer.fit(module, feed)


def make_trainer(context: RankContext, strategy: Strategy, feed: Feed, *callbacks: pl.Callback) -> pl.Trainer:
    """Make the trainer of a module that is fed by `feed`, under a Lightning strategy, as configured.

    What follows a completed step is left to `callbacks`.
    """
    config = context.config
    gpu = feed.device.type == "cuda"
    trainer = pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=1 if context.world_size == 1 or gpu else context.world_size,
        strategy=strategy,
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
        max_epochs=config.epochs - feed.epoch,
        # An epoch that is resumed in its middle is shorter than the next ones.
        reload_dataloaders_every_n_epochs=1 if feed.skip else 0,
        accumulate_grad_batches=feed.parts,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        # `callback` evaluates.
        check_val_every_n_epoch=NEVER,
    )
    leave_sigterm_to_the_parent(trainer)
    return trainer
