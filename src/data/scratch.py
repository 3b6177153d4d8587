"""Keep the folder in which a dataset is prepared: what a killed process has finished there isn't lost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from src.data.catalog import fingerprint
from src.data.errors import DataError
from src.machine.file_locks import alone_if_free


class Unfinished(DataError):
    """The error that ends a preparation whose finished part is good, and is taken up by the next one."""


def folder(dataset: Mapping[str, Any], target: Path) -> Path:
    """Return the folder beside `target` in which the dataset is prepared: one for each fingerprint."""
    digits = fingerprint(dataset)
    return target.with_name(f".{target.name.removesuffix(f'-{digits}')}-{digits}.partial")


@contextmanager
def made(work: Path) -> Iterator[None]:
    """Make the folder `work`, and remove it in the end; those that other fingerprints have left, too.

    It stays after Ctrl-C and `Unfinished`, as it does when the process is killed.
    """
    _remove_others(work)
    work.mkdir(exist_ok=True)
    try:
        yield
    except Unfinished:
        raise
    except Exception:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


def _remove_others(work: Path) -> None:
    """Remove the folders of other fingerprints of the same dataset in which nobody works."""
    stem = re.escape(work.name[: work.name.rindex("-")])
    for other in work.parent.iterdir():
        if other != work and re.fullmatch(rf"{stem}-[0-9a-f]{{12}}\.partial", other.name):
            with alone_if_free(other) as free:
                if free:
                    shutil.rmtree(other, ignore_errors=True)
