"""The line that the person who waits sees, from what ranks have recorded so far."""

from __future__ import annotations

from pathlib import Path

from src.run.progress import LiveProgress
from tests.support import config

HEADER = "epoch,step,seconds,samples,loss,staleness\n"


def record(folder: Path, rank: int, text: str) -> None:
    place = folder / "ranks" / str(rank)
    place.mkdir(parents=True, exist_ok=True)
    (place / "steps.csv").write_text(HEADER + text)


def test_ranks_that_step_together_are_told_of_once(tmp_path: Path) -> None:
    progress = LiveProgress(config("strategy=tf_multiworker", "workers=2", "batch=100"), tmp_path, 1000)
    for rank in (0, 1):
        # The last line is half written.
        record(tmp_path, rank, "1,1,0.5,50,2.5,\n1,2,0.5,50,2.25,\n1,3,0.")
    progress.tick()
    assert progress._figures() == "step 2/10  loss 2.2500  200 samples/s  4 s left"


def test_workers_that_take_turns_add_up(tmp_path: Path) -> None:
    chosen = config("strategy=tf_parameter_server", "workers=2", "batch=100")
    progress = LiveProgress(chosen, tmp_path, 1000)
    # 50 samples in 0.25 s, and 50 in 1 s: 200 + 50 samples/s. Five shares are two batches and a half.
    record(tmp_path, 0, "".join(f"1,{n},0.25,50,2.0,0\n" for n in range(1, 5)))
    record(tmp_path, 1, "1,1,1.0,50,2.0,0\n")
    progress.tick()
    assert progress._figures() == "step 2/10  loss 2.0000  250 samples/s  3 s left"


def test_a_job_that_is_started_again_counts_from_its_checkpoint(tmp_path: Path) -> None:
    progress = LiveProgress(config("strategy=tf_multiworker", "workers=2", "batch=100"), tmp_path, 1000)
    record(tmp_path, 0, "".join(f"1,{n},0.5,50,2.0,\n" for n in range(1, 7)))
    progress.tick()
    record(tmp_path, 0, "".join(f"1,{n},0.5,50,1.0,\n" for n in range(1, 4)))
    progress.tick()
    assert progress._figures() == "step 3/10  loss 1.0000  200 samples/s  4 s left"
