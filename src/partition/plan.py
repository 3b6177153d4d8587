"""A cut chosen, with what it is expected to cost: printed when a run starts, and kept with it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from src.config import Config, ConfigError
from src.measure import arithmetic
from src.partition import balance, outline
from src.partition.balance import Problem
from src.partition.outline import Costs, Link, Outline

METHODS = ("layers", "size", "time", "optimal")


@dataclass(frozen=True)
class StagePlan:
    """One stage: operations `start` to `stop` - 1; seconds and bytes are for one micro-batch."""

    start: int
    stop: int
    first: str
    parameters: int
    seconds: float
    transfer_seconds: float
    memory_bytes: float
    sends: list[str]
    sent_bytes: int


@dataclass(frozen=True)
class Plan:
    """A cut into stages."""

    method: str
    operations: int
    boundaries: list[int]
    microbatches: int
    stages: list[StagePlan]
    predicted_step_seconds: float

    def json(self) -> str:
        """As `partition.json` keeps it."""
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True)
class Demands:
    """What the configuration asks of a cut.

    `state` is how many tensors of a weight's size the optimizer needs, gradient and weight included;
    `in_flight` how many micro-batches' activations each stage holds at once.
    """

    partition: str | Sequence[float | str]
    microbatches: int
    overlaps: bool
    state: int
    in_flight: Sequence[int]
    speeds: Sequence[float]
    memory_limit: float | None


def wanted(config: Config, *, overlaps: bool) -> Demands:
    """What a configuration asks of the cut."""
    options, optimizer = config.strategy, config.optimizer
    limit = options.get("memory_gib")
    return Demands(
        partition=options["partition"],
        microbatches=config.microbatches,
        overlaps=overlaps,
        state={"adam": 4, "adagrad": 3, "sgd": 3 if optimizer["momentum"] else 2}[optimizer["name"]],
        in_flight=_in_flight(config),
        speeds=options.get("speeds") or [1.0] * config.workers,
        memory_limit=None if limit is None else limit * 2**30,
    )


def _in_flight(config: Config) -> list[int]:
    """Micro-batches whose activations each stage keeps at once, at most."""
    options, stages = config.strategy, config.workers
    if options.get("checkpoint", "never") != "never" or "schedule" not in options:
        return [1] * stages
    if options["schedule"] == "1f1b":
        return [min(config.microbatches, stages - stage) for stage in range(stages)]
    return [config.microbatches] * stages


def make(model: Outline, costs: Costs, link: Link, demands: Demands) -> Plan:
    """The cut that `demands.partition` asks for.

    Raises:
        ConfigError: when the model can't be cut so.
    """
    problem = problem_of(model, costs, link, demands)
    boundaries = cut(model, problem, costs, demands)
    return describe(model, problem, costs, demands, boundaries)


def problem_of(model: Outline, costs: Costs, link: Link, demands: Demands) -> Problem:
    """The `optimal` problem: seconds of a micro-batch, forward and backward, transfers included."""
    crossing, sent = np.zeros((2, len(model.names) + 1))
    for boundary in range(1, len(model.names)):
        there = model.crossing[boundary]
        back = [value for value in there if value.requires_grad]
        sizes = [value.nbytes for value in [*there, *back]]
        crossing[boundary], sent[boundary] = link.seconds(sizes), sum(sizes)
    return Problem(
        cost=costs.seconds,
        crossing=crossing,
        sent=sent,
        weights=costs.weight_bytes * demands.state,
        kept=costs.kept_bytes,
        speeds=demands.speeds,
        in_flight=demands.in_flight,
        limit=demands.memory_limit,
    )


def cut(model: Outline, problem: Problem, costs: Costs, demands: Demands) -> list[int]:
    """The inner boundaries."""
    wanted, stages = demands.partition, len(demands.speeds)
    count = len(model.names)
    balance.check_stages(count, stages)
    if not isinstance(wanted, str):
        if any(isinstance(item, str) for item in wanted):
            return _named(model, [str(item) for item in wanted])
        return balance.by_share(count, [float(item) for item in wanted])
    if wanted == "layers":
        return balance.by_share(count, [1.0] * stages)
    if wanted == "optimal":
        return balance.best(problem)
    measured = costs.parameters if wanted == "size" else costs.seconds
    free = np.zeros(count + 1)
    plain = Problem(
        cost=measured,
        crossing=free,
        sent=problem.sent,
        weights=free[:-1],
        kept=free[:-1],
        speeds=[1.0] * stages,
        in_flight=demands.in_flight,
    )
    return balance.best(plain)


def _named(model: Outline, names: Sequence[str]) -> list[int]:
    found = [outline.boundary(model.names, name) for name in names]
    if any(b <= a for a, b in itertools.pairwise(found)):
        raise ConfigError(
            f"strategy.partition=[{','.join(names)}]: name the stages' first operations in order"
        )
    return found


def describe(
    model: Outline,
    problem: Problem,
    costs: Costs,
    demands: Demands,
    boundaries: Sequence[int],
) -> Plan:
    """What this cut is expected to cost, as measured operation by operation."""
    ends = [0, *boundaries, len(model.names)]
    stages = []
    for number, (start, stop) in enumerate(itertools.pairwise(ends)):
        crossing = model.crossing[stop] if stop < len(model.names) else ()
        transfer = float(problem.crossing[start] + problem.crossing[stop])
        stages.append(
            StagePlan(
                start=start,
                stop=stop,
                first=model.names[start],
                parameters=int(costs.parameters[start:stop].sum()),
                seconds=float(problem.cost[start:stop].sum() / demands.speeds[number]),
                transfer_seconds=transfer,
                memory_bytes=float(problem.memory(number, start, stop)),
                sends=[value.name for value in crossing],
                sent_bytes=sum(value.nbytes for value in crossing),
            )
        )
    if demands.memory_limit is not None and any(s.memory_bytes > demands.memory_limit for s in stages):
        balance.best(problem)  # raises when no cut would fit
        most = max(stage.memory_bytes for stage in stages)
        raise ConfigError(
            f"strategy.memory_gib={demands.memory_limit / 2**30:g}: this cut needs {most / 2**30:.2f} GiB on "
            "one device; strategy.partition=optimal finds one that fits"
        )
    taken = [stage.seconds + stage.transfer_seconds for stage in stages]
    microbatches = demands.microbatches
    step = (
        arithmetic.ideal_step_seconds(taken, microbatches, 0.0)
        if demands.overlaps
        else microbatches * sum(taken)
    )
    method = demands.partition if isinstance(demands.partition, str) else "given"
    return Plan(method, len(model.names), list(boundaries), microbatches, stages, step)


def show(plan: Plan) -> str:
    """The cut as a table for people."""
    table = Table(
        title=f"cut of {plan.operations} operations by {plan.method}", title_justify="left", box=None
    )
    for name in ("stage", "operations", "begins with", "parameters", "time", "transfer", "memory", "sends"):
        table.add_column(name, justify="left" if name in ("begins with", "sends") else "right")
    for number, stage in enumerate(plan.stages):
        sends = f"{len(stage.sends)}: {stage.sent_bytes / 2**10:,.0f} KiB" if stage.sends else "-"
        table.add_row(
            str(number),
            f"{stage.start}-{stage.stop - 1}",
            stage.first,
            f"{stage.parameters:,}",
            f"{stage.seconds * 1e3:.2f} ms",
            f"{stage.transfer_seconds * 1e3:.2f} ms",
            f"{stage.memory_bytes / 2**20:,.1f} MiB",
            sends,
        )
    console = Console(width=110, no_color=True)
    with console.capture() as caught:
        console.print(table)
        console.print(
            f"Times are of one micro-batch; {plan.microbatches} of them make a step, "
            f"predicted at {plan.predicted_step_seconds * 1e3:.1f} ms without the optimizer."
        )
    return "\n".join(line.rstrip() for line in caught.get().splitlines())


def as_numbers(costs: Costs, link: Link) -> dict[str, Any]:
    """What rank 0 measured, for the other ranks."""
    return {"costs": {key: value.tolist() for key, value in asdict(costs).items()}, "link": asdict(link)}


def from_numbers(told: Mapping[str, Any]) -> tuple[Costs, Link]:
    """The other side of `as_numbers`."""
    return Costs(**{key: np.array(value) for key, value in told["costs"].items()}), Link(**told["link"])
