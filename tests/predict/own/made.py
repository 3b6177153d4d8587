"""Profiles that are made up, of steps and operations whose seconds are simple numbers."""

from __future__ import annotations

from typing import Any

from src.config import Config
from src.predict.own import cost_profile
from src.predict.own.cost_profile import Point, Profile

SIZES = (0, 2**20, 4 * 2**20, 64 * 2**20)
OPERATIONS = ("all_reduce", "all_reduce_in_shared_memory", "all_gather", "reduce_scatter", "send_receive")


def exchanges(seconds_per_mib: float, ranks: int = 2) -> dict[str, Any]:
    """Exchanges between ranks of one host that take as long for each MiB, and no latency."""
    rows = [
        {
            "operation": operation,
            "sizes": [{"bytes": size, "seconds": size / 2**20 * seconds_per_mib} for size in SIZES],
        }
        for operation in OPERATIONS
    ]
    return {"ranks": ranks, "device": "cpu device of 1 core(s)", "links": None, "rows": rows}


def steps_point(config: Config, seconds: float, size: int = 2**20) -> Point:
    """A rehearsal: so many seconds for each sample, an all-reduce, and a second of update."""
    computed = seconds * config.microbatch
    events = [
        {"kind": "all_reduce", "bytes": size, "ranks": config.workers, "call": 1, "seconds": computed},
        {"kind": "wait", "bytes": 0, "ranks": 0, "call": 1, "seconds": 0.0},
        {"kind": "update", "bytes": 0, "ranks": 0, "call": 0, "seconds": 0.0},
    ]  # fmt: skip
    rank = {"events": events if config.workers > 1 else [events[-1]], "last_seconds": 1.0, "computed": [1.0]}
    if config.workers == 1:
        rank["events"] = [{**events[-1], "seconds": computed}]
    return _point(cost_profile.STEPS, config, [rank])


def operations_point(config: Config, count: int = 4) -> Point:
    """Operations of a second forward and two backward a sample, with tensors of no size between them."""
    samples = float(config.microbatch)
    names = [f"operation{number}" for number in range(count)]
    rank = {
        "model": {
            "names": names,
            "crossing": [[{"name": "x", "nbytes": 0, "requires_grad": True}]] * (count + 1),
            "modules": {},
            "preferred": [],
        },
        "costs": {
            "seconds": [3 * samples] * count,
            "parameters": [1] * count,
            "weight_bytes": [4.0] * count,
            "kept_bytes": [0.0] * count,
            "forward_seconds": [samples] * count,
            "input_backward_seconds": [samples] * count,
        },
        "step": {
            "forward": samples * count,
            "loss": 0.0,
            "backward": 2 * samples * count,
            "update": 4.0,
            "clear": 0.0,
        },
    }
    return _point(cost_profile.OPERATIONS, config, [rank])


def _point(kind: str, config: Config, ranks: list[dict[str, Any]]) -> Point:
    return Point(
        kind=kind,
        model=config.model["name"],
        identity=cost_profile.identity(config),
        code=cost_profile.code_of(config),
        microbatch=config.microbatch,
        beside=config.workers,
        ranks=ranks,
    )


def profile(*points: Point, seconds_per_mib: float = 1.0) -> Profile:
    """A profile of these points on a host of two devices."""
    return Profile(points, (exchanges(seconds_per_mib),), cost_profile.machine())
