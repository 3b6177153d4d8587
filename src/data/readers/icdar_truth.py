"""Read the ground truth of the ICDAR robust reading competitions: one text file an image, one word a line.

    377,117,463,117,465,130,378,130,Genaxis Theatre    2015: four corners, clockwise from the word's top left
    158 128 411 181 "Footpath"                         2013, training: left, top, right, bottom
    38, 43, 920, 215, "Tiredness"                      2013, test

A word whose text is ### can't be read and is neither to be found nor to be missed.

Source: the pages "Tasks" of challenges 2 (focused) and 4 (incidental scene text), rrc.cvc.uab.es.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from src.data.errors import DataError

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
    usual with these data. A word without an area is ignored, because nothing of it can be seen.

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
    area = signed_area(corners)
    # The first corner stays the first one.
    corners[area < 0] = corners[area < 0][:, [0, 3, 2, 1]]
    return Words(corners, words.ignored | (np.abs(area) < LEAST_AREA), words.lines)


def signed_area(corners: np.ndarray) -> np.ndarray:
    """Return the areas [words] of quadrilaterals [words, 4, 2]: positive where clockwise, y pointing down."""
    x, y = corners[..., 0], corners[..., 1]
    return (x * np.roll(y, -1, axis=1) - np.roll(x, -1, axis=1) * y).sum(axis=1) / 2
