"""Read datasets that are published as image files in a folder for each class.

flower_photos/daisy/1.jpg               classes alone: a share of each is for testing
Images/Train/Pho/1.jpg                  or in folders Train and Test, beside which there may be Validate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src.data.errors import DataError
from src.data.readers.class_folders import (
    Classes,
    classes_in,
    describe_left_out,
    hash_of,
    images_in,
    plain_name,
)
from src.data.readers.pictures import DamagedPicture, decode
from src.data.readers.raw_files import check_counts, folders
from src.data.samples import Samples, Splits

TRAIN, VALIDATE, TEST = "train", "validate", "test"
# A class needs an image on each side.
LEAST_IMAGES = 2


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the classes' folders in `raw`, or in the folders below it that are alone in theirs.

    With `options["test_share"]` there are folders of classes alone, and that share of each class is for
    testing: the files whose names have the smallest hashes, so that the split is the same everywhere. Without
    it there are folders Train and Test, and maybe Validate, in whatever case, of which Validate is used for
    neither. Classes are in the order of their names, samples in that of their hashes, which is as good as
    random. Images are uint8 [size, size, 3] with `options["size"]`: the shorter side is resized, and the
    middle of the longer one kept. `options["counts"]` has the published numbers of images, of `train`,
    `validate` and `test` or of all `images`, and of `classes`, which an original must have. Files that are
    left out are in the warnings.

    Raises:
        DataError: without a size, for missing folders, an empty class, splits of other classes, and other
            numbers of images than the published ones.
    """
    if options.get("size") is None:
        raise DataError(
            "these images have many sizes: set `dataset.size` to the pixels that a side shall have"
        )
    root = raw
    while len(inside := folders(root)) == 1 and not images_in(root):
        root = inside[0]
    share = options.get("test_share")
    found = two_folders(root, _named(root)) if share is None else divided(root, share)
    check_counts(found.counted, options)
    size = options["size"]
    return Splits(
        picture_files(root, found.train, size),
        picture_files(root, found.test, size),
        tuple(found.train),
        describe_left_out(root, found.left_out),
    )


@dataclass(frozen=True)
class Found:
    """The files of a dataset.

    Attributes:
        counted: the numbers of images and of classes, by the names that `options["counts"]` may have.
        train, test: the files of each class; both have the same names.
        left_out: the files that are no images of a class.
    """

    counted: dict[str, int]
    train: Classes
    test: Classes
    left_out: list[Path]


def _named(root: Path) -> dict[str, Path]:
    """Return the folders Train and Test, and Validate if there is one, by their lower-case names."""
    found = {folder.name.lower(): folder for folder in folders(root)}
    for split in (TRAIN, TEST):
        if split not in found:
            raise DataError(
                f"{root} has no folder {split.title()}: it has {', '.join(sorted(found)) or 'none'}"
            )
    return {split: found[split] for split in (TRAIN, VALIDATE, TEST) if split in found}


def two_folders(root: Path, named: Mapping[str, Path], *, nested: bool = True) -> Found:
    """Find the classes of the folders `train` and `test` of `named`, and check that others have the same.

    With `nested` folders within a class's are read, too.

    Raises:
        DataError: for an empty class, and splits of other classes.
    """
    parts, left_out = {}, []
    for split, folder in named.items():
        parts[split], others = classes_in(folder, nested=nested)
        left_out += others
    names = {split: [plain_name(name) for name in classes] for split, classes in parts.items()}
    for split, lower in names.items():
        if odd := sorted(set(lower) ^ set(names[TRAIN])):
            raise DataError(f"{root}: {split} and train have different classes: {odd[0]!r} is in one alone")
    counted = {split: sum(map(len, classes.values())) for split, classes in parts.items()}
    # Test's classes under the names that Train's have.
    test = dict(zip(parts[TRAIN], parts[TEST].values(), strict=True))
    return Found({**counted, "classes": len(parts[TRAIN])}, parts[TRAIN], test, left_out)


def divided(root: Path, share: float, *, nested: bool = True, seed: str = "") -> Found:
    """Find the classes, and divide the files of each into those to train on and a `share` to test by.

    The same `seed` chooses the same files on every system. With `nested` folders within a class's are read,
    too.

    Raises:
        DataError: for a class of fewer than two images.
    """
    train: Classes = {}
    test: Classes = {}
    classes, left_out = classes_in(root, nested=nested)
    for name, files in classes.items():
        if len(files) < LEAST_IMAGES:
            raise DataError(f"{root / name} has one image alone, which can't be divided")
        count = min(max(1, round(share * len(files))), len(files) - 1)
        ordered = sorted(files, key=lambda file: hash_of(root, file, seed))
        test[name], train[name] = ordered[:count], ordered[count:]
    counted = {"images": sum(map(len, classes.values())), "classes": len(classes)}
    return Found(counted, train, test, left_out)


def picture_files(root: Path, classes: Classes, size: int) -> PictureFiles:
    """Return the classes' files as one source of samples, in the order of their hashes."""
    labelled = [(file, label) for label, files in enumerate(classes.values()) for file in files]
    labelled.sort(key=lambda each: hash_of(root, each[0]))
    paths = tuple(file.relative_to(root).as_posix() for file, _ in labelled)
    return PictureFiles(root, paths, np.array([label for _, label in labelled], dtype=np.int64), size)


@dataclass(frozen=True)
class PictureFiles:
    """A split whose samples are image files.

    Attributes:
        root: the folder of all files.
        files: their paths below it.
        labels: int64 [samples].
        size: height and width of the decoded images.
    """

    root: Path
    files: tuple[str, ...]
    labels: np.ndarray
    size: int

    def __len__(self) -> int:
        return len(self.files)

    def read(self, start: int, stop: int) -> Samples:
        """Decode the images from `start` to before `stop`, and leave damaged ones out."""
        images: list[np.ndarray] = []
        labels: list[int] = []
        damaged: list[str] = []
        for file, label in zip(self.files[start:stop], self.labels[start:stop], strict=True):
            try:
                images.append(decode((self.root / file).read_bytes(), self.size))
            except DamagedPicture as error:
                damaged.append(f"{file}: {error}")
            else:
                labels.append(label)
        stacked = np.array(images, dtype=np.uint8).reshape(-1, self.size, self.size, 3)
        return Samples((stacked,), (np.array(labels, dtype=np.int64),), tuple(damaged))
