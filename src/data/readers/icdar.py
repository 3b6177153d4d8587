"""Read the images and words of ICDAR 2015 (incidental scene text) and ICDAR 2013 (focused scene text).

Each split is a folder of images and one of text files, as its two archives hold them. An image NAME.jpg has
its words in gt_NAME.txt, one a line:

    377,117,463,117,465,130,378,130,Genaxis Theatre    2015: four corners, clockwise from the word's top left
    158 128 411 181 "Footpath"                         2013, training: left, top, right, bottom
    38, 43, 920, 215, "Tiredness"                      2013, test

A word whose text is ### can't be read and is neither to be found nor to be missed.

Source: the pages "Tasks" of challenges 2 (focused) and 4 (incidental scene text), rrc.cvc.uab.es.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from src.data.errors import DataError
from src.data.readers.pictures import DamagedPicture, opened, to_rgb
from src.data.readers.raw_files import check_counts, is_foreign
from src.data.samples import Samples, Splits

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
UNREADABLE = "###"
NUMBER = re.compile(r"-?\d+(\.\d+)?")
LEAST_AREA = 1.0  # square pixels


@dataclass(frozen=True)
class Layout:
    """The form of a line: what stands in it, how many coordinates that is, and what separates them."""

    line: str
    numbers: int
    separator: re.Pattern[str]


# A text may hold spaces and commas. Only after four numbers alone may it also be a space that separates.
LAYOUTS = {
    "quadrilaterals": Layout("x1,y1,x2,y2,x3,y3,x4,y4,text", 8, re.compile(r"\s*,\s*")),
    "boxes": Layout("left top right bottom text", 4, re.compile(r"\s*,\s*|\s+")),
}


@dataclass(frozen=True)
class TextSource:
    """A split of images with words.

    A sample's input is its image, uint8 [height, width, 3], resized to that size whatever its own aspect
    ratio. Its targets are its words' quadrilaterals, float32 [most, 4, 2] in pixels (x, y) of the resized
    image and clockwise, padded by zeros; their number, int64 []; and which ones are ignored, uint8 [most].

    Attributes:
        files: each image's file and that of its words.
        layout: name of the form of their lines, of `LAYOUTS`.
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


@dataclass(frozen=True)
class Words:
    """The words of one image.

    Attributes:
        corners: float64 [words, 4, 2], x and y in pixels, clockwise.
        ignored: bool [words], the ones that can't be read.
        lines: the number of each word's line in its file, from 1.
    """

    corners: np.ndarray
    ignored: np.ndarray
    lines: tuple[int, ...]


def read_words(path: Path, layout: Layout) -> Words:
    """Read the words of the file `path`.

    Raises:
        DataError: for a file that isn't UTF-8, or a line of another form; its text names both.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no UTF-8 text: {error.reason} at byte {error.start}") from error
    corners, ignored, lines = [], [], []
    # Not splitlines, which takes rarer characters for ends of lines too.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            word, transcription = _read_line(line.strip(), layout, f"{path}, line {number}")
            corners.append(word)
            ignored.append(transcription.strip().strip('"') == UNREADABLE)
            lines.append(number)
    return Words(np.array(corners).reshape(-1, 4, 2), np.array(ignored, dtype=bool), tuple(lines))


def _read_line(line: str, layout: Layout, where: str) -> tuple[np.ndarray, str]:
    """Return the corners [4, 2] and the text of a line."""
    parts = layout.separator.split(line, maxsplit=layout.numbers)
    numbers = list(takewhile(NUMBER.fullmatch, parts[: layout.numbers]))
    if len(numbers) < layout.numbers or len(parts) == layout.numbers:
        raise DataError(
            f"{where}: {line[:80]!r} begins with {len(numbers)} numbers, but a line must be `{layout.line}`"
        )
    values = np.array([float(each) for each in numbers])
    if layout.numbers == 4:
        left, top, right, bottom = values
        values = np.array([left, top, right, top, right, bottom, left, bottom])
    return values.reshape(4, 2), parts[-1]


def fit_words(words: Words, width: int, height: int, path: Path) -> Words:
    """Return the words of an image of `width` and `height` pixels, cut to it and clockwise.

    A few published words reach over an edge of their image, or run counter-clockwise; both are mended, as
    usual with these data. So are corners by rows (top left, top right, bottom left, bottom right), as several
    programs write them, and other orders in which two edges cross. A word without an area is ignored, because
    nothing of it can be seen.

    Raises:
        DataError: for a word wholly outside its image; its text names the line of the file `path`.
    """
    low, high = words.corners.min(axis=1), words.corners.max(axis=1)
    outside = ((high <= 0) | (low >= (width, height))).any(axis=1)
    if outside.any():
        word = int(outside.argmax())
        points = " ".join(f"{x:g},{y:g}" for x, y in words.corners[word])
        raise DataError(
            f"{path}, line {words.lines[word]}: the word at {points} lies outside its image of "
            f"{width}x{height}"
        )
    corners = words.corners.clip(0, (width, height))
    _uncross(corners)
    area = signed_area(corners)
    # The first corner stays the first one.
    corners[area < 0] = corners[area < 0][:, [0, 3, 2, 1]]
    return Words(corners, words.ignored | (np.abs(area) < LEAST_AREA), words.lines)


def _uncross(corners: np.ndarray) -> None:
    """Order the corners of the quadrilaterals [words, 4, 2] that cross themselves; the first one stays."""
    for order in ([0, 1, 3, 2], [0, 2, 1, 3]):
        # Each way of crossing is undone by another exchange.
        crossed = _cross(*(corners[:, corner] for corner in order))
        corners[crossed] = corners[crossed][:, order]


def _cross(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return whether the diagonals of quadrilaterals cross, whose corners [words, 2] these are in order."""

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        (px, py), (qx, qy) = (q - p).T, (r - p).T
        return np.sign(px * qy - py * qx)

    return (side(a, c, b) * side(a, c, d) < 0) & (side(b, d, a) * side(b, d, c) < 0)


def signed_area(corners: np.ndarray) -> np.ndarray:
    """Return the areas [words] of quadrilaterals [words, 4, 2]: positive where clockwise, y pointing down."""
    x, y = corners[..., 0], corners[..., 1]
    return (x * np.roll(y, -1, axis=1) - np.roll(x, -1, axis=1) * y).sum(axis=1) / 2
