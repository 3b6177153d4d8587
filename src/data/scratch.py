"""Keep the folder in which a dataset is prepared: what a killed process has finished there isn't lost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from src.data.catalog import fingerprint, is_prepared
from src.data.errors import DataError, clear_disk_errors
from src.machine.file_locks import alone, alone_if_free


class Unfinished(DataError):
    """The error that ends a preparation whose finished part is good, and is taken up by the next one."""


def prepare_in(
    dataset: Mapping[str, Any], target: Path, make: Callable[[Path], None], *, anew: bool = False
) -> None:
    """Have `make` prepare a dataset to `target`, in a folder beside it: one for each fingerprint.

    Of several processes at once, one does so while the others wait. Nothing is made where `target` is
    prepared already, but if `anew` says so: then only after such a wait. The folder is removed in the end,
    and those that other fingerprints have left, too. It stays after Ctrl-C and `Unfinished`, as it does when
    the process is killed.
    """
    digits = fingerprint(dataset)
    work = target.with_name(f".{target.name.removesuffix(f'-{digits}')}-{digits}.partial")
    with clear_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(work, f"{dataset['name']} is being prepared") as waited:
            if (waited or not anew) and is_prepared(target, digits):
                return
            _remove_others(work)
            work.mkdir(exist_ok=True)
            try:
                make(work)
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
