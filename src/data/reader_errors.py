"""Turn the errors of a dataset's reader, which may be the user's own, into sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from src.config.import_paths import describe_error
from src.data.errors import FULL, DataError


@contextmanager
def reader_errors(dataset: str, reader: str) -> Iterator[None]:
    """Turn an error of a dataset's reader into a `DataError` that names it; a full disk stays what it is."""
    try:
        yield
    except DataError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        raise DataError(f"{dataset}: reader {reader}: {describe_error(error)}") from error
