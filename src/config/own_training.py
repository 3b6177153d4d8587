"""Check what goes with a LightningModule that trains as its author wrote it: its own step, its own update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from src.config import class_text
from src.config.mistakes import ConfigError
from src.config.run_config import Config

# The name of the update that a LightningModule's `configure_optimizers` makes.
OWN = "own"
# The task of a module that is scored by its own validation.
OWN_TASK = "lightning"


def is_own(config: Config) -> bool:
    """Return whether the model has a training step of its own."""
    return bool(config.model.get("own_training"))


def has_own_update(config: Config) -> bool:
    """Return whether the model has optimizers of its own."""
    return config.optimizer["name"] == OWN


def fill(raw: dict[str, Any], overrides: Sequence[str]) -> None:
    """Have a composition say that its LightningModule has optimizers of its own, where it does.

    Its keys `optimizer.*` then have no value.

    Raises:
        ConfigError: where the user has set one of them nevertheless.
    """
    path = raw["model"].get("path")
    if not raw["model"].get("own_training") or not path:
        return
    if not class_text.defines(path, "configure_optimizers"):
        return
    if typed := [word for word in overrides if word.lstrip("+").startswith("optimizer.")]:
        raise ConfigError(
            f"{typed[0]}: {path} has a configure_optimizers, which decides that; leave it away, or choose "
            f"model=custom, which trains its forward by the task's loss and optimizer.*"
        )
    raw["optimizer"] = {**dict.fromkeys(raw["optimizer"]), "name": OWN}


def check_own_training(config: Config) -> None:
    """Raise `ConfigError` where a key doesn't go with a LightningModule's own step, or needs one."""
    strategy = config.strategy["name"]
    if not is_own(config):
        if config.task["name"] == OWN_TASK:
            raise ConfigError(
                f"task={OWN_TASK}: is a LightningModule's own validation; choose model=lightning "
                "model.path=package.module.Class"
            )
        return
    if config.framework == "torch" and not config.supports.training_step:
        raise ConfigError(
            f"model=lightning: strategy={strategy} has a step of its own and can't run a LightningModule's; "
            f"choose strategy=single, ddp, mpi or local_sgd, or model=custom model.path="
            f"{config.model['path']}, which trains its forward by the task's loss and optimizer.*"
        )
    refused: Mapping[str, str] = {
        "checkpoint_every": "what a LightningModule keeps besides its weights is in no checkpoint",
        "resume": "what a LightningModule keeps besides its weights is in no checkpoint",
    }
    for key, reason in refused.items():
        if (value := getattr(config, key)) is not None:
            raise ConfigError(f"{key}={value}: {reason}; leave it away with model=lightning")
    if config.strategy.get("compile"):
        raise ConfigError(
            "strategy.compile=true: compiles a model's forward, and a LightningModule's own step is run as "
            "it is; leave it away with model=lightning"
        )
