"""What any checkpoint must say before a run goes on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from src.config import Config, ConfigError


def check(config: Config, found: Mapping[str, Any], optimizer: str) -> None:
    """`found` has `epoch`, `step`, `seed` and `global_batch`; `optimizer` is whose state it holds.

    Raises:
        ConfigError: when samples would come in another order, nothing is left to train, or the
            optimizer is another.
    """
    for key, here in (("seed", config.seed), ("global_batch", config.global_batch)):
        if found[key] != here:
            raise ConfigError(
                f"resume={config.resume}: was written with {key.replace('_', ' ')} {found[key]}, and this "
                f"run has {here}; its samples would come in another order"
            )
    if found["epoch"] >= config.epochs:
        raise ConfigError(
            f"resume={config.resume}: has {found['epoch']} epochs done; "
            f"choose epochs={found['epoch'] + 1} or more"
        )
    if optimizer != config.optimizer["name"]:
        raise ConfigError(
            f"resume={config.resume}: has the state of optimizer {optimizer}; "
            f"choose optimizer.name={optimizer}"
        )
