"""A step of simple numbers on a described device, by hand: what its host holds up is told apart."""

from __future__ import annotations

import pytest

from src.measure.kernels import Kernel, Kernels, Trace
from src.predict.calibrate import Fit
from src.predict.constants import Constants
from src.predict.layout import layout
from src.predict.row import parse
from src.predict.traced.steps import TracedStep
from src.predict.what_if import changed

ROW = {"device": "h200", "devices": "1", "model": "m", "global_batch": "8", "framework": "pytorch"}
# Bytes that an H200 moves in a millisecond as is believed of it.
MILLISECOND = 4800e9 * Constants().memory_efficiency / 1000
CONSTANTS = Constants(host_seconds=1e-4, loop_seconds=2e-3)


def step(milliseconds: float, kernels: int) -> TracedStep:
    row = parse(ROW)
    each = Kernel(memory=milliseconds * MILLISECOND / kernels, size=4)
    return TracedStep(row, layout(row), Trace(Kernels.of([each] * kernels), ()))


def test_a_host_that_starts_operations_more_slowly_than_they_run_holds_the_device_up() -> None:
    parts = step(milliseconds=4.0, kernels=100).parts(CONSTANTS)
    # A hundred operations in 10 ms, of which the device is busy for 4; and the loop.
    assert (parts.compute, parts.other) == pytest.approx((4e-3, 6e-3 + 2e-3))


def test_a_device_that_is_busy_for_longer_is_not_held_up() -> None:
    parts = step(milliseconds=40.0, kernels=100).parts(CONSTANTS)
    assert (parts.compute, parts.other) == pytest.approx((40e-3, 2e-3))


def test_a_faster_device_does_not_make_its_host_faster() -> None:
    twice = changed(Fit(), {"compute": 2.0})
    host_bound, busy = step(1.0, 1000), step(1000.0, 100)
    assert twice.parts(host_bound).seconds == pytest.approx(Fit().parts(host_bound).seconds)
    assert twice.parts(busy).seconds == pytest.approx(Fit().parts(busy).seconds / 2, rel=0.01)
