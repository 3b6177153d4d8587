"""Wrap private parts of MLflow: where its client keeps metrics, and what it does to a database's schema."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

_REVISION = re.compile(r"^(revision|down_revision) = [\"'](\w+)[\"']", re.MULTILINE)


def latest_steps(run: Any) -> dict[str, int]:
    """Return the greatest step of each metric of an `mlflow.entities.Run`, by the metric's name."""
    return {metric.key: metric.step for metric in run.data._metric_objs}


def schema_revisions() -> list[str]:
    """Return the revisions of a database's schema that the installed MLflow knows, the oldest first.

    They are read from the files of its migrations, for importing MLflow takes a second.
    """
    spec = importlib.util.find_spec("mlflow")
    assert spec is not None and spec.submodule_search_locations is not None, "MLflow is installed"
    folder = Path(spec.submodule_search_locations[0]) / "store" / "db_migrations" / "versions"
    found = [dict(_REVISION.findall(path.read_text(encoding="utf-8"))) for path in folder.glob("*.py")]
    next_of = {each.get("down_revision"): each["revision"] for each in found if "revision" in each}
    revisions: list[str] = []
    last = next_of.get(None)
    while last is not None:
        revisions.append(last)
        last = next_of.get(last)
    return revisions


def database_revision(uri: str) -> str | None:
    """Return the revision of the schema of the database at an SQLAlchemy address, `None` without one."""
    from mlflow.store.db import utils

    return utils._get_schema_version(utils.create_sqlalchemy_engine(uri))


def upgrade(uri: str) -> None:
    """Migrate the database at an SQLAlchemy address to the installed MLflow's schema."""
    from mlflow.store.db import utils

    utils._upgrade_db(utils.create_sqlalchemy_engine(uri))
