"""Programs of traces, by hand: buckets, gathers ahead, other samples and devices."""

from __future__ import annotations

import numpy as np
import pytest

from src.config.mistakes import ConfigError
from src.measure.kernels import GRADIENT, UNKNOWN, UPDATE, WAIT, Kernel, Kernels, Mark, Trace
from src.predict.traced import programs
from src.predict.traced.programs import Traces

MIB = 2**20


def trace(*marks: Mark, kernels: int = 6) -> Trace:
    return Trace(Kernels.of([Kernel(memory=1.0)] * kernels), marks)


def test_gradients_come_into_buckets_in_order_of_which_the_first_is_small() -> None:
    gradients = [Mark(place, GRADIENT, size * MIB) for place, size in enumerate((0.5, 0.75, 10, 20, 1))]
    found = programs.with_buckets(trace(*gradients, Mark(6, UPDATE)), 25 * MIB, 8)
    assert [(mark.place, mark.kind, mark.size / MIB, mark.ranks, mark.call) for mark in found.marks] == [
        (1, "all_reduce", 1.25, 8, 1),
        (3, "all_reduce", 30.0, 8, 2),
        (4, "all_reduce", 1.0, 8, 3),
        (6, UPDATE, 0.0, 1, 0),
    ]


def test_a_gather_begins_as_soon_as_the_one_before_it_is_there() -> None:
    marks = []
    for call, place in enumerate((0, 2, 4), 1):
        marks += [Mark(place, "all_gather", 8.0, 2, 1, call), Mark(place, WAIT, call=call)]
    found = programs.gathered_ahead(trace(*marks, Mark(6, "reduce_scatter", 8.0, 2, 1, 4), Mark(6, UPDATE)))
    assert [(mark.place, mark.kind, mark.call) for mark in found.marks] == [
        (0, "all_gather", 1),
        (0, WAIT, 1),
        (0, "all_gather", 2),
        (2, WAIT, 2),
        (2, "all_gather", 3),
        (4, WAIT, 3),
        (6, "reduce_scatter", 4),
        (6, UPDATE, 0),
    ]
    # Two kernels of a second after each gather of one: the second and the third are hidden.
    program = programs.program(found, np.ones(6), 0.0)
    step = program.simulate(lambda event: 1.0)
    assert (step.seconds, step.waiting, step.exchanging) == (8.0, 2.0, 4.0)


def test_a_host_that_starts_kernels_slowly_holds_the_device_up() -> None:
    whole = trace(Mark(2, UPDATE))
    assert programs.program(whole, np.ones(6), 0.0).computed == [2.0, 4.0]
    assert programs.program(whole, np.array([5.0, 1, 1, 1, 1, 1]), 2.0).computed == [6.0, 8.0]


def test_exchanges_are_among_other_numbers_of_ranks() -> None:
    found = programs.among(trace(Mark(0, "all_reduce", 8.0, 2, 1, 1), Mark(0, WAIT, call=1)), {2: 64})
    assert [mark.ranks for mark in found.marks] == [64, 1]


def test_an_exchange_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="isn't known"):
        programs.program(trace(Mark(0, UNKNOWN)), np.ones(6), 0.0)


def step(samples: int, devices: int = 2) -> Trace:
    """A product of as many rows as samples, and an update of the device's part."""
    product = Kernel(rows=samples, inner=4, columns=5, products=1, moved=20 + 9 * samples)
    return Trace(
        Kernels.of([product, Kernel(memory=120 / devices)]),
        (Mark(1, "all_reduce", 10.0 * samples, devices, 1, 1), Mark(1, WAIT, call=1), Mark(1, UPDATE)),
    )


def test_other_samples_and_devices_are_on_a_line() -> None:
    found = Traces.of({n: step(n) for n in (2, 4, 8)}, 2, {4: step(2, 4)}, lambda devices: 1 / devices)
    for samples, devices in ((1, 2), (100, 2), (8, 64)):
        made = found.at(samples, devices)
        assert made.kernels.values == pytest.approx(step(samples, devices).kernels.values)
        assert made.marks[0].size == pytest.approx(10 * samples)


def test_steps_that_do_other_things_are_refused() -> None:
    other = Trace(step(4).kernels, step(4).marks[1:])
    with pytest.raises(ConfigError, match="other operations with other samples"):
        Traces.of({2: step(2), 4: other, 8: step(8)}, 2)
    bent = Trace(Kernels(step(4).kernels.values * 1.1), step(4).marks)
    bent.kernels.values[:, programs.KINDS] = step(4).kernels.values[:, programs.KINDS]
    with pytest.raises(ConfigError, match="doesn't go with the samples"):
        Traces.of({2: step(2), 4: bent, 8: step(8)}, 2)
    with pytest.raises(ConfigError, match="other numbers of devices"):
        Traces.of({n: step(n) for n in (2, 4, 8)}, 2, {4: other}, lambda devices: 1 / devices)
