"""Find the files of a dataset in the folder in which its archives were unpacked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from src.data.errors import DataError

# Systems and archivers add these to folders.
FOREIGN = ("__MACOSX",)


def find_file(raw: Path, name: str) -> Path:
    """Return the file called `name`, in whatever case, in the folder `raw` or one below it.

    Raises:
        DataError: where there is none, or more than one.
    """
    found = sorted(
        path for path in raw.rglob("*") if path.name.lower() == name.lower() and not is_foreign(path, raw)
    )
    if not found:
        raise DataError(f"{raw} has no {name}, nor has a folder below it")
    if len(found) > 1:
        raise DataError(f"{raw} has {name} twice: {found[0]} and {found[1]}")
    return found[0]


def folders(parent: Path) -> list[Path]:
    """Return the folders in `parent`, but hidden ones and those that archivers add, sorted by name."""
    return sorted(path for path in parent.iterdir() if path.is_dir() and not is_foreign(path, parent))


def check_counts(counted: Mapping[str, int], options: Mapping[str, Any]) -> None:
    """Check the numbers of samples against the published ones in `options["counts"]`.

    Those of a generated stand-in aren't the published ones and aren't checked.

    Raises:
        DataError: for the first number that differs.
    """
    if options.get("source") == "generated":
        return
    for name, official in (options.get("counts") or {}).items():
        if counted.get(name) != official:
            raise DataError(f"{name}: {counted.get(name, 0):,} found, {official:,} are published")


def check_labels(labels: Iterable[int], first: int, classes: int, where: str) -> None:
    """Check that all labels lie from `first` to before `first` + `classes`.

    Raises:
        DataError: for the first one that doesn't; it names the sample in the file `where`.
    """
    for place, label in enumerate(labels):
        if not first <= label < first + classes:
            raise DataError(
                f"{where}: sample {place} has the label {label}; labels run from {first} to "
                f"{first + classes - 1}"
            )


def is_foreign(path: Path, root: Path) -> bool:
    """Tell whether a path below `root` is hidden, or something that systems and archivers add."""
    parts = path.relative_to(root).parts
    return any(part.startswith(".") or part in FOREIGN for part in parts)
