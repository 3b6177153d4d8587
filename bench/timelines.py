"""Hold pipelines' recorded timelines against those that are simulated of the same passes.

python -m bench.timelines results/schedules [results/predicted ...]

For each finished run of a pipeline in these folders: whether each rank did what the schedule's table says, in
its order, in every recorded step, and how long a step takes that is simulated of the recorded passes, and of
transfers as the run's plan has them, over the recorded one.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from src.config import Config, load
from src.config.schedules import SCHEDULES
from src.partition.schedules import tables
from src.partition.schedules.actions import Action, Kind, Table
from src.partition.schedules.measured import PASSES, Schedule
from src.partition.schedules.simulation import ACTIVITIES, Costs, simulate
from src.run import files

GOAL = 0.03
# What is expected of a rank that has done all that its table has.
NOTHING = Action(-1, Kind.FORWARD, -1)
Event = Mapping[str, Any]


def schedule_of(config: Config) -> Schedule:
    """Return the schedule that a run of a pipeline had."""
    return Schedule(
        config.strategy["schedule"], config.degrees.pipeline, config.virtual_stages, config.microbatches
    )


@dataclass
class Step:
    """A recorded step: what each rank did, and from when to when, in order."""

    seen: dict[int, list[Action]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[Action, float] = field(default_factory=dict)
    updates: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    begin: float = math.inf
    end: float = 0.0


def steps_of(schedule: Schedule, events: Sequence[Event]) -> Iterator[Step]:
    """Yield the recorded steps of which each rank has recorded as many passes as its table has, or more."""
    orders = tables.table(schedule.name, schedule.ranks, schedule.virtual, schedule.microbatches)
    found: dict[int, Step] = defaultdict(Step)
    for event in sorted(events, key=lambda each: each["ts"]):
        step, rank = found[event["args"]["step"]], event["pid"]
        seconds, done = event["dur"] / 1e6, step.seen[event["pid"]]
        if event["cat"] in PASSES:
            expected = orders[rank][len(done)] if len(done) < len(orders[rank]) else NOTHING
            kinds = [kind for kind, name in ACTIVITIES.items() if name == event["cat"]]
            # The table alone tells of which stage a pass is.
            same = expected.kind in kinds and expected.microbatch == event["args"]["microbatch"]
            done.append(expected if same else Action(-1, kinds[0], event["args"]["microbatch"]))
            step.seconds[done[-1]] = seconds
        elif event["cat"] in ("loss", "send") and done:
            # Its loss, and handing over what it sends, keep a rank from its next pass.
            step.seconds[done[-1]] += seconds
        elif event["cat"] == "optimizer":
            step.updates[rank] += seconds
        if event["cat"] in (*PASSES, "loss", "optimizer"):
            step.begin = min(step.begin, event["ts"] / 1e6)
            step.end = max(step.end, (event["ts"] + event["dur"]) / 1e6)
    yield from (step for step in found.values() if _is_whole(step, orders))


def _is_whole(step: Step, orders: Table) -> bool:
    return all(len(step.seen[rank]) >= len(own) for rank, own in enumerate(orders))


def transfers(partition: Mapping[str, Any]) -> np.ndarray:
    """Return the seconds of a transfer one way over each boundary, as the run's plan has them."""
    # A stage's are those over both of its boundaries, there and back.
    found = [0.0]
    for stage in partition["stages"]:
        found.append(stage["transfer_seconds"] - found[-1])
    return np.array(found[1:-1]) / 2


def simulated(schedule: Schedule, step: Step, sent: np.ndarray) -> float:
    """Return the seconds of a step whose passes take what they took, by the schedule's table."""
    nothing = np.zeros(schedule.ranks * schedule.virtual)
    costs = Costs(
        forward=nothing,
        input_backward=nothing,
        weight_backward=nothing,
        optimizer=np.array([step.updates[rank] for rank in range(schedule.ranks)]),
        passes=step.seconds,
        sent=sent,
        sent_back=sent,
    )
    order = tables.table(schedule.name, schedule.ranks, schedule.virtual, schedule.microbatches)
    return float(simulate(order, SCHEDULES[schedule.name].placement, costs).step_seconds)


def held(folders: Sequence[Path]) -> Iterator[tuple[str, bool, float]]:
    """Yield what each run is, whether it is in order, and its simulated steps over its recorded ones."""
    for folder in folders:
        for path in sorted(folder.glob(f"**/{files.TIMELINE}")):
            config = load(path.parent / files.CONFIG)
            if config.strategy["name"] != "pipeline":
                continue
            events = [each for each in json.loads(path.read_text())["traceEvents"] if each["ph"] == "X"]
            schedule = schedule_of(config)
            steps = list(steps_of(schedule, events))
            if not steps:
                continue
            ordered = all(action.stage >= 0 for each in steps for action in each.seconds)
            sent = transfers(json.loads((path.parent / files.PARTITION).read_text()))
            ratio = median(simulated(schedule, each, sent) / (each.end - each.begin) for each in steps)
            yield f"{config.model['name']} {schedule.name} m={schedule.microbatches}", ordered, ratio


def main() -> int:
    """Print a line a run; return whether some rank did something else."""
    found = list(held([Path(each) for each in sys.argv[1:]]))
    if not found:
        print("there is no run of a pipeline that was recorded")
        return 1
    for name, ordered, ratio in found:
        print(f"{ratio:.3f} {'in order' if ordered else 'NOT IN ORDER'} {name}")
    off = np.abs([ratio - 1 for _, _, ratio in found])
    print(
        f"{len(found)} runs, {sum(ordered for _, ordered, _ in found)} in order; simulated steps are off by "
        f"{np.median(off):.1%} in the median, {np.quantile(off, 0.9):.1%} at the 90th percentile; "
        f"{np.mean(off <= GOAL):.0%} within {GOAL:.0%}"
    )
    return int(not all(ordered for _, ordered, _ in found))


if __name__ == "__main__":
    sys.exit(main())
