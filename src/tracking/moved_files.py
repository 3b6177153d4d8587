"""Correct the addresses of runs' files in the project's own store, after the project's folder was moved.

MLflow keeps the absolute address of each run's files in its database. Only what this project has written
there is corrected, and only where the files have moved: they are at the new place, and gone from the old
one.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from src.tracking.names import ARTIFACTS, EXPERIMENT, KEY_TAG


def follow_move(database: Path) -> None:
    """Correct addresses in the project's own sqlite store `database`, of which a copy is kept, and say so."""
    if not database.exists():
        return
    here = database.parent / ARTIFACTS
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
        if not {"experiments", "runs", "tags"} <= tables:
            return
        places = _moved_experiments(connection, here, database.name)
        runs = _moved_runs(connection, here)
        if not places and not runs:
            return
        kept = keep_copy(database)
        with connection:
            connection.executemany(
                "update experiments set artifact_location = ? where experiment_id = ?", places
            )
            connection.executemany("update runs set artifact_uri = ? where run_uuid = ?", runs)
    print(
        f"note: the project was moved: {database} has the new addresses of {len(runs)} runs' files; "
        f"as it was, it is {kept}",
        file=sys.stderr,
        flush=True,
    )


def keep_copy(database: Path) -> Path:
    """Copy an sqlite database to a new file beside it, and return that file."""
    moment = time.strftime("%Y%m%d-%H%M%S")
    names = (f"{database.name}.{moment}{'-' * count}.bak" for count in itertools.count())
    kept = next(path for path in map(database.with_name, names) if not path.exists())
    with (
        contextlib.closing(sqlite3.connect(database, timeout=20)) as source,
        contextlib.closing(sqlite3.connect(kept)) as target,
    ):
        source.backup(target)
    return kept


def _moved_experiments(connection: sqlite3.Connection, here: Path, database: str) -> list[tuple[str, int]]:
    """Return the new address of new runs' files, and the id of the experiment that lacks it, if one does.

    A project that was copied has the original's: there stands a store, too.
    """
    rows = connection.execute(
        "select artifact_location, experiment_id from experiments where name = ?", (EXPERIMENT,)
    ).fetchall()
    found = []
    for location, number in rows:
        there = _path(location)
        if there is None or there == here or there.name != here.name:
            continue
        has_moved = not there.exists() and (here.exists() or not there.parent.exists())
        if has_moved or (there.parent / database).exists():
            found.append((here.as_uri(), number))
    return found


def _moved_runs(connection: sqlite3.Connection, here: Path) -> list[tuple[str, str]]:
    """Return the new addresses of the files of this project's runs that have moved, and the runs' ids."""
    rows = connection.execute(
        "select runs.artifact_uri, runs.run_uuid from runs join experiments using (experiment_id) "
        "join tags on tags.run_uuid = runs.run_uuid where experiments.name = ? and tags.key = ?",
        (EXPERIMENT, KEY_TAG),
    ).fetchall()
    found = []
    for address, run in rows:
        there = _path(address)
        if there is None or here in there.parents:
            continue
        root = next((each for each in there.parents if each.name == here.name), None)
        if root is None:
            continue
        new = here / there.relative_to(root)
        if new.exists() and not there.exists():
            found.append((new.as_uri(), run))
    return found


def _path(address: str | None) -> Path | None:
    """Return the path of a file's address, `None` for one elsewhere, such as a bucket's."""
    parts = urlsplit(address or "")
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.path else None
