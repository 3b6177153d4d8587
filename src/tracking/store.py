"""Reach the MLflow store; a store that can't be reached never stops a training.

MLflow is imported inside the functions, because the import takes a second, for which a user who has mistyped
a word shouldn't wait. It writes the absolute address of each run's files into its database. Those of an
sqlite store stand in `mlartifacts` beside it, so that a move shows: the database says where that folder was.

A store that MLFLOW_TRACKING_URI names may be other people's, too: there a run of this project is added, and
nothing else is touched. The project's own is in its folder, or that of which DVC has made a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from src.compat.mlflow import database_revision, upgrade
from src.config import Config, tracking_schema
from src.config.tracking_address import SERVERS, SQLITE, URI_VARIABLE, database_path, redacted
from src.tracking.moved_files import follow_move, keep_copy
from src.tracking.names import ARTIFACTS, DATABASE, EXPERIMENT
from src.tracking.refusals import ExperimentDeleted, StoreRefused, describe

# MLflow's UI lists neither metrics nor tags at first: an address may name a view, kept as its "Share" does.
SHARED_VIEW = "scaleguide"
VIEW_STATE = {
    "selectedColumns": [
        "tags.`strategy`", "tags.`workers`", "metrics.`samples_per_second`", "metrics.`speedup`",
        "metrics.`evaluation/accuracy`", "tags.`parity`", "tags.`verdict`",
    ],
}  # fmt: skip
# By the first key MLflow's UI shows a description, by the second it knows the view.
EXPERIMENT_TAGS = {
    "mlflow.note.content": "Trainings by Scaleguide: one run a training, and one a sweep over its trainings.",
    f"mlflow.sharedViewState.{SHARED_VIEW}": json.dumps(VIEW_STATE),
}
ROOT = Path(__file__).parents[2]
# DVC runs the experiments of `dvc exp run --queue` and `--temp` here, in copies that it throws away.
DVC_COPIES = (".dvc", "tmp", "exps")
# A request that isn't answered is repeated later, from the record.
REQUEST_SECONDS = 10


def tracking_uri(config: Config) -> str | None:
    """Return the address of the store that tracks a run, `None` where the configuration asks for none."""
    return None if config.tracking["backend"] == "none" else default_uri()


def default_uri() -> str:
    """Return the store's address: MLFLOW_TRACKING_URI, by default a file of the project's.

    That of a file is absolute.
    """
    uri = os.environ.get(URI_VARIABLE) or f"{SQLITE}{project_folder() / DATABASE}"
    path = database_path(uri)
    return uri if path is None else f"{SQLITE}{path}"


def project_folder() -> Path:
    """Return the project's folder, whatever the working directory; in one of DVC's copies, the original's."""
    for folder in ROOT.parents:
        if folder.parts[-3:] == DVC_COPIES:
            return folder.parents[2]
    return ROOT


def is_own(uri: str) -> bool:
    """Return whether the store at `uri` is the project's own, which nobody else's runs are in."""
    path = database_path(uri)
    return path is not None and path.resolve() == (project_folder() / DATABASE).resolve()


def is_server(uri: str) -> bool:
    """Return whether a store is reached through the network."""
    return uri.partition(":")[0] in SERVERS


def same_store(one: str, other: str) -> bool:
    """Return whether two addresses are those of one store, whoever asks it."""
    return redacted(one).replace("***@", "") == redacted(other).replace("***@", "")


def unsent_folder(uri: str) -> Path:
    """Return the folder of the records on runs that the store at `uri` doesn't have whole."""
    path = database_path(uri)
    return project_folder() / "runs" / ".unsent" if path is None else path.with_name(f"{path.name}.unsent")


@contextlib.contextmanager
def locked(uri: str) -> Iterator[None]:
    """Keep out other processes of this host that prepare the store at `uri`, or create a shared run in it."""
    path = unsent_folder(uri).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def import_client() -> Callable[[str], Any]:
    """Import MLflow, which takes a second; return its class of clients, made for a store's address."""
    # A server that is away shall hold up nobody.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(REQUEST_SECONDS))
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    return MlflowClient


def client_at(uri: str) -> Any:
    """Return an MLflow client of the store at `uri`, which is migrated only where it is the project's own.

    One process at a time prepares a file, for MLflow's migrations fail where two begin at once.

    Raises:
        StoreRefused: for a database whose schema isn't that of the installed MLflow.
    """
    client_of = import_client()
    path = database_path(uri)
    if path is None:
        if not is_server(uri):
            _check_age(uri, tracking_schema.age_of(database_revision(uri)))
        return client_of(uri)
    with locked(uri):
        age = tracking_schema.age_of_file(path)
        if age == tracking_schema.OLDER and is_own(uri):
            kept = keep_copy(path)
            print(
                f"note: {path} is migrated to this MLflow; as it was, it is {kept}",
                file=sys.stderr,
                flush=True,
            )
            upgrade(uri)
        else:
            _check_age(uri, age)
        if is_own(uri):
            follow_move(path)
        return client_of(uri)


def open_store(uri: str) -> tuple[Any, str]:
    """Return an MLflow client of the store at `uri`, and MLflow's id of the experiment of all runs.

    A store in a file is created, with its folder `mlartifacts` beside it.

    Raises:
        StoreRefused: as `client_at` does, and where the experiment was deleted.
    """
    client, path = client_at(uri), database_path(uri)
    if path is None:
        return client, _experiment_id(client, uri, None)
    with locked(uri):
        return client, _experiment_id(client, uri, artifacts_of(path))


def find_experiment(client: Any) -> str | None:
    """Return MLflow's id of the experiment of all runs, `None` where the store has none."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    return None if experiment is None else experiment.experiment_id


def _check_age(uri: str, age: str) -> None:
    """Raise `StoreRefused` for a store that another MLflow has made."""
    if age != tracking_schema.SAME:
        raise StoreRefused(tracking_schema.describe(age, redacted(uri)))


def _experiment_id(client: Any, uri: str, artifacts: str | None) -> str:
    """Return MLflow's id of the experiment of all runs; create it, or add the tags that it lacks.

    `artifacts` is the address of a new experiment's files, `None` where the server decides.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        from mlflow.exceptions import MlflowException

        try:
            return client.create_experiment(EXPERIMENT, artifacts, tags=EXPERIMENT_TAGS)
        except MlflowException:
            # Another host's run has made it at the same time, or the server doesn't want to.
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise ExperimentDeleted(
            f"has the experiment {EXPERIMENT} among its deleted ones; `MLFLOW_TRACKING_URI={redacted(uri)} "
            f"mlflow experiments restore --experiment-id {experiment.experiment_id}` restores it"
        )
    for name, value in EXPERIMENT_TAGS.items():
        if name not in experiment.tags:
            client.set_experiment_tag(experiment.experiment_id, name, value)
    return experiment.experiment_id


def artifacts_of(database: Path) -> str:
    """Return the address of the files of all runs in the sqlite store `database`."""
    return (database.parent / ARTIFACTS).as_uri()


class Warned:
    """A context manager that turns an error in its block into one line on standard error, the first time.

    Attributes:
        error: that of the last block, `None` where there was none.
    """

    def __init__(self, consequence: str) -> None:
        """Say `consequence` after what is wrong with the store."""
        self._consequence = consequence
        self._printed = False
        self.error: Exception | None = None

    def __enter__(self) -> Warned:
        self.error = None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.error = error
        if not self._printed:
            self._printed = True
            line = f"warning: the MLflow store {describe(error)}; {self._consequence}"
            print(line, file=sys.stderr, flush=True)
        return True
