"""Check the address of an MLflow store, as MLFLOW_TRACKING_URI gives it."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from urllib.parse import urlsplit

from src.config import tracking_schema
from src.config.mistakes import ConfigError, nearest

URI_VARIABLE = "MLFLOW_TRACKING_URI"
SERVERS = ("http", "https")
SQLITE = "sqlite:///"
DATABASES = ("postgresql", "mysql", "mssql")
# The user and the password of an address, in any text.
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]+(?=@)")
_ALLOWED = "give http://host:port, sqlite:///file.db, or unset it for the project's own store"


def check_address(uri: str) -> None:
    """Raise `ConfigError` unless `uri`, the value of MLFLOW_TRACKING_URI, can be the address of a store.

    Whether something answers there isn't tried.
    """
    line = f"{URI_VARIABLE}={redacted(uri)}"
    if not uri.strip():
        raise ConfigError(f"{line}: is empty; {_ALLOWED}")
    scheme = uri.partition(":")[0]
    if scheme in SERVERS:
        try:
            parts = urlsplit(uri)
            whole = bool(parts.hostname) and parts.port != 0
        except ValueError:
            whole = False
        if not whole:
            raise ConfigError(f"{line}: is no address of a server; give {scheme}://host:port")
    elif scheme == "sqlite":
        path = database_path(uri)
        if path is None:
            raise ConfigError(f"{line}: names no file; give sqlite:///file.db, or sqlite:////folder/file.db")
        if path.is_dir():
            raise ConfigError(f"{line}: {path} is a folder; give sqlite:///file.db")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise ConfigError(f"{line}: {path.parent} is no folder that can be written to")
        try:
            age = tracking_schema.age_of_file(path)
        except sqlite3.Error as error:
            raise ConfigError(f"{line}: can't be read as a database ({error})") from error
        if age != tracking_schema.SAME:
            raise ConfigError(f"{line}: the store {tracking_schema.describe(age, uri)}")
    elif "://" not in uri or scheme == "file":
        raise ConfigError(f"{line}: is no store that MLflow can keep runs in; {_ALLOWED}")
    elif scheme.partition("+")[0] not in DATABASES:
        known = (*SERVERS, "sqlite", *DATABASES)
        raise ConfigError(
            f"{line}: must begin with {', '.join(known)}; did you mean {nearest(scheme, known)}?"
        )


def redacted(text: str) -> str:
    """Return a text with `***` for the user and the password of each address in it."""
    return _CREDENTIALS.sub("***", text)


def database_path(uri: str) -> Path | None:
    """Return the absolute path of an sqlite store's file, `None` for a store of another kind."""
    name = uri.removeprefix(SQLITE).partition("?")[0] if uri.startswith(SQLITE) else ""
    return Path(name).absolute() if name and not name.startswith(":") else None
