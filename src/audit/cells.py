"""Make the configurations of an audit: those of the audited runs, and of the reference of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from src.compat.hydra import split_sweep
from src.config import Config, ConfigError, choices, command_line, compose
from src.data import prepared as data

# What is said of how the work is divided, which one device doesn't have.
DIVISION = ("strategy", "workers", "microbatches", "batch_shares", "scaling", "batch", "batchnorm", "out")
# Steps that are compared.
STEPS = 10
# Test samples that are evaluated at the end, for each worker.
TESTED = 2
# What changes a process of torch's as an audit asks for.
ENTER = "src.runtime.torch.audit.changes.enter"
# Words of strategies that with one worker are one device's training.
ASYNCHRONOUS = ("asynchronous", "stale")
# Strategies that are held against a rule of their own, in one process.
RULES = {"local_sgd": "src.strategies.torch.local_sgd_alone.train"}


@dataclass(frozen=True)
class Pair:
    """A run that is audited, and what it is held against.

    Attributes:
        run: the configuration of the run.
        plain: that of the same work on one device.
        label: what the run is called: its strategy, workers, and what else the command line varies.
    """

    run: Config
    plain: Config
    label: str


def pairs(words: Sequence[str]) -> list[Pair]:
    """Return what a command line asks for; several values of a key, as `strategy=ddp,mpi`, are as many pairs.

    Raises:
        ConfigError: for a mistake.
    """
    line = command_line.parse(["-m", *words])
    flags = [] if line.config_dir is None else ["--config-dir", line.config_dir]
    # All of them first, as any sweep is checked.
    runs = compose.cells(line)
    parsed = command_line.parse_overrides(line.overrides)
    varied = {str(each.key_or_group) for each in parsed if each.is_sweep_override()} - {"strategy", "workers"}
    found = []
    for run, row in zip(runs, split_sweep(parsed), strict=True):
        label = f"{run.strategy['name']} on {run.workers}"
        label = ", ".join([label, *(word for word in row if word.lstrip("+").partition("=")[0] in varied)])
        found.append(Pair(run, plain(run, [*flags, *row]), label))
    return found


def plain(config: Config, row: Sequence[str]) -> Config:
    """Return the configuration of one device that does the same work as one which is made of these words."""
    strategy = next(
        name
        for name in choices.plain_strategies()
        if choices.read(choices.find("strategy", name))["framework"] == config.framework
    )
    kept = [word for word in row if not _divides(word)]
    line = command_line.parse([*kept, f"strategy={strategy}", f"batch={config.global_batch}"])
    (found,) = compose.cells(line)
    return found


def _divides(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key in DIVISION or key.startswith("strategy.")


def prepared(config: Config, precision: str) -> Config:
    """Return the configuration of an audited run in a precision, `fp64` or `own`, and nothing else to do."""
    enter = ENTER if config.framework == "torch" else None
    audit = {"precision": precision, "steps": STEPS, "changes": [], "alike": 1, "enter": enter}
    per_epoch = max(1, data.samples(config.dataset) // config.global_batch)
    return replace(
        config,
        audit=audit,
        epochs=max(config.epochs, -(-STEPS // per_epoch)),
        precision="fp32" if precision == "fp64" else config.precision,
        dataset={**config.dataset, "test_limit": TESTED * config.workers},
        hardware=replace(config.hardware, repeat_disturbed=0, probe=False),
        tracking={"backend": "none", "study": None},
        strategy={**config.strategy, "max_restarts": 0},
        evaluate_every=None,
        target_accuracy=None,
        stop_at_target=False,
        checkpoint_every=None,
        resume=None,
        profiler=False,
        memory_tracker=False,
    )


def check_claims(config: Config) -> None:
    """Raise `ConfigError` where a strategy's steps claim to be no other training's."""
    strategy = config.strategy
    claimed = config.synchronous or strategy["name"] in RULES or strategy["parity"] in ASYNCHRONOUS
    if not claimed or (not config.synchronous and config.supports.workers.min > 1):
        raise ConfigError(
            f"strategy={strategy['name']}: differs from one device by design ({strategy['parity']}), and "
            "nothing is claimed of its steps"
        )


def one_at_a_time(config: Config) -> Config:
    """Return the configuration with one worker, as far as an asynchronous strategy is one device's."""
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


def stopped(config: Config) -> Config:
    """Return the configuration of an audited run that is stopped in its middle, and writes a checkpoint."""
    assert config.audit is not None
    half = config.audit["steps"] // 2
    return replace(config, audit={**config.audit, "steps": half}, checkpoint_every=half)


def without_state(config: Config) -> Config:
    """Return the configuration with an optimizer that has no state: plain SGD."""
    return replace(config, optimizer={**config.optimizer, "name": "sgd", "momentum": 0.0})
