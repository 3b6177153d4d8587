"""Make the configured task."""

from __future__ import annotations

from typing import Any

from src.config import Config
from src.config.import_paths import resolve
from src.config.keys import key_of


def make(config: Config, *, classes: int, shape: tuple[int, ...]) -> Any:
    """Make the configured task for the strategy's framework.

    Args:
        config: the run's configuration.
        classes: how many classes the dataset has, or numbers to predict.
        shape: (height, width, channels) of the dataset's images.

    Raises:
        ConfigError: for an import path that names nothing.
    """
    options = {key: value for key, value in config.task.items() if not key_of(f"task.{key}").fixed}
    kind = resolve(f"task.{config.framework}", config.task[config.framework])
    return kind(classes=classes, shape=shape, options=options)
