"""Find the image files of datasets that have a folder for each class, and say which files are left out.

Class folders are read with all folders below them, as torchvision's ImageFolder reads them.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from src.data.errors import DataError
from src.data.readers.pictures import is_picture
from src.data.readers.raw_files import folders, is_foreign
from src.machine.folders import files_below

SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"}
# Windows adds these to folders, and counts them as no files of the user's.
SYSTEM_FILES = {"thumbs.db", "desktop.ini"}
# So many kinds of the files that are left out are named.
MOST_KINDS = 4

# The image files of each class.
Classes = dict[str, list[Path]]


def classes_in(parent: Path, *, nested: bool = True) -> tuple[Classes, list[Path]]:
    """Return the image files of each folder in `parent`, and the files that are none or aren't read.

    Images in folders within a class's are the class's where they are `nested`, and aren't read otherwise.
    Classes are in the order of their lower-case names. A name may be written with its accents as characters
    of their own, as macOS does, or not: it is the same.

    Raises:
        DataError: without folders, for a class that is there twice, and one without images.
    """
    classes: Classes = {}
    # A file beside the classes' folders is of no class.
    left_out = images_in(parent)
    for folder in sorted(folders(parent), key=lambda folder: plain_name(folder.name)):
        files = _files(files_below(folder), folder)
        own = [file for file in files if nested or file.parent == folder]
        classes[folder.name] = [file for file in own if _is_image(file)]
        left_out += sorted({*files} - {*classes[folder.name]})
    if not classes:
        raise DataError(f"{parent} has no folders of classes")
    lower = [plain_name(name) for name in classes]
    if twice := [name for name in classes if lower.count(plain_name(name)) > 1]:
        raise DataError(f"{parent} has the class {twice[0]!r} twice: {', '.join(twice)}")
    if empty := [name for name, files in classes.items() if not files]:
        raise DataError(f"{parent / empty[0]} has no images; each class needs some")
    return classes, left_out


def images_in(folder: Path) -> list[Path]:
    """Return the image files in a folder, but not in those below it."""
    return [file for file in _files(folder.iterdir(), folder) if _is_image(file)]


def plain_name(name: str) -> str:
    """Return a name by which names that a reader sees as the same are the same."""
    return unicodedata.normalize("NFC", name).lower()


def hash_of(root: Path, file: Path, seed: str = "") -> str:
    """Return the hash of a file's path below `root`, the same on every system; each `seed` has another."""
    path = seed + unicodedata.normalize("NFC", file.relative_to(root).as_posix())
    return hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()


def describe_left_out(root: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """Return a warning of the files below `root` that aren't read, if there are any."""
    if not files:
        return ()
    kinds = Counter(file.suffix.lower() or "without a suffix" for file in files)
    named = [f"{count:,} {kind}" for kind, count in kinds.most_common(MOST_KINDS)]
    more = ", and others" if len(kinds) > MOST_KINDS else ""
    first = min(files).relative_to(root).as_posix()
    what = f"{len(files):,} files that are no images of a class"
    return (f"left out {what}: {', '.join(named)}{more}; the first is {first}",)


def _files(found: Iterable[Path], folder: Path) -> list[Path]:
    """Return those `found` in a folder that are files, but not of systems and archivers, sorted by name."""
    return sorted(
        file
        for file in found
        if file.is_file() and not is_foreign(file, folder) and file.name.lower() not in SYSTEM_FILES
    )


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES or is_picture(file)
