"""Ranks find each other, as often as they join."""

from __future__ import annotations

import os
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from src.run import files, variables
from src.runtime.torch import process_group

MOMENT = 1.0


def rank(number: int, folder: Path, again: Event, late: Event) -> None:
    """Join a group twice; the second rank leaves the first one when `late` is set."""
    os.environ[variables.STORE] = "store"
    context: Any = SimpleNamespace(rank=number, world_size=2, folder=folder)
    for turn in range(2):
        process_group.join(context, "gloo")
        dist.barrier()
        if number and not turn:
            late.wait(60)
        dist.destroy_process_group()
        if not number:
            again.set()


def test_a_rank_that_joins_again_waits_for_one_that_has_not_left(tmp_path: Path) -> None:
    (tmp_path / files.RANKS).mkdir()
    spawning = get_context("spawn")
    again, late = spawning.Event(), spawning.Event()
    ranks = [
        spawning.Process(target=rank, args=(number, tmp_path, again, late), daemon=True)
        for number in range(2)
    ]
    for each in ranks:
        each.start()
    assert again.wait(60)
    # It looks for the other one, which is where it was.
    ranks[0].join(MOMENT)
    late.set()
    for each in ranks:
        each.join(60)
        assert each.exitcode == 0
