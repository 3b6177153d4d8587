"""What a run is called in a terminal says so where its data are no original."""

from __future__ import annotations

import dataclasses

from src.measure.summary import describe
from tests.support import config


def test_a_stand_in_is_called_one() -> None:
    run = config("strategy=single")
    assert describe(run).startswith("single trains cnn on mnist, batch 128")
    made = dataclasses.replace(run, dataset={**run.dataset, "source": "generated"})
    assert describe(made).startswith("single trains cnn on mnist (generated), batch 128")
