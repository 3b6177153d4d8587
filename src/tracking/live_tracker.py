"""Track one training in MLflow by a thread of the parent, which sends what the ranks have recorded.

The thread alone waits for the store. While the store is away the thread tries again now and then, and at the
end of the run the parent waits a few seconds at most; the rest is sent after a later run
(`src.tracking.completion`).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from src.config import Config
from src.run import files
from src.run.tables import write_text
from src.tracking import run_page
from src.tracking.completion import send_results
from src.tracking.mlflow_run import MLflowRun
from src.tracking.points import LiveRecords, Point
from src.tracking.store import Warned, is_server, tracking_uri
from src.tracking.sweep import sweep_command, sweep_key
from src.tracking.unsent import NoteFile, RunNote

# How long the end of a run waits for a store that doesn't answer: a server, and a file that others use.
SERVER_PATIENCE_SECONDS = 15.0
FILE_PATIENCE_SECONDS = 60.0
# Least and greatest time between two attempts to send while the ranks train.
SEND_SECONDS = 2.0
RETRY_SECONDS = 30.0
# Sending may use this part of one core while the ranks train, for the parent shares their cores.
CPU_SHARE = 0.01


# Work for the thread, and whether it was done without an error.
Job = tuple[Callable[[], None], Future[bool]]


class ParentTracker:
    """Tracks one training; an error of the MLflow store becomes a warning.

    The attribute `uri` is the address of the store, `None` where nothing is tracked.
    """

    def __init__(self, config: Config) -> None:
        """Prepare to track a training with this configuration."""
        self.uri = tracking_uri(config)
        self._config = config
        self._warned = Warned("training goes on, and the run is sent later")
        # Work at the run's end; `None` is the last.
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._tried: Future[bool] = Future()
        self._whole = True
        self._abandoned = False
        self._note: RunNote | None = None
        self._file: NoteFile | None = None
        self._run: MLflowRun | None = None
        self._records: LiveRecords | None = None
        self._backlog: list[Point] = []
        self._metrics: Mapping[str, Any] = {}

    def start(self, out: Path, *, started: float, sweep: bool = False) -> None:
        """Begin to track the run in the directory `out` that began at `started`, without waiting.

        With `sweep` its MLflow run stands under that of the sweep.
        """
        if self.uri is None:
            return
        # What can't be told of the run must not end it.
        with self._warned:
            self._begin(self.uri, out, started, sweep)

    def _begin(self, uri: str, out: Path, started: float, sweep: bool) -> None:
        """Write the run's note, and start the thread."""
        config = self._config
        self._note = note = RunNote(
            uri=uri,
            name=Path(config.out).name,
            started=started,
            tags=run_page.tags(config),
            params=run_page.parameters(config),
            dataset=run_page.dataset_input(config.dataset),
            folder=str(out.absolute()),
            sweep=sweep_key() if sweep else None,
        )
        with contextlib.suppress(OSError):
            write_text(out / files.RANKS / files.TRACKED, note.key)
            self._file = NoteFile.create(note)
        self._run = MLflowRun(note, new=True, wanted=lambda: not self._abandoned)
        threading.Thread(target=self._work, name="tracking", daemon=True).start()

    def follow(self, out: Path, ranks: Sequence[int]) -> None:
        """Send what these ranks record in the run directory `out`, from now on."""
        self._records = LiveRecords(out, ranks, synchronous=self._config.synchronous)

    @property
    def run_id(self) -> str | None:
        """Return MLflow's id of the run, after the first attempt to open it; `None` where that failed."""
        if self._run is None:
            return None
        self._wait(self._tried)
        return self._run.run_id

    def log_results(self, folder: Path, metrics: Mapping[str, Any]) -> None:
        """Send the rest of the record, final figures and result files of a run that has ended.

        `metrics` are the contents of metrics.json in the run's directory `folder`, empty without it.
        """
        if self._run is None or self._note is None:
            return
        run, note, self._metrics = self._run, self._note, metrics
        note.ended = time.time()
        synchronous = self._config.synchronous
        self._whole = self._do(lambda: send_results(run, note, folder, synchronous=synchronous))

    def close(self, status: str, folder: Path, *, discarded: bool = False) -> bool:
        """Send `environment.json`, whose timings are complete by now, and end the MLflow run.

        Its `status` there is FINISHED, FAILED or KILLED. One that is measured again, as it was disturbed,
        is tagged as `discarded`. Returns whether the store has all of the run, or nothing is tracked.
        """
        if self._run is None or self._note is None:
            return True
        note = self._note
        note.status, note.ended = status, note.ended or time.time()
        note.final_tags = {run_page.DESCRIPTION: run_page.description(self._config, self._metrics)}
        if discarded:
            note.final_tags["discarded"] = "disturbed"
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write(note)
        complete = self._whole and self._do(lambda: self._end(folder))
        self._jobs.put(None)
        self._abandoned = True
        if self._file is not None:
            if complete:
                self._file.remove()
            else:
                self._file.close()
        return complete

    def _do(self, job: Callable[[], None]) -> bool:
        """Have the thread do `job`, and wait while the store answers; return whether it was done."""
        done: Future[bool] = Future()
        self._jobs.put((job, done))
        return self._wait(done)

    def _wait(self, done: Future[bool]) -> bool:
        """Wait for work of the thread; return whether it was done, false after too long without an answer."""
        assert self.uri is not None and self._run is not None
        patience = SERVER_PATIENCE_SECONDS if is_server(self.uri) else FILE_PATIENCE_SECONDS
        begun = time.monotonic()
        while not self._abandoned:
            left = max(begun, self._run.confirmed_at) + patience - time.monotonic()
            with contextlib.suppress(TimeoutError):
                return done.result(max(0.0, left))
            if left <= 0:
                self._abandoned = True
                with self._warned:
                    raise TimeoutError(f"no answer for {patience:.0f} s")
        return done.done() and done.result()

    def _work(self) -> None:
        """Open the run, send records every few seconds, and do jobs until the last one, as the thread."""
        assert self._run is not None and self._note is not None
        with self._warned:
            self._note.tags = {**self._note.tags, **run_page.source_tags(), **sweep_command(self._note)}
            if self._file is not None:
                self._file.write(self._note)
            self._run.open()
        self._tried.set_result(True)
        pause: float | None = SEND_SECONDS
        while not self._abandoned:
            try:
                job = self._jobs.get(timeout=pause)
            except queue.Empty:
                assert pause is not None
                begun = time.thread_time()
                with self._warned:
                    self._send_live()
                used = time.thread_time() - begun
                failed = self._warned.error is not None
                pause = min(2 * pause, RETRY_SECONDS) if failed else max(SEND_SECONDS, used / CPU_SHARE)
                continue
            if job is None:
                return
            # The run has ended, and its tables with it.
            pause = None
            (work, done), succeeded = job, False
            with self._warned:
                work()
                succeeded = True
            done.set_result(succeeded)

    def _send_live(self) -> None:
        """Send what the ranks have recorded since the last time."""
        assert self._run is not None
        if self._records is not None:
            self._backlog += self._records.read()
        if self._backlog or self._run.run_id is None:
            self._run.send(self._backlog)
            self._backlog.clear()

    def _end(self, folder: Path) -> None:
        """Send `environment.json`, and end the run."""
        assert self._run is not None
        self._run.send_file(folder / files.ENVIRONMENT)
        self._run.close()
