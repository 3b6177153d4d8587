"""Keep the files of runs reachable after the folder of an sqlite store was moved or copied.

MLflow writes the absolute address of each run's files into its database. They stand in `mlartifacts` beside
it, so that a move shows: the database says where that folder once was.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

ARTIFACTS = "mlartifacts"
# Tables and columns with addresses of files.
ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
)


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
