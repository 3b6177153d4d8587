"""A pipeline's step, by closed form or simulation, is that of the papers' figures."""

from __future__ import annotations

import pytest

from src.config.schedules import SCHEDULES
from src.partition.schedules.simulation import ideal_bubble
from src.predict.pipeline_time import relative_step


@pytest.mark.parametrize("microbatches", [4, 8, 32])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_closed_form_is_what_is_simulated(schedule: str, microbatches: int) -> None:
    even = relative_step(schedule, 4, 1, microbatches, (1.0,) * 4)
    assert relative_step(schedule, 4, 1, microbatches) == pytest.approx(even, rel=3e-3)
    # Huang 2019, section 2.3: (p - 1) / (m + p - 1) of the time is idle.
    assert relative_step(schedule, 4, 1, microbatches) == pytest.approx((microbatches + 3) / microbatches)


def test_interleaved_idles_less_by_the_number_of_stages() -> None:
    # Narayanan 2021, section 2.2.2: (p - 1) / (v m) of the ideal time.
    assert relative_step("interleaved", 4, 2, 8) == pytest.approx(1 + 3 / 16)
    even = relative_step("interleaved", 4, 2, 8, (1.0,) * 8)
    assert relative_step("interleaved", 4, 2, 8) == pytest.approx(even, rel=3e-3)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_every_schedule_idles_as_its_own_simulation(schedule: str) -> None:
    virtual = SCHEDULES[schedule].virtual[2]
    idle = 1 - 1 / relative_step(schedule, 2, virtual, 8)
    assert idle == pytest.approx(ideal_bubble(schedule, 2, virtual, 8), abs=2e-3)


def test_many_micro_batches_go_on_as_the_last_of_few() -> None:
    shares = (3.0, 2.0, 2.0, 3.0)
    # The slowest stage has 3 / 2.5 of the average, and each of the others waits for it.
    assert relative_step("1f1b", 4, 1, 10_000, shares) == pytest.approx(1.2, rel=1e-3)
    longer = relative_step("1f1b", 4, 1, 40, shares) * 40 - relative_step("1f1b", 4, 1, 20, shares) * 20
    assert longer == pytest.approx(20 * 1.2, rel=1e-6)
