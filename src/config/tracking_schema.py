"""Tell whether the installed MLflow and a database of runs are of the same age.

A newer MLflow migrates an older database as soon as it opens it, after which older clients, those of
colleagues for instance, can't read it any more. So it is looked at before.
"""

from __future__ import annotations

import contextlib
import sqlite3
from importlib.metadata import version
from pathlib import Path

from src.compat.mlflow import schema_revisions

OLDER, NEWER, SAME = "older", "newer", "same"


def age_of_file(database: Path) -> str:
    """Return OLDER, NEWER or SAME: an sqlite database's schema, compared with the installed MLflow's.

    One that isn't there, or has no tables of MLflow's, is the SAME.

    Raises:
        sqlite3.Error: for a file that isn't a database, or can't be read.
    """
    if not database.exists():
        return SAME
    address = f"{database.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=20)) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
        if "alembic_version" in tables:
            row = connection.execute("select version_num from alembic_version").fetchone()
            return age_of(row[0] if row else None)
    # Its first versions wrote no revision.
    return OLDER if "experiments" in tables else SAME


def age_of(revision: str | None) -> str:
    """Return OLDER, NEWER or SAME for a schema's revision; a database without one is new, and the SAME."""
    known = schema_revisions()
    if revision is None or revision == known[-1]:
        return SAME
    return OLDER if revision in known else NEWER


def describe(age: str, uri: str) -> str:
    """Return what is said of a store at `uri` that is OLDER or NEWER."""
    here = f"than the one installed here, {version('mlflow')}"
    if age == NEWER:
        return f"was made by a newer MLflow {here}; install that one, or name another store"
    return (
        f"was made by an older MLflow {here}; `mlflow db upgrade {uri}` migrates it, after which "
        "older clients can't read it"
    )
