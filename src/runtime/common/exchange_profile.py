"""Run a measurement of exchanges in the place of a training, and leave what it finds to the parent."""

from __future__ import annotations

import json

from src.measure import exchange_benchmark
from src.measure.exchange_benchmark import Backend
from src.measure.recorder import Recorder
from src.run import files
from src.run.status import Status
from src.run.tables import write_text
from src.runtime.common.context import RankContext


def worker_hosts(context: RankContext) -> list[str]:
    """Return the names of the workers' hosts, by rank."""
    return [f"worker-{rank}" for rank in range(context.world_size)]


def run(context: RankContext, recorder: Recorder, backend: Backend) -> None:
    """Measure all exchanges of `backend` together with the other ranks, and write the rows of this one.

    Every rank calls this function.
    """
    recorder.start()
    rows = exchange_benchmark.measure(context.config, backend)
    write_text(recorder.folder / files.EXCHANGE, json.dumps(rows))
    recorder.finish(Status.OK)
