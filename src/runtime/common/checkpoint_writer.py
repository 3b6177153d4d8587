"""Write a run's checkpoints beside its training: a step waits for the copy of the state in memory alone.

    training    step   copy   step   step   step   copy   step
    thread                    [check, write, rename]      [check, ...

One checkpoint is written at a time, and the next one waits for it: there are at most the state that trains
and one copy of it. An error of the thread, as a full disk, is raised in the training at its next step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from src.data import order
from src.run import files
from src.run.variables import RESUME
from src.runtime.common import last_good
from src.runtime.common.context import RankContext


class CheckpointWriter:
    """Writes the checkpoints of a run, for the one rank that does; one thread calls the methods."""

    def __init__(self, context: RankContext) -> None:
        """Take the context of the rank; no thread is started yet."""
        self._path = files.checkpoint_path(context.folder, context.config.framework)
        self._per_epoch = order.steps_per_epoch(context.arrays.train_samples, context.config.global_batch)
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._keep = context.config.checkpoint_keep
        # The checkpoint that is being written, by the steps that it has done.
        self._writing: tuple[int, Future[bool]] | None = None
        # Steps of the newest checkpoint that is written.
        self._newest: int | None = None

    def resume_at(self, step: int) -> None:
        """Take the checkpoint of `step` steps, with which a job was started again, for the newest one."""
        if RESUME in os.environ:
            self._newest = step
            # It has this name too if the process was killed as it wrote the next one.
            files.older_checkpoint(self._path, step).unlink(missing_ok=True)

    def write(
        self, *, epoch: int, step: int, broken: Callable[[], str | None], save: Callable[[Path], None]
    ) -> None:
        """Begin to write a checkpoint, once the one before is written.

        A state that has an infinite or NaN element isn't written, so that the last good one stays.

        Args:
            epoch: how many whole epochs are done.
            step: how many steps of the next epoch are done.
            broken: returns the name of such an element, `None` if there is none; the thread calls it.
            save: writes the state to a file, which becomes the checkpoint when it is whole; likewise.

        Raises:
            OSError: as the writing of the one before did.
        """
        self.wait()
        present = self._newest

        def write() -> bool:
            name = broken()
            if name is not None:
                print(f"no checkpoint of epoch {epoch}, step {step}: {name} isn't finite", flush=True)
                return False
            with last_good.newer(self._path, present=present, keep=self._keep) as temporary:
                save(temporary)
            return True

        self._writing = epoch * self._per_epoch + step, self._pool.submit(write)

    def check(self) -> None:
        """Raise the error with which the writing of a checkpoint has ended, if it has."""
        if self._writing is not None and self._writing[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint in progress is written; raise the error of that."""
        if self._writing is not None:
            (step, writing), self._writing = self._writing, None
            if writing.result():
                self._newest = step

    def finish(self, is_good: Callable[[int], bool]) -> None:
        """Wait for the last checkpoint, and end with the last `checkpoint_keep` good ones.

        `is_good` returns whether the state after so many steps has a finite loss.
        """
        self.wait()
        if self._newest is not None:
            last_good.settle(self._path, good=is_good(self._newest), keep=self._keep)
