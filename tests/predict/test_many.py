"""A thousand configurations of a model of 300 operations on 64 devices are predicted in a minute."""

from __future__ import annotations

import itertools
import time

import numpy as np

from src.config.schedules import SCHEDULES, refusal
from src.measure.kernels import CONVOLUTION, GRADIENT, UPDATE, WAIT, Kernel, Kernels, Mark, Trace
from src.partition.schedules.simulation import Costs, simulate
from src.partition.schedules.tables import table
from src.predict.constants import Constants
from src.predict.layout import layout
from src.predict.row import parse
from src.predict.traced import programs
from src.predict.traced.steps import TracedStep

OPERATIONS = 300
DEVICES = 64
# Forward, and backward for inputs and weights.
KERNELS = [Kernel(2**15, 576, 64, 1, 2**24, kind=CONVOLUTION)] * (3 * OPERATIONS)


def traces() -> list[tuple[str, Trace]]:
    """Copies with a gradient an operation, and shards of sixteen groups that are gathered for both passes."""
    copies = [Mark(OPERATIONS + 2 * number, GRADIENT, 2**20) for number in range(OPERATIONS)]
    update = Mark(len(KERNELS), UPDATE)
    shards = []
    for call, place in enumerate(range(0, len(KERNELS), len(KERNELS) // 48)):
        shards += [Mark(place, "all_gather", 2**24, 2, 1, call), Mark(place, WAIT, call=call)]
    kernels = Kernels.of(KERNELS)
    return [
        ("data", programs.with_buckets(Trace(kernels, (*copies, update)), 25 * 2**20, DEVICES)),
        ("shard", programs.gathered_ahead(programs.among(Trace(kernels, (*shards, update)), {2: DEVICES}))),
    ]


def test_a_thousand_configurations_take_a_minute() -> None:
    began, count = time.process_time(), 0
    draw = np.random.default_rng(0)
    for axis, trace in traces():
        for batch in range(1, 101):
            row = parse(
                {
                    "device": "a100_80gb", "devices": str(DEVICES), "network": "infiniband_hdr", "model": "x",
                    "global_batch": str(DEVICES * batch), axis: str(DEVICES),
                }
            )  # fmt: skip
            assert TracedStep(row, layout(row), trace).parts(Constants()).seconds > 0
            count += 1
    grid = itertools.product(SCHEDULES, (2, 4, 8, 16, 32, 64), (1, 2), (8, 16, 32, 64), range(4))
    for name, ranks, virtual, microbatches, _ in grid:
        if refusal(name, ranks, virtual, microbatches) is not None or count == 1000:
            continue
        parts = draw.uniform(0.5, 2.0, (3, ranks * virtual))
        found = simulate(table(name, ranks, virtual, microbatches), SCHEDULES[name].placement, Costs(
            forward=parts[0], input_backward=parts[1], weight_backward=parts[2], sent=0.1, sent_back=0.1
        ))  # fmt: skip
        assert found.step_seconds > 0
        count += 1
    assert count == 1000
    assert time.process_time() - began < 60
