"""What any checkpoint must say before a run goes on from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from src.config import Config, ConfigError


def check(config: Config, found: Mapping[str, Any], optimizer: str, samples: int) -> None:
    """`found` has `epoch`, `step`, and what the order of samples depends on; `optimizer` is whose state it
    holds, `samples` how many this run trains on.

    Raises:
        ConfigError: when samples would come in another order, nothing is left to train, or the
            optimizer is another.
    """
    known = {"seed": config.seed, "global_batch": config.global_batch, "train_samples": samples}
    for key, here in known.items():
        # Older checkpoints don't say how many samples there were.
        if found.get(key, here) != here:
            raise ConfigError(
                f"resume={config.resume}: was written with {key.replace('_', ' ')} {found[key]}, and this "
                f"run has {here}; its samples would come in another order"
            )
    # A job that is started again may have been done.
    if found["epoch"] >= config.epochs and "SCALEGUIDE_RESUME" not in os.environ:
        raise ConfigError(
            f"resume={config.resume}: has {found['epoch']} epochs done; "
            f"choose epochs={found['epoch'] + 1} or more"
        )
    if optimizer != config.optimizer["name"]:
        raise ConfigError(
            f"resume={config.resume}: has the state of optimizer {optimizer}, and this run updates by "
            f"{config.optimizer['name']}; choose optimizer.name={optimizer}"
        )
