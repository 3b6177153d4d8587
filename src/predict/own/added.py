"""Add to the step of one device what the workers of a strategy exchange besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from src.config import Config, ConfigError
from src.measure.kernels import UPDATE, WAIT
from src.predict.program import Event, Program

ALL_REDUCE, SERVERS = "all_reduce", "servers"
FETCH, PUSH = "fetch", "push"
# The part of a gradient's bytes that is pushed (src/runtime/torch/parameter_server/pushes.py); elements of
# `topk` have their places with them.
PUSHED = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}


def every(config: Config) -> tuple[int, int]:
    """Return once in how many steps a run's workers fetch and push, or average."""
    names = (config.strategy.get("predicted") or {}).get("every")
    if names is None:
        return 1, 1
    first, *rest = [names] if isinstance(names, str) else names
    return config.strategy[first], config.strategy[rest[0] if rest else first]


def exchanges(config: Config) -> str | None:
    """Return what a run's workers exchange besides what is rehearsed: `all_reduce`, `servers` or `None`.

    Raises:
        ConfigError: for anything else.
    """
    found: str | None = (config.strategy.get("predicted") or {}).get("exchanges")
    if found not in (None, ALL_REDUCE, SERVERS):
        raise ConfigError(
            f"strategy={config.strategy['name']}: predicted.exchanges={found}: must be {ALL_REDUCE} or "
            f"{SERVERS}"
        )
    return found


def added(program: Program, config: Config, trained_bytes: float) -> Program:
    """Return the program of one device with what a run's workers exchange besides.

    Args:
        program: of one device alone.
        config: the run's.
        trained_bytes: of all trained parameters, and so of their gradients.
    """
    kind = exchanges(config)
    if kind is None or (config.workers == 1 and kind == ALL_REDUCE):
        return program
    first, second = every(config)
    if kind == ALL_REDUCE:
        return _before_update(program, _exchange(ALL_REDUCE, trained_bytes, config.workers, 1, 1 / first))
    servers = config.strategy["servers"]
    options = config.strategy
    share = PUSHED.get(options.get("compression", "none"), 2 * options.get("compression_ratio", 0.0))
    fetch = _exchange(FETCH, trained_bytes / servers, config.workers, 1, 1 / first)
    push = _exchange(PUSH, share * trained_bytes / servers, config.workers, 2, 1 / second)
    found = _before_update(dataclasses.replace(program, events=(*fetch, *program.events)), push)
    # Each server updates its own part.
    updates = any(event.kind == UPDATE for event in program.events)
    return dataclasses.replace(found, last_seconds=found.last_seconds / (servers * second if updates else 1))


def _exchange(kind: str, size: float, ranks: int, call: int, share: float) -> tuple[Event, Event]:
    """Return an exchange, which is done in a part of the steps, and the wait for it."""
    return Event(kind, round(size), ranks, -call, 0.0, share=share), Event(WAIT, 0, 0, -call, 0.0)


def _before_update(program: Program, further: Sequence[Event]) -> Program:
    """Return a program with further events before its update, or at its end where it shows none."""
    events = program.events
    place = next((i for i, event in enumerate(events) if event.kind == UPDATE), None)
    first, *others = further
    if place is None:
        begun = dataclasses.replace(first, seconds=program.last_seconds)
        return Program((*events, begun, *others), 0.0)
    begun = dataclasses.replace(first, seconds=events[place].seconds)
    update = dataclasses.replace(events[place], seconds=0.0)
    return Program((*events[:place], begun, *others, update, *events[place + 1 :]), program.last_seconds)
