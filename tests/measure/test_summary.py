"""What a run is called in a terminal says so where its data are no original."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from src.measure.summary import describe, differing, profiled
from tests.support import config


def test_a_stand_in_is_called_one() -> None:
    run = config("strategy=single")
    assert describe(run).startswith("single trains cnn on mnist, batch 128")
    made = dataclasses.replace(run, dataset={**run.dataset, "source": "generated"})
    assert describe(made).startswith("single trains cnn on mnist (generated), batch 128")


def test_what_workers_change_or_compute_by_their_own_samples_is_said() -> None:
    copies = config("strategy=ddp", "workers=2")
    moved = {"moves_buffers": ["codes", "counts", "sums"], "computes_over_batch": False}
    first, last = differing(copies, moved)
    assert first.startswith("  note: each worker changes codes, counts and 1 more by its own samples alone;")
    assert last == "  so losses may be others than those of one device with the whole batch"
    first, _ = differing(copies, {"moves_buffers": [], "computes_over_batch": True})
    assert first.startswith("  note: the loss of a batch is no mean over samples")
    # Nothing is seen, each stage sees all samples, or nobody compares.
    assert differing(copies, {"moves_buffers": []}) == differing(copies, {}) == []
    for words in (["strategy=single"], ["strategy=pipeline"], ["strategy=hogwild"]):
        assert differing(config(*words), moved) == []


def test_profiled_steps_are_told_in_four_lines(tmp_path: Path) -> None:
    assert profiled(tmp_path) == []
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "steps.csv").write_text(
        "step,rank,seconds,compute_seconds,input_seconds,waiting_seconds,own_seconds,slowest\n"
        "2,0,0.010,0.006,0.001,0.002,0.008,0\n2,1,0.010,0.008,0.001,0.000,0.010,1\n"
        "3,0,0.010,0.006,0.001,0.002,0.008,1\n3,1,0.010,0.004,0.001,0.004,0.006,0\n"
        "4,0,0.010,0.006,0.001,0.002,0.008,1\n4,1,0.010,0.006,0.001,0.002,0.008,0\n"
    )
    (folder / "exchange.csv").write_text(
        "rank,kind,seconds,hidden_seconds\n0,all_reduce,0.008,0.004\n1,all_reduce,0.004,0.002\n0,send,0,0\n"
    )
    # Of 6 x 10 ms: 36, 12 and 6; 12 ms of all-reduces in three steps of two ranks.
    assert profiled(tmp_path) == [
        "  profile of steps 2 to 4: of 10.0 ms a step, "
        "a rank computes 60%, waits for others 20%, for input 10%, does none of these 10%",
        "  exchange, a step and rank: all_reduce 2.0 ms (50% hidden)",
        "  slowest rank: 0, in 2 of 3 steps",
        f"  {folder / 'all-ranks.json.gz'}: open it in https://ui.perfetto.dev",
    ]
