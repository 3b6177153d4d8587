"""Add to the step of one device what the workers of a strategy exchange besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from src.config import Config, ConfigError
from src.measure.kernels import UPDATE, WAIT
from src.predict.program import Event, Program

ALL_REDUCE, SERVERS = "all_reduce", "servers"
ASK, FETCH, PUSH = "ask", "fetch", "push"
# The part of a gradient's bytes that is pushed (src/runtime/torch/parameter_server/pushes.py).
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


def anything(config: Config, rehearsed: Config) -> bool:
    """Return whether a run's workers exchange anything, with each other or with servers.

    Args:
        config: the run's.
        rehearsed: the run that is rehearsed for it (`stand_in.of`).
    """
    kind = exchanges(config)
    # Servers are others even where there is one worker.
    within = config.workers > 1 and (kind is not None or rehearsed.workers > 1)
    return kind == SERVERS or within


def added(program: Program, config: Config, trained_bytes: float) -> Program:
    """Return the program of one device with what a run's workers exchange besides.

    Args:
        program: of one device alone.
        config: the run's.
        trained_bytes: of all trained parameters, and so of their gradients.
    """
    kind, predicted = exchanges(config), config.strategy.get("predicted") or {}
    if kind is None or (config.workers == 1 and kind == ALL_REDUCE):
        return program
    first, second = every(config)
    if kind == ALL_REDUCE:
        summed = _exchange(ALL_REDUCE, trained_bytes, config.workers, 1, 1 / first)
        losses = predicted.get("loss_bytes")
        further = _exchange(ALL_REDUCE, losses, config.workers, 2, 1.0) if losses else ()
        return _before_update(program, [*summed, *further])
    options = config.strategy
    share = PUSHED[options.get("compression", "none")]
    # The coordinator's round trip comes first.
    asked = _exchange(ASK, 0, 1, 1, 1.0)
    fetch = _exchange(FETCH, trained_bytes, config.workers, 2, 1 / first)
    push = _exchange(PUSH, share * trained_bytes, config.workers, 3, 1 / second)
    found = _before_update(dataclasses.replace(program, events=(*asked, *fetch, *program.events)), push)
    # Each server updates its own part, on a core of a worker's.
    updates = any(event.kind == UPDATE for event in program.events)
    at_once = min(options["servers"], config.workers) if updates else 1
    return dataclasses.replace(found, last_seconds=found.last_seconds / at_once)


def waited_for(program: Program) -> Program:
    """Return a program in which each exchange is waited for at once."""
    events: list[Event] = []
    for number, event in enumerate(program.events):
        events.append(event)
        following = program.events[number + 1 : number + 2]
        waits = bool(following) and following[0].kind == WAIT and following[0].call == event.call
        if event.kind not in (WAIT, UPDATE) and not waits:
            events.append(Event(WAIT, 0, 0, event.call, 0.0))
    return dataclasses.replace(program, events=tuple(events))


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
