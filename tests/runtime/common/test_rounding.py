"""What is written of a run's first ten losses and of those from changed weights, and of which runs."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.config import Config
from src.measure.recorder import Recorder
from src.runtime.common import rounding
from src.runtime.common.context import RankContext
from tests.support import config

OWN = [2.0 + step / 10 for step in range(12)]


def record(
    folder: Path, chosen: Config, again: list[float], own: list[float] = OWN, status: str = "ok"
) -> dict[str, Any]:
    """The record of a run with the losses `own`, whose first steps once more have the losses `again`."""
    recorder = Recorder(chosen, 0, folder, started=time.time(), probes=False)
    recorder.start()
    for loss in own:
        recorder.step(loss, 8, epoch=1)
    recorder.finish(status)
    arrays: Any = None
    rounding.measure_gap(RankContext(chosen, 0, 1, arrays, folder, (0,)), recorder, lambda: again)
    return json.loads((folder / "record.json").read_text())


def test_the_largest_of_ten_gaps_is_kept(tmp_path: Path) -> None:
    again = [*OWN[:4], 2.4 + 0.6, *OWN[5:10], 99.0]
    written = record(tmp_path, config("strategy=single"), again)
    assert written["rounding_gap"] == pytest.approx(0.6 / 2.4)
    assert written["rounding_losses"] == again[:10]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_the_largest_gap(tmp_path: Path, loss: float) -> None:
    written = record(tmp_path, config("strategy=single"), [*OWN[:9], loss])
    assert written["rounding_gap"] == sys.float_info.max
    assert written["rounding_losses"] == [*OWN[:9], None]


@pytest.mark.parametrize(
    ("words", "own", "status", "measured"),
    [
        (["strategy=single"], OWN, "ok", True),
        (["strategy=tf_single"], OWN[:10], "time_limit", True),
        (["strategy=single"], OWN[:9], "ok", False),
        (["strategy=single"], OWN, "diverged", False),
        (["strategy=single", "precision=bf16"], OWN, "ok", False),
        (["strategy=tf_custom", "workers=1"], OWN, "ok", False),
        (["strategy=ddp", "workers=1"], OWN, "ok", False),
    ],
)
def test_it_is_measured_of_whole_runs_of_a_reference_in_fp32(
    tmp_path: Path, words: list[str], own: list[float], status: str, measured: bool
) -> None:
    written = record(tmp_path, config(*words), OWN, own, status)
    assert ("rounding_gap" in written, "rounding_losses" in written) == (measured, measured)


def test_directions_are_the_seeds_own() -> None:
    first, again, other = (rounding.directions(rounding.generator_of(seed), (1000, 2)) for seed in (7, 7, 8))
    assert first.shape == (1000, 2) and first.dtype == np.float32
    assert np.isinf(first).all() and 850 < (first > 0).sum() < 1150
    assert (first == again).all() and 850 < (first == other).sum() < 1150
