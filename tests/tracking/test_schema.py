"""A store that an older or a newer MLflow has made is migrated by nobody who wasn't asked to."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.store.db import utils

from src.compat.mlflow import schema_revisions
from src.config import ConfigError, tracking_schema
from src.config.tracking_address import check_address
from src.tracking import store as stores
from src.tracking.refusals import StoreRefused
from src.tracking.store import client_at, open_store
from src.tracking.study import add_figures

# MLflow 2.9's.
EARLIER = "acf3f17fdcc7"


def made_by(revision: str, database: Path) -> str:
    """Make a store as the MLflow of this revision did, with a run; return its address."""
    from alembic import command

    uri = f"sqlite:///{database}"
    engine = utils.create_sqlalchemy_engine(uri)
    # The first revision of all, from which the others were made.
    utils.InitialBase.metadata.create_all(engine)
    config = utils._get_alembic_config(uri)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    with sqlite3.connect(database) as connection:
        connection.execute(
            "insert into experiments (experiment_id, name, artifact_location, lifecycle_stage) "
            "values (0, 'theirs', 'file:///theirs/mlartifacts', 'active')"
        )
    return uri


def revision(database: Path) -> str:
    return str(sqlite3.connect(database).execute("select version_num from alembic_version").fetchone()[0])


def test_revisions_are_read_as_mlflow_has_them() -> None:
    revisions = schema_revisions()
    assert revisions[-1] == utils._get_latest_schema_revision()
    assert len(revisions) == len(set(revisions)) > 40 and EARLIER in revisions


def test_a_strangers_older_store_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "theirs.db"
    uri = made_by(EARLIER, database)
    before = database.read_bytes()
    with pytest.raises(
        ConfigError, match=f"the store was made by an older MLflow than .*`mlflow db upgrade {uri}`"
    ):
        check_address(uri)
    with pytest.raises(StoreRefused, match=r"older clients can't read it$"):
        client_at(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert add_figures([{"mlflow_run_id": "0" * 32, "speedup": 2.0}]) == 0
    assert "warning: the MLflow store was made by an older MLflow" in capsys.readouterr().err
    assert database.read_bytes() == before


def test_the_own_store_is_migrated_with_a_word_and_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "project_folder", lambda: tmp_path)
    uri = made_by(EARLIER, tmp_path / "mlflow.db")
    client, _ = open_store(uri)
    assert client.get_experiment_by_name("theirs").artifact_location == "file:///theirs/mlartifacts"
    assert revision(tmp_path / "mlflow.db") == schema_revisions()[-1]
    said = capsys.readouterr().err.splitlines()[0]
    assert said.startswith(f"note: {tmp_path}/mlflow.db is migrated to this MLflow; as it was, it is ")
    assert revision(Path(said.rpartition(" ")[2])) == EARLIER


def test_a_newer_store_is_told_from_one_that_is_away(tmp_path: Path, empty_store: Path) -> None:
    database = tmp_path / "new.db"
    database.write_bytes(empty_store.read_bytes())
    with sqlite3.connect(database) as connection:
        connection.execute("update alembic_version set version_num = 'fedcba987654'")
    with pytest.raises(
        ConfigError, match=r"made by a newer MLflow than the one installed here, .*; install that one"
    ):
        check_address(f"sqlite:///{database}")
    with pytest.raises(StoreRefused, match="by a newer MLflow"):
        client_at(f"sqlite:///{database}")


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("text, and no database " * 100)
    with pytest.raises(ConfigError, match="can't be read as a database"):
        check_address(f"sqlite:///{tmp_path}/text.db")
    assert tracking_schema.age_of_file(tmp_path / "absent.db") == tracking_schema.SAME
    MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").search_experiments()
    check_address(f"sqlite:///{tmp_path}/mlflow.db")
