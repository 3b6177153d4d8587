"""Write one run of an MLflow store so that it is there once, with each of its points once.

An answer may be lost, though the store has done what was asked. So after an error the store itself is asked
what it has, before anything is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from src.compat.mlflow import latest_steps
from src.tracking.names import KEY_TAG
from src.tracking.points import Point
from src.tracking.refusals import StoreRefused
from src.tracking.store import import_client, locked, open_store
from src.tracking.unsent import RunNote, note_of

# MLflow's limit for one request.
BATCH = 1000


class RunDeleted(StoreRefused):
    """Says that somebody has deleted a run in the store."""


class MLflowRun:
    """The MLflow run of a note; every method may raise what MLflow raises, and may then be called again.

    Attributes:
        run_id: MLflow's id of the run, `None` before it is open.
        confirmed_at: when the store last confirmed something, by `time.monotonic`.
    """

    def __init__(self, note: RunNote, *, new: bool, wanted: Callable[[], bool] = lambda: True) -> None:
        """Prepare to write the run of a note, which the store can't have yet if it is `new`.

        Before each request `wanted` is asked whether to go on.
        """
        self.run_id: str | None = None
        self.confirmed_at = time.monotonic()
        self._note = note
        self._wanted = wanted
        self._client: Any = None
        self._experiment = ""
        # The last step that the store has of each curve, by its name.
        self._last: dict[str, int] = {}
        self._certain = new
        self._described = False

    def open(self, *, create: bool = True) -> None:
        """Find the run in the store, or else `create` it; make sure of what the store has.

        Of an open run nothing is asked, unless an error came in between. Without `create` there may be none,
        and `run_id` stays `None`.

        Raises:
            RunDeleted: where it was deleted.
        """
        certain, self._certain = self._certain, False
        if self._client is None:
            # This takes long, which is no fault of the store.
            self._ask(import_client)
            self._client, self._experiment = self._ask(open_store, self._note.uri)
        if not certain:
            found = self._ask(find_run, self._client, self._experiment, self._note.key)
            if found is not None:
                if found.info.lifecycle_stage != "active":
                    raise RunDeleted(f"has the run {self._note.name} among its deleted ones")
                self.run_id, self._last = found.info.run_id, latest_steps(found)
        if self.run_id is None and not create:
            return
        if self.run_id is None:
            tags = dict(self._note.tags)
            if self._note.sweep is not None:
                sweep = self._ask(
                    shared_run, self._client, self._experiment, self._note.uri, self._note.sweep
                )
                tags |= {"mlflow.parentRunId": sweep} if sweep else {}
            self.run_id = self._ask(create_run, self._client, self._experiment, self._note, tags)
        if not self._described:
            self._describe()
        self._certain = True

    def _describe(self) -> None:
        """Log the parameters and the dataset, which does no harm if the store has them already."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        params = [Param(key, value) for key, value in self._note.params.items()]
        if params:
            self._ask(self._client.log_batch, self.run_id, params=params)
        if self._note.dataset:
            context = [InputTag("mlflow.data.context", "training")]
            inputs = [DatasetInput(Dataset(**self._note.dataset), context)]
            self._ask(self._client.log_inputs, self.run_id, inputs)
        self._described = True

    def send(self, points: Iterable[Point]) -> None:
        """Log the points that the store doesn't have; those of a curve come by ascending step.

        Points without a value are skipped.
        """
        from mlflow.entities import Metric

        self.open()
        fresh, last = [], dict(self._last)
        for name, value, step, moment in points:
            if value is not None and step > last.get(name, -1):
                fresh.append(Metric(name, value, int(moment * 1000), step))
                last[name] = step
        for start in range(0, len(fresh), BATCH):
            batch, self._certain = fresh[start : start + BATCH], False
            self._ask(self._client.log_batch, self.run_id, metrics=batch)
            self._last |= {metric.key: metric.step for metric in batch}
            self._certain = True

    def send_file(self, path: Path, folder: str | None = None) -> None:
        """Log a file, if it exists, below `folder` among the run's files."""
        self.open()
        if path.exists():
            self._ask(self._client.log_artifact, self.run_id, str(path), folder)

    def close(self) -> None:
        """Set the final tags, and end the run as the note says."""
        assert self._note.ended is not None
        self.open()
        for name, value in self._note.final_tags.items():
            self._ask(self._client.set_tag, self.run_id, name, value)
        ended = int(self._note.ended * 1000)
        self._ask(self._client.set_terminated, self.run_id, self._note.status, ended)

    def _ask(self, request: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return what `request` returns, and note that the store has answered."""
        if not self._wanted():
            raise TimeoutError("the store has taken too long")
        answer = request(*arguments, **named)
        self.confirmed_at = time.monotonic()
        return answer


def find_run(client: Any, experiment: str, key: str) -> Any:
    """Return the MLflow run with the key `key`, a deleted one too; `None` if the experiment has none."""
    from mlflow.entities import ViewType

    words = f"tags.`{KEY_TAG}` = '{key}'"
    found = client.search_runs([experiment], words, run_view_type=ViewType.ALL, max_results=1)
    return found[0] if found else None


def create_run(client: Any, experiment: str, note: RunNote, tags: dict[str, str]) -> str:
    """Create the run of a note with `tags` and its key; return MLflow's id."""
    started = int(note.started * 1000)
    created = client.create_run(experiment, started, tags | {KEY_TAG: note.key}, note.name)
    return created.info.run_id


def shared_run(client: Any, experiment: str, uri: str, key: str) -> str | None:
    """Return MLflow's id of a sweep's run, which the first of its runs creates by the sweep's note.

    It is `None` where neither the run nor the note is there.
    """
    with locked(uri):
        found = find_run(client, experiment, key)
        if found is not None:
            return found.info.run_id
        note = note_of(uri, key)
        return None if note is None else create_run(client, experiment, note, dict(note.tags))
