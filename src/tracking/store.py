"""Reach the MLflow store; a store that can't be reached never stops a training.

MLflow is imported inside the functions, because the import takes a second, for which a user who has mistyped
a word shouldn't wait. It writes the absolute address of each run's files into its database. Those of an
sqlite store stand in `mlartifacts` beside it, so that a move shows: the database says where that folder was.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from src.config import Config
from src.config.tracking_address import SERVERS, SQLITE, URI_VARIABLE, database_path

EXPERIMENT = "scaleguide"
# By this key MLflow's UI shows a description.
EXPERIMENT_TAGS = {
    "mlflow.note.content": "Trainings by Scaleguide: one run a training, and one a sweep over its trainings.",
}
ROOT = Path(__file__).parents[2]
# DVC runs the experiments of `dvc exp run --queue` and `--temp` here, in copies that it throws away.
DVC_COPIES = (".dvc", "tmp", "exps")
# A request that isn't answered is repeated later, from the record.
REQUEST_SECONDS = 10
ARTIFACTS = "mlartifacts"
# Tables and columns with addresses of files.
ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
)


def tracking_uri(config: Config) -> str | None:
    """Return the address of the store that tracks a run, `None` where the configuration asks for none."""
    return None if config.tracking["backend"] == "none" else default_uri()


def default_uri() -> str:
    """Return the store's address: MLFLOW_TRACKING_URI, by default a file of the project's.

    That of a file is absolute.
    """
    uri = os.environ.get(URI_VARIABLE) or f"{SQLITE}{project_folder() / 'mlflow.db'}"
    path = database_path(uri)
    return uri if path is None else f"{SQLITE}{path}"


def project_folder() -> Path:
    """Return the project's folder, whatever the working directory; in one of DVC's copies, the original's."""
    for folder in ROOT.parents:
        if folder.parts[-3:] == DVC_COPIES:
            return folder.parents[2]
    return ROOT


def is_server(uri: str) -> bool:
    """Return whether a store is reached through the network."""
    return uri.partition(":")[0] in SERVERS


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


def open_store(uri: str) -> tuple[Any, str]:
    """Return an MLflow client of the store at `uri`, and MLflow's id of the experiment of all runs.

    A store in a file is created and migrated, with its folder `mlartifacts` beside it. One process at a time
    does so, for MLflow's migrations fail where two begin at once.
    """
    client_of = import_client()
    path = database_path(uri)
    if path is None:
        client = client_of(uri)
        return client, _experiment_id(client, None)
    with locked(uri):
        follow_move(path)
        client = client_of(uri)
        return client, _experiment_id(client, artifacts_of(path))


def _experiment_id(client: Any, artifacts: str | None) -> str:
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
    for name, value in EXPERIMENT_TAGS.items():
        if name not in experiment.tags:
            client.set_experiment_tag(experiment.experiment_id, name, value)
    return experiment.experiment_id


def artifacts_of(database: Path) -> str:
    """Return the address of the files of all runs in the sqlite store `database`."""
    return (database.parent / ARTIFACTS).as_uri()


def follow_move(database: Path) -> int:
    """Correct the addresses in the sqlite store `database` if it was moved; return how many were.

    Addresses elsewhere than in a folder `mlartifacts`, such as a bucket's, stay.
    """
    if not database.exists():
        return 0
    here, changed = artifacts_of(database), 0
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection, connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
        if "experiments" not in tables:
            return 0
        locations = connection.execute("select artifact_location from experiments").fetchall()
        former = {
            f"{before}/{ARTIFACTS}"
            for (location,) in locations
            if (before := _folder_before(location)) is not None
        }
        for there in former - {here}:
            for table, column in ADDRESSES:
                if table in tables:
                    done = connection.execute(
                        f"update {table} set {column} = ? || substr({column}, ?) "
                        f"where {column} = ? or substr({column}, 1, ?) = ?",
                        (here, len(there) + 1, there, len(there) + 1, f"{there}/"),
                    )
                    changed += done.rowcount
    return changed


def _folder_before(location: str | None) -> str | None:
    """Return what stands before `/mlartifacts` in a file's address, `None` without that."""
    folder, found, rest = (location or "").rpartition(f"/{ARTIFACTS}")
    return folder if found and folder.startswith("file:") and rest[:1] in ("", "/") else None


class Warned:
    """A context manager that turns an error in its block into one line on standard error, the first time.

    Attributes:
        happened: whether an error has happened in the last block.
    """

    def __init__(self, sentence: str) -> None:
        """Begin the line on standard error with `sentence`; the error's reason follows."""
        self._sentence = sentence
        self._printed = False
        self.happened = False

    def __enter__(self) -> Warned:
        self.happened = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self.happened = True
        if not self._printed:
            self._printed = True
            reason = str(error).strip().splitlines() or [kind.__name__]
            print(f"warning: {self._sentence} ({reason[0][:200]})", file=sys.stderr, flush=True)
        return True
