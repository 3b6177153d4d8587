"""What ranks exchange in a step: counted by axis and kind, without start-up and evaluations."""

from __future__ import annotations

import json
from pathlib import Path

from src.measure import exchanges
from src.measure.recorder import Recorder
from tests.support import config

HYBRID = ("strategy=hybrid", "workers=8", "strategy.shard=2", "strategy.pipeline=2", "batch=16")


def test_a_record_has_the_steps_alone(tmp_path: Path) -> None:
    made = Recorder(config(*HYBRID), 0, tmp_path, started=0.0, probes=False)
    made.hand_over("all_gather", 9, "shard")
    made.start()
    for _ in range(2):
        made.hand_over("all_gather", 100, "shard")
        made.hand_over("all_gather", 60, "shard")
        made.hand_over("all_reduce", 50)
        made.hand_over("all_reduce", 30, "pipeline", ranks=3)
        made.step(1.0, 8, epoch=1)
    with made.off_clock():
        made.hand_over("all_gather", 1000, "shard")
        made.hand_over("reduce_scatter", 1000, "shard")
    made.finish("ok")
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["payload_bytes"] == 2 * 240
    # Two shards and two copies; what isn't among all along an axis says among how many.
    assert record["exchanges"] == [
        ["shard", "all_gather", 2, 2, 160],
        ["data", "all_reduce", 2, 1, 50],
        ["pipeline", "all_reduce", 3, 1, 30],
    ]


def test_a_figure_by_axis_is_that_of_the_rank_that_hands_over_most() -> None:
    found = exchanges.rows(
        {
            0: {
                "exchanges": [["shard", "all_gather", 2, 4, 200.0], ["shard", "reduce_scatter", 2, 2, 400.0]]
            },
            1: {"exchanges": [["shard", "all_gather", 2, 4, 700.0], ["data", "all_reduce", 4, 1, 400.0]]},
            2: {},
        }
    )
    assert exchanges.largest_by_axis(found) == {"shard": 700.0, "data": 400.0}
    assert [(row["rank"], row["kind"], row["ring_bytes"]) for row in found] == [
        (0, "all_gather", 200.0),
        (0, "reduce_scatter", 200.0),
        (1, "all_reduce", 600.0),
        (1, "all_gather", 700.0),
    ]
