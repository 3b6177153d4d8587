"""Find the run that is rehearsed in the place of another one, whose devices compute the same.

A strategy's file says by `predicted` whose step its devices compute, and what they exchange besides; without
that its own step is rehearsed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

from src.config import Config, ConfigError
from src.config.checks import decided_by_options
from src.config.choices import read, strategies
from src.config.keys import key_of
from src.config.run_config import CONF, Supports

# The keys of `predicted` (docs/extending.md).
KEYS = (
    "as", "options", "exchanges", "exchanges_like", "every", "through", "waits", "only", "loss_bytes",
    "one_at_a_time", "alone",
)  # fmt: skip


def of(config: Config) -> Config:
    """Return the run that is rehearsed, whose workers have equal devices and equal parts of a batch.

    Raises:
        ConfigError: where `predicted` isn't what it should be, or doesn't hold of the run.
    """
    plain = dataclasses.replace(
        config, batch_shares="equal", hardware=dataclasses.replace(config.hardware, speeds=None)
    )
    predicted = config.strategy.get("predicted")
    if not predicted:
        return plain
    _check(config, predicted)
    strategy = strategy_like(predicted["as"], config.strategy, predicted.get("options") or {})
    if Supports.of(strategy).workers.max != 1 and not predicted.get("alone"):
        return dataclasses.replace(plain, strategy=strategy)
    # One device alone has what is a worker's part of the batch.
    alone = dataclasses.replace(plain.hardware, links=None)
    return dataclasses.replace(
        plain, strategy=strategy, workers=1, batch=config.worker_batch, scaling="strong", hardware=alone
    )


def _check(config: Config, predicted: Mapping[str, Any]) -> None:
    name = config.strategy["name"]
    if "as" not in predicted or (unknown := sorted(predicted.keys() - set(KEYS))):
        wrong = "has no `as`" if "as" not in predicted else f"has {unknown[0]}"
        raise ConfigError(f"strategy={name}: its `predicted` {wrong}; keys are {', '.join(KEYS)}")
    every = predicted.get("every") or []
    options = [every] if isinstance(every, str) else list(every)
    options += [
        *(predicted.get("only") or {}),
        *(["servers"] if predicted.get("exchanges") == "servers" else []),
    ]
    for option in options:
        if option not in config.strategy:
            raise ConfigError(f"strategy={name}: its `predicted` names {option}, which is no option of it")
    for option, choices in (predicted.get("only") or {}).items():
        if (given := config.strategy[option]) not in choices:
            shown = str(given).lower() if isinstance(given, bool) else given
            raise ConfigError(f"strategy.{option}={shown}: steps with it can't be predicted yet")
    if config.batchnorm != "local":
        raise ConfigError(
            f"batchnorm={config.batchnorm}: steps of strategy={name} with it can't be predicted yet"
        )
    if config.hardware.device == "gpu":
        raise ConfigError(
            f"strategy={name}: what it copies between GPUs and their hosts can't be predicted yet"
        )


def beside(config: Config) -> int:
    """Return how many devices of a run compute at the same time."""
    alone = (config.strategy.get("predicted") or {}).get("one_at_a_time", False)
    return 1 if alone else config.workers


def strategy_like(name: str, strategy: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a strategy, by its name, with those of another one's options that it has, too, and `options`.

    Raises:
        ConfigError: for a name of none.
    """
    files = _files()
    if name not in files:
        raise ConfigError(f"strategy={strategy['name']}: is predicted as {name}, which is no strategy")
    found = {**_defaults(), **files[name], **options}
    shared = {
        key: strategy[key]
        for key in found
        if key in strategy and key not in options and not key_of(f"strategy.{key}").fixed and key != "name"
    }
    mixed = {**found, **shared}
    return {**mixed, **decided_by_options(mixed)}


@cache
def _files() -> Mapping[str, Any]:
    return strategies()


@cache
def _defaults() -> Mapping[str, Any]:
    """Return the options that all strategies have."""
    found: Mapping[str, Any] = read(CONF / "config.yaml")["strategy"]
    return found
