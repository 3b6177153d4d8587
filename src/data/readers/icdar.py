"""Read the images and words of ICDAR 2015 (incidental scene text) and ICDAR 2013 (focused scene text).

Each split is a folder of images and one of text files, as its two archives hold them. An image NAME.jpg has
its words in gt_NAME.txt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from src.data.errors import DataError
from src.data.readers.icdar_truth import LAYOUTS, fit_words, read_words
from src.data.readers.pictures import DamagedPicture, opened, to_rgb
from src.data.readers.raw_files import check_counts, is_foreign
from src.data.samples import Samples, Splits

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class TextSource:
    """A split of images with words.

    A sample's input is its image, uint8 [height, width, 3], resized to that size whatever its own aspect
    ratio. Its targets are its words' quadrilaterals, float32 [most, 4, 2] in pixels (x, y) of the resized
    image and clockwise, padded by zeros; their number, int64 []; and which ones are ignored, uint8 [most].

    Attributes:
        files: each image's file and that of its words.
        layout: name of the form of their lines, of `icdar_truth.LAYOUTS`.
    """

    files: tuple[tuple[Path, Path], ...]
    layout: str
    height: int
    width: int
    most: int

    def __len__(self) -> int:
        return len(self.files)

    def read(self, start: int, stop: int) -> Samples:
        """Decode the samples from `start` to before `stop`; images that can't be decoded are left out.

        Raises:
            DataError: for words that can't be used, or more than `most` of them in an image.
        """
        pixels, words, damaged = [], [], []
        for image, truth in self.files[start:stop]:
            content = image.read_bytes()
            try:
                # Words are marked on the pixels as stored; an orientation in the metadata is left aside.
                with opened(content) as picture:
                    decoded = to_rgb(picture)
            except DamagedPicture as error:
                damaged.append(f"{image.name}: {error}")
                continue
            words.append(self._read_words(truth, decoded.size))
            pixels.append(np.asarray(decoded.resize((self.width, self.height), Image.Resampling.BILINEAR)))
        inputs = np.array(pixels, dtype=np.uint8).reshape(-1, self.height, self.width, 3)
        return Samples((inputs,), self._pad(words), tuple(damaged))

    def _read_words(self, path: Path, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return corners [words, 4, 2] in pixels of the resized image and flags [words] of ignored words."""
        found = fit_words(read_words(path, LAYOUTS[self.layout]), *size, path)
        if len(found.lines) > self.most:
            raise DataError(f"{path} has {len(found.lines)} words, and options.most is {self.most}")
        return found.corners * (self.width / size[0], self.height / size[1]), found.ignored

    def _pad(self, words: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        corners = np.zeros((len(words), self.most, 4, 2), dtype=np.float32)
        ignored = np.zeros((len(words), self.most), dtype=np.uint8)
        for sample, (quadrilaterals, flags) in enumerate(words):
            corners[sample, : len(flags)] = quadrilaterals
            ignored[sample, : len(flags)] = flags
        return corners, np.array([len(flags) for _, flags in words], dtype=np.int64), ignored


def read(raw: Path, options: Mapping[str, Any]) -> Splits:
    """Read both splits from the folders that the archives of `raw` were unpacked to.

    Of `options`, `folders` names for each split its folders of images and of text files, `layout` the form of
    a line, `counts` how many images the splits of the original have, `height` and `width` the pixels that
    images are resized to unless there is `size`, and `most` bounds the words of an image.

    Raises:
        DataError: for folders that lack an image or a text file, and an original of another number of images.
    """
    size = options.get("size")
    height, width = (size, size) if size else (options["height"], options["width"])
    splits = {}
    for split, (images, truths) in options["folders"].items():
        files = _pair(raw / images, raw / truths)
        splits[split] = TextSource(files, options["layout"], height, width, options["most"])
    check_counts({split: len(source) for split, source in splits.items()}, options)
    return Splits(splits["train"], splits["test"], ("text",))


def _pair(images: Path, truths: Path) -> tuple[tuple[Path, Path], ...]:
    """Return each image with the file of its words, in the order of the numbers in their names."""
    found = {path.stem: path for path in _files(images) if path.suffix.lower() in IMAGE_SUFFIXES}
    words = {path.stem: path for path in _files(truths) if re.fullmatch(r"gt_.+\.txt", path.name)}
    if not found:
        raise DataError(f"{images} has no images")
    if missing := next((name for name in found if f"gt_{name}" not in words), None):
        raise DataError(f"{truths}: gt_{missing}.txt, the words of {found[missing].name}, is missing")
    if alone := next((name for name in words if name.removeprefix("gt_") not in found), None):
        raise DataError(f"{words[alone]} has no image in {images}")
    names = sorted(found, key=lambda name: (int(re.sub(r"\D", "", name) or 0), name))
    return tuple((found[name], words[f"gt_{name}"]) for name in names)


def _files(folder: Path) -> list[Path]:
    """Return the files below `folder`, but for those that systems and archivers add."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not is_foreign(path, folder))
