"""The line that the person who waits sees, from what ranks have recorded so far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from src.run import files, phases
from src.run.progress import LiveProgress
from tests.support import Terminal, config

HEADER = "epoch,step,seconds,samples,loss,staleness\n"


def record(folder: Path, rank: int, text: str) -> None:
    place = folder / "ranks" / str(rank)
    place.mkdir(parents=True, exist_ok=True)
    (place / "steps.csv").write_text(HEADER + text)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on whose lines there is room for all figures."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def shown(words: Sequence[str], out: Path, *, samples: int = 1000) -> str:
    """Return what a terminal shows of a run with what its ranks have recorded in `out`."""
    terminal = Terminal()
    with contextlib.redirect_stderr(terminal), LiveProgress(config(*words), out, samples) as progress:
        progress.tick()
    return terminal.getvalue()


def test_ranks_that_step_together_are_told_of_once(tmp_path: Path) -> None:
    for rank in (0, 1):
        # The last line is half written.
        record(tmp_path, rank, "1,1,0.5,50,2.5,\n1,2,0.5,50,2.25,\n1,3,0.")
    text = shown(("strategy=tf_multiworker", "workers=2", "batch=100"), tmp_path)
    assert "step 2/10  loss 2.2500  200 samples/s  4 s left" in text


def test_workers_that_take_turns_add_up(tmp_path: Path) -> None:
    # 50 samples in 0.25 s, and 50 in 1 s: 200 + 50 samples/s. Five shares are two batches and a half.
    record(tmp_path, 0, "".join(f"1,{n},0.25,50,2.0,0\n" for n in range(1, 5)))
    record(tmp_path, 1, "1,1,1.0,50,2.0,0\n")
    text = shown(("strategy=tf_parameter_server", "workers=2", "batch=100"), tmp_path)
    assert "step 2/10  loss 2.0000  250 samples/s  3 s left" in text


def test_a_job_that_is_started_again_counts_from_its_checkpoint(tmp_path: Path) -> None:
    chosen, terminal = config("strategy=tf_multiworker", "workers=2", "batch=100"), Terminal()
    with contextlib.redirect_stderr(terminal), LiveProgress(chosen, tmp_path, 1000) as progress:
        for loss, steps in (("2.0", 6), ("1.0", 3)):
            for rank in (0, 1):
                record(tmp_path, rank, "".join(f"1,{n},0.5,50,{loss},\n" for n in range(1, steps + 1)))
            progress.tick()
    assert "step 3/10  loss 1.0000  200 samples/s  4 s left" in terminal.getvalue()


def test_other_workers_do_the_parts_of_a_lost_one(tmp_path: Path) -> None:
    """Rank 0 was lost after one step; rank 1 has done its parts, too."""
    for mode in ("sync", "ssp"):
        words = ("strategy=parameter_server", f"strategy.mode={mode}", "workers=2", "batch=100")
        record(tmp_path, 0, "1,1,0.5,50,3.0,0\n")
        record(tmp_path, 1, "".join(f"1,{n},0.5,50,1.0,0\n" for n in range(1, 8)))
        # 8 parts of 50 samples, and the mean of both losses.
        assert "step 4/10  loss 2.0000  200 samples/s  3 s left" in shown(words, tmp_path)


def test_unequal_shares_count_by_their_samples(tmp_path: Path) -> None:
    """A fast worker has done three batches more than a slow one under the bound of `ssp`."""
    words = ("strategy=parameter_server", "strategy.mode=ssp", "workers=2", "batch=100")
    record(tmp_path, 0, "1,1,1.0,80,2.0,0\n")
    record(tmp_path, 1, "".join(f"1,{n},0.25,20,1.0,0\n" for n in range(1, 5)))
    # 160 of 1,000 samples, at 80 + 80 samples/s; the loss is (80 * 2 + 20 * 1) / 100.
    assert "step 1/10  loss 1.8000  160 samples/s  5 s left" in shown(words, tmp_path)


def test_stages_that_see_all_samples_count_once(tmp_path: Path) -> None:
    for rank in (0, 1):
        record(tmp_path, rank, "1,1,0.5,100,2.5,\n1,2,0.5,100,2.25,\n")
    text = shown(("strategy=pipeline", "workers=2", "batch=100"), tmp_path)
    assert "step 2/10  loss 2.2500  200 samples/s  4 s left" in text


def test_a_resumed_run_counts_what_its_checkpoint_had_done(tmp_path: Path) -> None:
    # Rank 0 had done 7 parts and rank 1 five: six batches, and now three parts more.
    record(tmp_path, 0, "1,8,0.5,50,2.0,0\n1,9,0.5,50,2.0,0\n")
    record(tmp_path, 1, "1,6,0.5,50,2.0,0\n")
    text = shown(("strategy=hogwild", "workers=2", "batch=100"), tmp_path)
    assert "step 7/10  loss 2.0000  200 samples/s  1 s left" in text


def test_what_goes_on_before_the_first_step_is_said_once_it_takes_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = LiveProgress(config(), tmp_path, 1280)
    folder = files.rank_folder(tmp_path, 0)
    for phase, seconds in (
        (None, 1),
        (phases.importing("torch"), 9),
        (phases.MODEL, 1),
        (phases.FIRST_STEP, 20),
    ):
        if phase is not None:
            phases.announce(folder, phase)
        for _ in range(seconds):
            now += 1
            progress.tick()
    assert capsys.readouterr().err.splitlines() == ["  importing torch ...", "  taking the first step ..."]
    # From then on the steps are what is shown.
    record(tmp_path, 0, "1,1,0.5,128,2.5,\n")
    now += 20
    progress.tick()
    assert capsys.readouterr().err.startswith("  step 1/10")


def test_on_a_terminal_all_of_it_is_a_bar(tmp_path: Path) -> None:
    for steps, expected in (("", ("starting the ranks",)), ("1,1,0.5,128,2.5,\n", ("training", "step 1/10"))):
        record(tmp_path, 0, steps)
        text = shown((), tmp_path, samples=1280)
        assert all(each in text for each in expected)


def test_the_last_step_is_not_told_again_while_the_model_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    record(tmp_path, 0, "".join(f"1,{n},0.5,100,2.0,\n" for n in range(1, 10)))
    with LiveProgress(config("strategy=single", "batch=100"), tmp_path, 1000) as progress:
        for text in ("", "1,10,0.5,100,2.0,\n", "", "", ""):
            with (tmp_path / "ranks/0/steps.csv").open("a") as table:
                table.write(text)
            now[0] += 11
            progress.tick()
    said = capsys.readouterr().err.splitlines()
    assert said == ["  step 9/10  loss 2.0000  200 samples/s  0 s left", f"  {phases.FINISHING} ..."]
