"""Simulate a step of a pipeline: when each pass of a schedule's table begins and ends, and what is held.

A rank does its passes in the table's order, each as soon as what it needs has arrived. Two ranks are joined
by a link each way, which carries one message after the other while the ranks compute. Many configurations
of one table are simulated at once: costs may have any leading axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from src.config.schedules import SCHEDULES, Placement
from src.partition.schedules.actions import Action, Kind, Table
from src.partition.schedules.tables import table as table_of

ACTIVITIES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_BACKWARD: "backward",
    Kind.WEIGHT_BACKWARD: "weight_backward",
}


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of one micro-batch; leading axes, which broadcast, are configurations.

    Attributes:
        forward: seconds of a forward pass, [..., stages].
        input_backward, weight_backward: seconds of the parts of a backward pass, [..., stages].
        backward: seconds of a whole backward pass, which may share work; the sum of its parts by default.
        sent: seconds that what a stage sends to the next one occupies its link, [..., stages - 1].
        sent_back: seconds of the gradients that come back, [..., stages - 1].
        latency: seconds until a message that has left its link has arrived, [...].
        optimizer: seconds of a rank's update, [..., ranks].
        saved: bytes that a stage holds from its forward pass to its backward pass for inputs, [..., stages].
        saved_for_weights: bytes that it holds on until its backward pass for weights, [..., stages].
        passes: seconds of single passes, where they aren't those of their kind.
    """

    forward: np.ndarray
    input_backward: np.ndarray
    weight_backward: np.ndarray
    backward: np.ndarray | None = None
    sent: np.ndarray | float = 0.0
    sent_back: np.ndarray | float = 0.0
    latency: np.ndarray | float = 0.0
    optimizer: np.ndarray | float = 0.0
    saved: np.ndarray | float = 0.0
    saved_for_weights: np.ndarray | float = 0.0
    passes: Mapping[Action, float] = field(default_factory=dict)

    def seconds(self, kind: Kind) -> np.ndarray:
        """Return the seconds [..., stages] of a pass."""
        if kind is Kind.FORWARD:
            return self.forward
        if kind is Kind.INPUT_BACKWARD:
            return self.input_backward
        if kind is Kind.WEIGHT_BACKWARD:
            return self.weight_backward
        return self.input_backward + self.weight_backward if self.backward is None else self.backward


@dataclass(frozen=True)
class Simulated:
    """A simulated step, in seconds from its beginning.

    Attributes:
        table: what each rank does.
        start, end: of each rank's passes in the table's order, [..., passes] a rank.
        updated: the end of each rank's update, [..., ranks].
        costs: of which it was simulated.
    """

    table: Table
    start: tuple[np.ndarray, ...]
    end: tuple[np.ndarray, ...]
    updated: np.ndarray
    costs: Costs

    @cached_property
    def held(self) -> tuple[np.ndarray, ...]:
        """Return the bytes of saved tensors that ranks hold while each pass runs, [..., passes] a rank."""
        stages = 1 + max(action.stage for own in self.table for action in own)
        return tuple(_held(own, self.costs, stages) for own in self.table)

    @property
    def step_seconds(self) -> np.ndarray:
        """Return the seconds [...] from the first pass to the last update."""
        return self.updated.max(axis=-1)

    @property
    def bubble_fraction(self) -> np.ndarray:
        """Return the idle time over the total time of all ranks [...], as it is measured of timelines."""
        busy = sum((end - start).sum(axis=-1) for start, end in zip(self.start, self.end, strict=True))
        ended = np.stack([end[..., -1] for end in self.end], axis=-1)
        busy = busy + (self.updated - ended).sum(axis=-1)
        return 1 - busy / (len(self.table) * self.step_seconds)

    @property
    def held_most(self) -> np.ndarray:
        """Return the most bytes of saved tensors that each rank holds at once, [..., ranks]."""
        return np.stack([held.max(axis=-1) for held in self.held], axis=-1)

    def timelines(self, place: tuple[int, ...] = ()) -> dict[int, list[tuple[int, str, int, float, float]]]:
        """Return one configuration's activities of each rank, as `Timeline` records them.

        They are (step, activity, micro-batch, start, end); `place` is its index on the leading axes.
        """
        return {rank: list(self._activities(rank, place)) for rank in range(len(self.table))}

    def _activities(self, rank: int, place: tuple[int, ...]) -> Iterator[tuple[int, str, int, float, float]]:
        now = 0.0
        pairs = zip(self.table[rank], self.start[rank][place], self.end[rank][place], strict=True)
        for action, start, end in pairs:
            if start > now:
                yield 0, "wait", action.microbatch, now, float(start)
            yield 0, ACTIVITIES[action.kind], action.microbatch, float(start), float(end)
            now = float(end)
        yield 0, "optimizer", -1, now, float(self.updated[place][rank])


def simulate(table: Table, placement: Placement, costs: Costs) -> Simulated:
    """Simulate one step.

    Args:
        table: what each rank does (`tables.table`).
        placement: how its stages lie on the ranks.
        costs: of a micro-batch in each stage.

    Raises:
        ValueError: for a table in which passes wait for each other.
    """
    ranks = len(table)
    stages = 1 + max(action.stage for own in table for action in own)
    seconds = {kind: np.asarray(costs.seconds(kind), dtype=float) for kind in Kind}
    shapes = [seconds[kind].shape[:-1] for kind in Kind]
    links = max(stages - 1, 1)
    sent, back = (_filled(each, links) for each in (costs.sent, costs.sent_back))
    optimizer, latency = _filled(costs.optimizer, ranks), np.asarray(costs.latency, dtype=float)
    shape = np.broadcast_shapes(
        *shapes, sent.shape[:-1], back.shape[:-1], optimizer.shape[:-1], latency.shape
    )
    # One configuration alone is simulated by plain numbers, which are many times as fast as arrays of one.
    maximum = np.maximum if shape else max
    of_stage = {kind: _apart(each, stages, shape) for kind, each in seconds.items()}
    sent_from, back_to = _apart(sent, links, shape), _apart(back, links, shape)
    late: Any = latency if shape else float(latency)
    nothing: Any = np.zeros(shape) if shape else 0.0
    start: list[list[Any]] = [[] for _ in table]
    end: list[list[Any]] = [[] for _ in table]
    free = [nothing for _ in range(ranks)]
    link_free: dict[tuple[int, int], Any] = {}
    # When each pass's result is where it is needed next.
    there: list[Any] = []
    for rank, action, needs, other, boundary in _sequence(table, placement):
        begin = free[rank]
        for need in needs:
            begin = maximum(begin, there[need])
        own = costs.passes.get(action) if costs.passes else None
        free[rank] = arrived = begin + (of_stage[action.kind][action.stage] if own is None else own)
        start[rank].append(begin)
        end[rank].append(arrived)
        if other is not None:
            cost = sent_from[boundary] if action.kind is Kind.FORWARD else back_to[boundary]
            left = maximum(arrived, link_free.get((rank, other), nothing)) + cost
            link_free[rank, other] = left
            arrived = left + late
        there.append(arrived)
    updated = np.stack([np.broadcast_to(each, shape) for each in free], axis=-1) + optimizer
    starts, ends = (tuple(_together(each, shape) for each in every) for every in (start, end))
    return Simulated(table, starts, ends, updated, costs)


def _apart(values: np.ndarray, count: int, shape: tuple[int, ...]) -> list[Any]:
    """Return `values` [..., count] one by one, as plain numbers where there are no leading axes."""
    return [values[..., place] for place in range(count)] if shape else values.tolist()


def _together(moments: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return moments, [*shape] each, as one array [*shape, moments]."""
    return np.stack(moments, axis=-1) if shape else np.array(moments)


def ideal_bubble(name: str, ranks: int, virtual: int, microbatches: int) -> float:
    """Return the idle share of a schedule's own: all stages are alike, and all of their passes equally long.

    Raises:
        ValueError: for numbers that the schedule can't have.
    """
    alike = np.ones(ranks * virtual)
    costs = Costs(forward=alike, input_backward=alike, weight_backward=alike)
    placement = SCHEDULES[name].placement
    return float(simulate(table_of(name, ranks, virtual, microbatches), placement, costs).bubble_fraction)


def result_of(action: Action) -> Action:
    """Return the pass by which a result is known: a whole backward pass has inputs' gradients, too."""
    kind = Kind.INPUT_BACKWARD if action.kind is Kind.BACKWARD else action.kind
    return action._replace(kind=kind)


def needed(action: Action, stages: int) -> list[Action]:
    """Return the results (`result_of`) for which a pass waits, in a model of so many stages."""
    stage, kind, microbatch = action
    if kind is Kind.WEIGHT_BACKWARD:
        return [Action(stage, Kind.INPUT_BACKWARD, microbatch)]
    if kind is Kind.FORWARD:
        return [Action(stage - 1, Kind.FORWARD, microbatch)] if stage else []
    own = [Action(stage, Kind.FORWARD, microbatch)]
    return [*own, Action(stage + 1, Kind.INPUT_BACKWARD, microbatch)] if stage < stages - 1 else own


def _receiver(action: Action, stages: int) -> int | None:
    """Return the stage that is sent a pass's result, if there is one."""
    if action.kind is Kind.WEIGHT_BACKWARD:
        return None
    receiver = action.stage + (1 if action.kind is Kind.FORWARD else -1)
    return receiver if 0 <= receiver < stages else None


class _Pass(NamedTuple):
    """A pass in the order in which passes are simulated.

    Attributes:
        rank, action: what it is.
        needs: the places of those whose results it waits for.
        other: the rank that is sent its result, `None` where none is.
        boundary: over which it is sent.
    """

    rank: int
    action: Action
    needs: tuple[int, ...]
    other: int | None
    boundary: int


@lru_cache(maxsize=64)
def _sequence(table: Table, placement: Placement) -> list[_Pass]:
    """Return all passes, each after those that it waits for.

    Raises:
        ValueError: where passes wait for each other.
    """
    ranks, stages = len(table), 1 + max(action.stage for own in table for action in own)
    places: dict[Action, int] = {}
    found: list[_Pass] = []
    following = [0] * ranks
    while len(found) < sum(map(len, table)):
        before = len(found)
        for rank, own in enumerate(table):
            while following[rank] < len(own):
                action = own[following[rank]]
                needs = [places.get(each) for each in needed(action, stages)]
                if None in needs:
                    break
                receiver = _receiver(action, stages)
                other = None if receiver is None else placement.rank(receiver, ranks)
                boundary = 0 if receiver is None else min(action.stage, receiver)
                places[result_of(action)] = len(found)
                known = tuple(need for need in needs if need is not None)
                found.append(_Pass(rank, action, known, None if other == rank else other, boundary))
                following[rank] += 1
        if len(found) == before:
            waiting = [
                str(own[place]) for own, place in zip(table, following, strict=True) if place < len(own)
            ]
            raise ValueError(f"passes that wait for each other: {', '.join(waiting)}")
    return found


def _held(own: tuple[Action, ...], costs: Costs, stages: int) -> np.ndarray:
    """Return the bytes [..., passes] of saved tensors that a rank holds while each of its passes runs."""
    saved, for_weights = np.broadcast_arrays(
        _filled(costs.saved, stages), _filled(costs.saved_for_weights, stages)
    )
    held, now = np.empty((*saved.shape[:-1], len(own))), np.zeros(saved.shape[:-1])
    for number, action in enumerate(own):
        first, later = saved[..., action.stage], for_weights[..., action.stage]
        now = now + (first + later if action.kind is Kind.FORWARD else 0.0)
        held[..., number] = now
        freed = {Kind.BACKWARD: first + later, Kind.INPUT_BACKWARD: first, Kind.WEIGHT_BACKWARD: later}
        now = now - freed.get(action.kind, 0.0)
    return held


def _filled(values: np.ndarray | float, count: int) -> np.ndarray:
    """Return `values` [..., count], or one number for all of them."""
    array = np.asarray(values, dtype=float)
    return array if array.ndim else np.full(count, float(array))
