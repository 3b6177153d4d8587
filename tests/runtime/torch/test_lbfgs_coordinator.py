"""The coordinator of Sandblaster L-BFGS, with a worker that is a thread here."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from src.launch.local.hosts import LocalHosts
from src.runtime.common import messages
from src.runtime.common.context import RankContext
from src.strategies.torch.sandblaster_lbfgs import LBFGSCoordinator, VectorStore
from tests.support import config

BATCH = np.arange(4)

ARRAYS = SimpleNamespace(train_samples=4, test_samples=1, classes=10, shape=(28, 28, 1))


def coordinator_of_one_worker(asked: list[int] | None = None) -> LBFGSCoordinator:
    """Of a loss that is 0 at the origin and 10 elsewhere, where no trial is better.

    The steps by which the worker is to draw are added to `asked`.
    """
    context = RankContext(
        config("strategy=sandblaster_lbfgs", "workers=1", "batch=4"),
        0,
        1,
        ARRAYS,
        Path(),
        (0,),
    )
    store = VectorStore()
    store.values = torch.zeros(1)
    address = LocalHosts().free_address("")
    made = LBFGSCoordinator(
        context,
        [],
        address,
        store,
        step_bytes=(0, 0),
        buffers=(),
        fixed=False,
        write=lambda *_: False,
    )
    connection = messages.connect(address, seconds=5)
    connection.ask("register", rank=0)

    def work() -> None:
        values = np.zeros(1)
        while True:
            request = connection.receive()
            if request.kind == "values":
                values = request.arrays[0]
                connection.send("done")
            elif request.kind == "train":
                loss = 10.0 * bool(values.any())
                if asked is not None:
                    asked.append(request.figures["step"])
                connection.send("done", [np.ones(1, np.float32)], loss=loss, sums=[0], seconds=0.0)
            else:
                connection.send("done", [np.ones(4)] if request.kind == "score" else ())

    threading.Thread(target=work, daemon=True).start()
    return made


def test_an_evaluation_after_a_failed_line_search_changes_no_iteration() -> None:
    losses = []
    for evaluates in (False, True):
        coordinator = coordinator_of_one_worker()
        for _ in range(2):
            coordinator.schedule(BATCH[None], 1)
            if evaluates:
                # At the origin, where the search has begun: the sums known are those of its last trial.
                coordinator.score()
        losses.append([coordinator._reported.get()[0].loss for _ in range(2)])
    assert losses == [[0.0, 0.0]] * 2


def test_trials_of_an_iteration_draw_the_same_and_other_iterations_something_else() -> None:
    asked: list[int] = []
    coordinator = coordinator_of_one_worker(asked)
    coordinator.schedule(BATCH[None], 1)
    first = list(asked)
    assert len(first) > 2 and len({*first}) == 1
    coordinator.schedule(BATCH[None], 1)
    assert len({*asked[len(first) :]}) == 1 and asked[-1] != first[0]
