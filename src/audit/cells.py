"""Make the configurations of an audit: those of the audited runs, and of the reference of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from src.config import Config, ConfigError, choices, command_line, compose

# What is said of how the work is divided, which one device doesn't have.
DIVISION = ("strategy", "workers", "microbatches", "batch_shares", "scaling", "batch", "batchnorm", "out")
# Steps that are compared.
STEPS = 10
# Test samples that are evaluated at the end, for each worker.
TESTED = 2
RULES = {"local_sgd": "src.strategies.torch.local_sgd_alone.train"}


def audited(words: Sequence[str]) -> list[Config]:
    """Return the checked configurations that a command line asks for; raise `ConfigError` for a mistake."""
    return compose.cells(command_line.parse(["-m", *words]))


def words_of(config: Config, words: Sequence[str]) -> list[str]:
    """Return the words of a sweep that made one of its configurations, those that give one value alone.

    Raises:
        ConfigError: where anything but strategies is swept.
    """
    for override in command_line.parse_overrides(list(words)):
        if override.is_sweep_override() and override.key_or_group != "strategy":
            raise ConfigError(
                f"{override.input_line}: one value at a time is audited; several strategies may be named"
            )
    return list(words)


def plain(config: Config, words: Sequence[str]) -> Config:
    """Return the configuration of the one device that a configuration of these words is held against."""
    strategy = next(
        name
        for name in choices.plain_strategies()
        if choices.read(choices.find("strategy", name, []))["framework"] == config.framework
    )
    kept = [word for word in words if not _divides(word)]
    line = command_line.parse([*kept, f"strategy={strategy}", f"batch={config.global_batch}"])
    (found,) = compose.cells(line)
    return found


def _divides(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key in DIVISION or key.startswith("strategy.")


def prepared(config: Config, precision: str) -> Config:
    """Return the configuration of an audited run in a precision, `fp64` or `own`, and nothing else to do."""
    audit: dict[str, Any] = {"precision": precision, "steps": STEPS, "changes": [], "alike": 1}
    return replace(
        config,
        audit=audit,
        precision="fp32" if precision == "fp64" else config.precision,
        dataset={**config.dataset, "test_limit": TESTED * config.workers},
        hardware=replace(config.hardware, repeat_disturbed=0, probe=False),
        tracking={"backend": "none", "study": None},
        strategy={**config.strategy, "max_restarts": 0},
        evaluate_every=None,
        target_accuracy=None,
        checkpoint_every=None,
        resume=None,
        profiler=False,
    )


def one_at_a_time(config: Config) -> Config:
    """Return the configuration with one worker, as far as an asynchronous strategy is one device's."""
    if config.supports.workers.min > 1:
        raise ConfigError(
            f"strategy={config.strategy['name']}: {config.strategy['parity']}, by design; nothing is claimed "
            "of its steps"
        )
    return replace(config, workers=1, batch=config.global_batch, scaling="strong", batch_shares="equal")


def following(reference: Config, run: Config) -> Config:
    """Return the reference that follows the rule of the audited `run` in one process, where there is one."""
    rule = RULES.get(run.strategy["name"])
    if rule is None:
        return reference
    assert reference.audit is not None
    strategy: Mapping[str, Any] = {**reference.strategy, "entry": rule}
    follows = {**dataclasses.asdict(run), "audit": None}
    return replace(reference, strategy=strategy, audit={**reference.audit, "follows": follows})
