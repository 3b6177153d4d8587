"""Training any torch strategy through PyTorch Lightning: one module, one feed, one callback.

Lightning runs the loop and its Strategy distributes; `module.py`, `feed.py` and `conductor.py` are what
Scaleguide adds to every strategy: evaluation of each test sample once, the shared order of samples, the
clock, and an agreed end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytorch_lightning as pl
from pytorch_lightning.plugins.environments import TorchElasticEnvironment
from pytorch_lightning.strategies import Strategy
from torch import nn

from src.measure.recorder import Recorder
from src.runtime.torch import checkpoint
from src.runtime.torch.basics import begin, build, root_device
from src.runtime.torch.conductor import Conductor
from src.runtime.torch.module import Training
from src.worker import Run


def environment() -> TorchElasticEnvironment:
    """How Lightning learns rank and world size: from torchrun's environment variables."""
    return TorchElasticEnvironment()


def fit(
    run: Run,
    recorder: Recorder,
    strategy: Strategy,
    *,
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model,
    before_evaluation: Callable[[Training], None] = lambda module: None,
) -> None:
    """Trains a copy of the model a rank under a Lightning strategy and fills the record.

    `prepare` changes the seeded model before training (as a synchronised BatchNorm does);
    `before_evaluation` brings the ranks' copies together where they differ between steps.
    """
    begin(run)
    fit_module(run, recorder, strategy, Training(run, prepare(build(run))), before_evaluation)


def fit_module(
    run: Run,
    recorder: Recorder,
    strategy: Strategy,
    module: Training,
    before_evaluation: Callable[[Training], None] = lambda module: None,
) -> None:
    """Trains a module under a Lightning strategy and fills the record."""
    config = run.config
    device = root_device(run)
    feed = module.feed(recorder, device)
    resumed = None if config.resume is None else checkpoint.read(config, run.arrays.train_samples)
    if resumed is not None:
        feed.start_at(resumed["epoch"], resumed["step"])
        step = resumed["epoch"] * feed.steps + resumed["step"]
        recorder.resume_at(step, batches=step, per_epoch=feed.steps)
    gpu = device.type == "cuda"
    trainer = pl.Trainer(
        accelerator="gpu" if gpu else "cpu",
        devices=1 if run.world_size == 1 or gpu else run.world_size,
        strategy=strategy,
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
        max_epochs=config.epochs - feed.epoch,
        # An epoch that is resumed in its middle is shorter than the next ones.
        reload_dataloaders_every_n_epochs=1 if feed.skip else 0,
        accumulate_grad_batches=feed.parts,
        callbacks=[Conductor(run, recorder, feed, lambda: before_evaluation(module), resumed)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )
    _leave_sigterm_to_the_parent(trainer)
    trainer.fit(module, feed)


def _leave_sigterm_to_the_parent(trainer: pl.Trainer) -> None:
    """Lightning 2.6 broadcasts before every batch whether rank 0 got a SIGTERM, and waits for it.

    Here the parent ends all ranks together, and the broadcast would be timed with every step.
    """
    loop = trainer.fit_loop.epoch_loop
    if hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = lambda: None
