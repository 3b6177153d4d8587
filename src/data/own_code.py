"""Import a dataset's reader or generator, which may be the user's own, and put its errors into sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from src.config import ConfigError, import_paths
from src.config.import_paths import describe_error
from src.data.errors import FULL, DataError, DataMistake


def import_of(dataset: Mapping[str, Any], kind: str) -> Any:
    """Import the dataset's `reader` or `generator`, as `kind` says; raise `DataError` where it can't be."""
    where = f"{dataset['name']}: {kind} {dataset[kind]!r} can't be imported"
    try:
        return import_paths.resolve(kind, dataset[kind])
    except ConfigError as error:
        raise DataMistake(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise DataError(f"{where}: {describe_error(error)}") from error


@contextmanager
def own_errors(where: str) -> Iterator[None]:
    """Turn an error of the code `where` into a `DataError` that names it; a full disk stays what it is."""
    try:
        yield
    except DataError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        raise DataError(f"{where}: {describe_error(error)}") from error
