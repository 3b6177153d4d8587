"""Choose a cut and predict its costs, which are printed when a run starts and kept as partition.json."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from src.config import Config, ConfigError
from src.config.run_config import StrategyOptions
from src.config.schedules import SCHEDULES, Placement
from src.measure import arithmetic
from src.partition import balance, model_profile, recompute, step_search
from src.partition.balance import Problem
from src.partition.model_profile import Costs, Link, ModelProfile
from src.partition.saved_tensors import in_flight
from src.partition.schedules import tables
from src.partition.schedules.pipedream import WeightRule
from src.partition.step_search import Step

METHODS = ("layers", "size", "time", "optimal")


@dataclass(frozen=True)
class StagePlan:
    """One stage of a plan; seconds and bytes are for one micro-batch.

    Attributes:
        start: its first operation.
        stop: the first operation after it.
        first: name of the first operation.
        parameters: number of its parameters.
        seconds: of its operations, forward and backward.
        transfer_seconds: of the transfers over both of its boundaries.
        memory_bytes: needed on its device.
        sends: names of the tensors that it sends to the next stage.
        sent_bytes: bytes of these.
        again: runs of its operations (start, stop) whose forward pass is computed again.
        again_names: the first and the last operation of each.
        again_seconds: of the forward pass of these.
        saved_bytes: that autograd saves at its most, where some are computed again.
    """

    start: int
    stop: int
    first: str
    parameters: int
    seconds: float
    transfer_seconds: float
    memory_bytes: float
    sends: list[str]
    sent_bytes: int
    again: list[list[int]] = field(default_factory=list)
    again_names: list[str] = field(default_factory=list)
    again_seconds: float = 0.0
    saved_bytes: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A cut of a model into stages, by `strategy.partition`, with the step's predicted seconds.

    Attributes:
        devices: the device of each stage; empty where each has its own.
    """

    method: str
    operations: int
    boundaries: list[int]
    microbatches: int
    stages: list[StagePlan]
    predicted_step_seconds: float
    devices: list[int] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan with the text `text`, as `json` returns it."""
        entries = json.loads(text)
        return cls(**{**entries, "stages": [StagePlan(**stage) for stage in entries["stages"]]})

    def json(self) -> str:
        """Return the plan as the text of `partition.json`."""
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True, kw_only=True)
class CutOptions(StrategyOptions):
    """The options of a strategy that cuts the model.

    Attributes:
        partition, speeds: as `Demands` has them; without speeds all devices are alike.
        memory_gib: what one device has for the model, `None` without a limit.
        schedule: of a pipeline; `None` where one micro-batch follows the other.
        virtual_stages: stages of each worker.
        recompute: which micro-batches' activations are computed again for backward.
        stash: which versions of the weights a pipeline keeps that isn't emptied between steps; `None` else.
        vertical_sync: whether all of its stages use the same version for a micro-batch.
        tied: whether a weight that several layers share stays on one stage (`together`), or is on each of
            theirs, where its gradients are summed (`reduce`).
    """

    partition: str | Sequence[float | str]
    speeds: Sequence[float] | None = None
    memory_gib: float | None = None
    schedule: str | None = None
    virtual_stages: int = 1
    recompute: str = "none"
    stash: str | None = None
    vertical_sync: bool = False
    tied: str = "together"


@dataclass(frozen=True)
class Demands:
    """The demands of a configuration on a cut.

    Attributes:
        partition: a method (`METHODS`), each stage's share, or the first operation of each further stage.
        microbatches: micro-batches of a step.
        overlaps: whether stages work at the same time.
        state: number of tensors of a weight's size on a device: weight, gradient and optimizer state.
        in_flight: micro-batches whose activations each stage holds at once.
        speeds: of the stages' devices.
        memory_limit: bytes of each device, `None` without a limit.
        schedule: of a pipeline; `None` where one micro-batch follows the other.
        devices: the device of each stage.
        weighted: whether each stage needs parameters, as one that is sharded.
        versions: of the weights, of each stage; empty where all have one.
        held: micro-batches whose activations each stage holds at once, where operations are chosen that are
            computed again so that they fit; empty where none are.
        again: whether some are.
    """

    partition: str | Sequence[float | str]
    microbatches: int
    overlaps: bool
    state: int
    in_flight: Sequence[int]
    speeds: Sequence[float]
    memory_limit: float | None
    schedule: str | None = None
    devices: Sequence[int] = ()
    weighted: bool = False
    versions: Sequence[int] = ()
    held: Sequence[int] = ()
    again: bool = False


def demands_of(config: Config, *, overlaps: bool) -> Demands:
    """Return a configuration's demands on the cut; `overlaps` says whether stages work at the same time."""
    options, optimizer = CutOptions.of(config), config.optimizer
    workers, virtual, limit = config.degrees.pipeline, config.virtual_stages, options.memory_gib
    placement = SCHEDULES[options.schedule].placement if options.schedule else Placement.LOOP
    devices = [placement.rank(stage, workers) for stage in range(workers * virtual)]
    held: dict[int, int] = {}
    versions: list[int] = []
    # Activations that are computed again are there for one micro-batch at a time.
    order_of = tables.table(options.schedule, workers, virtual, config.microbatches)
    all_held = {stage: most for order in order_of for stage, most in in_flight(order).items()}
    for order in order_of:
        held |= in_flight(order) if options.recompute == "none" else {action.stage: 1 for action in order}
    if options.stash is not None:
        rules = [
            WeightRule(workers, stage, config.microbatches, options.stash, options.vertical_sync)
            for stage in range(workers)
        ]
        versions = [rule.versions for rule in rules]
        held = {rule.stage: rule.depth if options.recompute == "none" else 1 for rule in rules}
    speeds = options.speeds or [1.0] * workers
    return Demands(
        partition=options.partition,
        microbatches=config.microbatches,
        overlaps=overlaps,
        state={"adam": 4, "adamw": 4, "adagrad": 3, "sgd": 3 if optimizer["momentum"] else 2}[
            optimizer["name"]
        ],
        in_flight=[held[stage] for stage in range(len(devices))],
        speeds=[speeds[device] for device in devices],
        memory_limit=None if limit is None else limit * 2**30,
        schedule=options.schedule,
        devices=devices,
        weighted=config.degrees.shard > 1,
        versions=versions,
        again=options.recompute != "none",
        held=[all_held[stage] for stage in range(len(devices))] if options.recompute == "selective" else (),
    )


def make(model: ModelProfile, costs: Costs, link: Link, demands: Demands) -> Plan:
    """Choose the cut that `demands.partition` asks for, and predict its costs.

    Raises:
        ConfigError: when the model can't be cut so, or doesn't fit in memory.
    """
    problem = problem_of(model, costs, link, demands)
    step = step_of(model, problem, costs, link, demands)
    boundaries = cut(model, problem, costs, demands, step)
    return describe(model, problem, costs, demands, boundaries, step)


def step_of(model: ModelProfile, problem: Problem, costs: Costs, link: Link, demands: Demands) -> Step | None:
    """State the step that is simulated; `None` where each device has one stage, which needs no simulation."""
    if demands.schedule is None or _stages_a_device(demands) == 1:
        return None
    sent, sent_back = np.zeros((2, len(model.names) + 1))
    for boundary in range(1, len(model.names)):
        there = model.crossing[boundary]
        sent[boundary] = link.seconds([value.nbytes for value in there])
        sent_back[boundary] = link.seconds([value.nbytes for value in there if value.requires_grad])
    return Step(
        problem=problem,
        schedule=demands.schedule,
        devices=demands.devices,
        microbatches=demands.microbatches,
        passes=costs.passes(),
        sent=sent,
        sent_back=sent_back,
    )


def problem_of(model: ModelProfile, costs: Costs, link: Link, demands: Demands) -> Problem:
    """State the balancing problem of `optimal`: seconds of a micro-batch both ways, transfers included."""
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
        copies=[1 + (versions - 1) / demands.state for versions in demands.versions],
        weighted=demands.weighted,
        again=demands.again,
    )


def _stages_a_device(demands: Demands) -> int:
    return len(demands.devices) // len(set(demands.devices)) if demands.devices else 1


def cut(
    model: ModelProfile, problem: Problem, costs: Costs, demands: Demands, step: Step | None = None
) -> list[int]:
    """Return the inner boundaries of the cut that `demands.partition` asks for.

    `step` is what is simulated where devices have several stages.
    """
    partition, stages = demands.partition, len(demands.speeds)
    count = len(model.names)
    several = _stages_a_device(demands) > 1
    balance.check_stages(count, stages, "workers x strategy.virtual_stages" if several else "workers")
    if not isinstance(partition, str):
        if any(isinstance(item, str) for item in partition):
            return model_profile.named(model.names, model.modules, [str(item) for item in partition])
        return balance.by_share(count, [float(item) for item in partition])
    if partition == "layers":
        return balance.by_share(count, [1.0] * stages)
    if partition == "optimal":
        if step is not None:
            return step_search.best(step, model.preferred)
        return balance.best(problem, model.preferred)
    measured = costs.parameters if partition == "size" else costs.seconds
    free = np.zeros(count + 1)
    plain = Problem(
        cost=measured,
        crossing=free,
        sent=problem.sent,
        weights=problem.weights,
        kept=free[:-1],
        speeds=[1.0] * stages,
        in_flight=demands.in_flight,
        weighted=demands.weighted,
    )
    return balance.best(plain, model.preferred)


def describe(
    model: ModelProfile,
    problem: Problem,
    costs: Costs,
    demands: Demands,
    boundaries: Sequence[int],
    step: Step | None = None,
) -> Plan:
    """Predict a cut's costs from the measured costs of its operations.

    Raises:
        ConfigError: when a stage doesn't fit in memory.
    """
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
    devices = demands.devices or range(len(stages))
    most = max(
        sum(stage.memory_bytes for place, stage in zip(devices, stages, strict=True) if place == device)
        for device in set(devices)
    )
    if demands.memory_limit is not None and most > demands.memory_limit:
        # It raises when no cut would fit.
        balance.best(problem) if step is None else step_search.best(step)
        raise ConfigError(
            f"strategy.memory_gib={demands.memory_limit / 2**30:g}: this cut needs {balance.gib(most)} GiB "
            "on one device; strategy.partition=optimal finds one that fits"
        )
    if demands.held:
        stages = _recomputed(model, problem, costs, demands, stages)
    method = demands.partition if isinstance(demands.partition, str) else "given"
    seconds = _step_seconds(stages, demands)
    if step is not None:
        seconds = float(step.seconds(np.array(boundaries, dtype=int)[None])[0])
    return Plan(
        method, len(model.names), list(boundaries), demands.microbatches, stages, seconds, list(devices)
    )


def _recomputed(
    model: ModelProfile, problem: Problem, costs: Costs, demands: Demands, stages: Sequence[StagePlan]
) -> list[StagePlan]:
    """Return the stages with the operations that are computed again for the devices' memory, fewest seconds.

    Raises:
        ConfigError: when a stage doesn't fit in memory whatever is computed again.
    """
    assert demands.memory_limit is not None
    forward, _, _ = costs.passes()
    crossing = np.array([float(sum(value.nbytes for value in there)) for there in model.crossing])
    weights, found = problem.cumulative("weights"), list(stages)
    for device in set(demands.devices):
        own = [number for number, place in enumerate(demands.devices) if place == device]
        places = np.concatenate([np.arange(stages[number].start, stages[number].stop) for number in own])
        sizes = [stages[number].stop - stages[number].start for number in own]
        held = np.repeat([demands.held[number] for number in own], sizes)
        starts = [0, *itertools.accumulate(sizes[:-1])]
        passes = recompute.Passes(forward[places], costs.kept_bytes[places], crossing[places], held, starts)
        fixed = sum(weights[stages[each].stop] - weights[stages[each].start] for each in own)
        again = recompute.least(passes, demands.memory_limit - fixed)
        if again is None:
            least = fixed + passes.bytes([(a, a + size) for a, size in zip(starts, sizes, strict=True)])
            raise ConfigError(
                f"strategy.memory_gib={demands.memory_limit / 2**30:g}: this cut needs {balance.gib(least)} "
                "GiB on one device though all of it is computed again; use more workers or a smaller batch"
            )
        for number, begin in zip(own, starts, strict=True):
            stage = stages[number]
            size = stage.stop - stage.start
            runs = [(a - begin, b - begin) for a, b in again if begin <= a < begin + size]
            alone = recompute.Passes(
                *(
                    each[begin : begin + size]
                    for each in (passes.seconds, passes.saved, passes.entering, held)
                )
            )
            saved = alone.bytes(runs)
            found[number] = replace(
                stage,
                memory_bytes=float(weights[stage.stop] - weights[stage.start]) + saved,
                again=[[stage.start + a, stage.start + b] for a, b in runs],
                again_names=[
                    f"{model.names[stage.start + a]} to {model.names[stage.start + b - 1]}" for a, b in runs
                ],
                again_seconds=float(sum(alone.seconds[a:b].sum() for a, b in runs)),
                saved_bytes=saved,
            )
    return found


def _step_seconds(stages: Sequence[StagePlan], demands: Demands) -> float:
    """Predict a step's seconds without the optimizer; transfers keep a device's only stage busy."""
    taken = np.array([stage.seconds + stage.transfer_seconds for stage in stages])
    if not demands.overlaps:
        return float(demands.microbatches * taken.sum())
    if demands.versions:
        # The pipeline stays full: the next step's micro-batches follow at once.
        return float(demands.microbatches * taken.max())
    return arithmetic.ideal_step_seconds(list(taken), demands.microbatches, 0.0)
