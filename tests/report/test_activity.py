"""What is drawn of stages over time."""

from __future__ import annotations

import csv
import io
import json
import re
from html import unescape
from urllib.parse import unquote

import numpy as np
import pytest

from src.config.schedules import SCHEDULES
from src.measure import timeline
from src.partition.schedules import simulation, tables
from tests.report.conftest import Study


def drawn(study: Study) -> list[dict[str, str]]:
    """The numbers of the chart of timelines."""
    named = 'download="what-stages-and-workers-do.csv" href="data:text/csv;charset=utf-8,([^"]*)"'
    address = re.search(named, study.page())
    assert address
    return list(csv.DictReader(io.StringIO(unquote(unescape(address[1])))))


def test_beside_a_schedules_steps_is_one_that_its_own_passes_would_make(empty_study: Study) -> None:
    order = tables.table("interleaved", 2, 2, 4)
    taken = np.array([0.01, 0.02, 0.01, 0.03])
    costs = simulation.Costs(forward=taken, input_backward=taken, weight_backward=taken, optimizer=0.005)
    placement = SCHEDULES["interleaved"].placement
    # As it was, each message takes as long as a pass.
    slow = simulation.Costs(**{**vars(costs), "sent": 0.02, "sent_back": 0.02})
    made = simulation.simulate(order, placement, slow)
    options = {"schedule": "interleaved", "virtual_stages": 2}
    folder = empty_study.run("pipe", "pipeline", workers=2, microbatches=4, options=options)
    (folder / "timeline.json").write_text(json.dumps(timeline.chrome_trace(made.timelines())))
    rows = drawn(empty_study)
    ends = {
        run: max(float(row["from ms"]) + float(row["ms"]) for row in rows if row["run"] == run)
        for run in ("pipe", "pipe, simulated")
    }
    assert ends["pipe"] == pytest.approx(1e3 * float(made.step_seconds), rel=1e-3)
    ideal = simulation.simulate(order, placement, costs)
    assert ends["pipe, simulated"] == pytest.approx(1e3 * float(ideal.step_seconds), rel=1e-3)
    assert f"idle {float(ideal.bubble_fraction):.0%}" in empty_study.page()
