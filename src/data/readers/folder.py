"""Read a user's own folder of images: in folders `train` and `val` or `test`, or of classes alone.

train/cat/1.jpg, val/cat/7.jpg          ImageNet's layout
cat/1.jpg                               classes alone: a share of each, chosen by a seed, is for testing
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from src.data.errors import DataError
from src.data.readers.class_folders import describe_left_out, images_in
from src.data.readers.image_folders import divided, picture_files, two_folders
from src.data.readers.raw_files import folders
from src.data.samples import Splits

TRAIN = "train"
# Folders of images to test by, the first of which is taken.
TESTS = ("test", "val", "valid", "validation")


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the one folder in `raw`, or that below it that is alone in its and has others.

    Images are uint8 [size, size, 3] with `options["size"]`. Where there is no folder of images to test by,
    `options["test_share"]` of each class are, which `options["seed"]` chooses. `options["nested"]` says
    whether folders within a class's are read. What is left out is in the warnings.

    Raises:
        DataError: for folders that are no classes', an empty class, and splits of other classes.
    """
    (root,) = folders(raw)
    while len(inside := folders(root)) == 1 and not images_in(root) and folders(inside[0]):
        root = inside[0]
    found, nested, warnings = {folder.name.lower(): folder for folder in inside}, options["nested"], []
    tests = [name for name in TESTS if name in found]
    if TRAIN in found and tests and not found.keys() - {TRAIN, *TESTS}:
        parts = two_folders(root, {TRAIN: found[TRAIN], "test": found[tests[0]]}, nested=nested)
        warnings += [f"{found[name].name}/ isn't used: {tests[0]}/ is tested by" for name in tests[1:]]
    else:
        share = options["test_share"]
        if not (isinstance(share, int | float) and 0 < share < 1):
            raise DataError(f"dataset.options.test_share={share}: must be between 0 and 1")
        parts = divided(root, share, nested=nested, seed=str(options["seed"]))
    size = options["size"]
    return Splits(
        picture_files(root, parts.train, size),
        picture_files(root, parts.test, size),
        tuple(parts.train),
        (*warnings, *describe_left_out(root, parts.left_out)),
    )
