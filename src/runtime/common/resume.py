"""Resume from a checkpoint of any framework: check the checkpoint, and complete the recorders' counts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from src.config import Config, ConfigError
from src.measure.recorder import Recorder
from src.run.variables import RESUME


def check_checkpoint(config: Config, checkpoint: Mapping[str, Any], optimizer: str, samples: int) -> None:
    """Check that this run can go on from a checkpoint.

    Args:
        config: this run's configuration.
        checkpoint: has `epoch`, `step`, and what the order of samples depends on (`seed`, `global_batch`,
            `train_samples`).
        optimizer: name of the optimizer whose state the checkpoint holds.
        samples: how many samples this run trains on.

    Raises:
        ConfigError: when samples would come in another order, nothing is left to train, or this run has
            another optimizer.
    """
    expected = {"seed": config.seed, "global_batch": config.global_batch, "train_samples": samples}
    for key, value in expected.items():
        # Older checkpoints don't say how many samples there were.
        written = checkpoint.get(key, value)
        if written != value:
            raise ConfigError(
                f"resume={config.resume}: was written with {key.replace('_', ' ')} {written}, and this "
                f"run has {value}; its samples would come in another order"
            )
    # A job that is started again after a failure may have had all its epochs done.
    if checkpoint["epoch"] >= config.epochs and RESUME not in os.environ:
        raise ConfigError(
            f"resume={config.resume}: has {checkpoint['epoch']} epochs done; "
            f"choose epochs={checkpoint['epoch'] + 1} or more"
        )
    if optimizer != config.optimizer["name"]:
        raise ConfigError(
            f"resume={config.resume}: has the state of optimizer {optimizer}, and this run updates by "
            f"{config.optimizer['name']}; choose optimizer.name={optimizer}"
        )


def resume_recorders(
    recorders: Sequence[Recorder], checkpoint: Mapping[str, Any], steps_per_epoch: int
) -> int:
    """Have recorders count on from a checkpoint; return how many global batches the checkpoint has done.

    Args:
        recorders: those of all ranks that this process records for, by rank.
        checkpoint: has `epoch` and `step`, and `worker_steps` where workers were asynchronous. Where the
            number of workers was another one, each recorder counts as many steps as there were batches.
        steps_per_epoch: global batches in an epoch.
    """
    step = int(checkpoint["epoch"]) * steps_per_epoch + int(checkpoint["step"])
    worker_steps = list(checkpoint.get("worker_steps", ()))
    worker_steps = worker_steps if len(worker_steps) == len(recorders) else [step] * len(recorders)
    for recorder, steps in zip(recorders, worker_steps, strict=True):
        recorder.resume_at(int(steps), batches=step, per_epoch=steps_per_epoch)
    return step


def complete_payload(recorder: Recorder, first: int) -> None:
    """Add the payload of steps that were recorded before the job was started again: that of later ones.

    Args:
        recorder: that of a rank which adds up its payload, after the last step.
        first: how many steps were done when the rank's process began.
    """
    steps = recorder.steps - first
    if 0 < steps < recorder.trained_steps:
        recorder.payload_bytes = recorder.payload_bytes // steps * recorder.trained_steps
