"""Draw scenes with made-up words on signs and walls, and say exactly where each word is.

A sign is a plane with a line or two of words, seen in perspective or straight on. The corners of a word's
quadrilateral are rounded to whole pixels first, as the published ones are, and the word is drawn into it
then; so the quadrilateral is exact. Light words on dark and dark on light stand in one scene, and walls vary
more than letters differ from them, so that no one threshold tells words from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from src.data.generated import scenery
from src.data.generated.perspective import Point, project, square_to_quadrilateral, warp
from src.data.generated.randomness import Draws

Corners = tuple[tuple[int, int], ...]

REFERENCE_HEIGHT = 720  # pixels of an image for which sizes are given
EDGE = 4  # pixels between a sign and the image's edge, or another sign
PLACES_TRIED = 6  # for a sign
SIGNS_TRIED = 4  # one after the other, until there is a place for one
# Grey levels between a word and what is behind it, and the share of words that differ by little.
CONTRAST, LOW_CONTRAST, LOW_SHARE = (36, 85), (26, 38), 0.15
CONSONANTS = "bcdfghjklmnprstvwz"
VOWELS = "aeiou"
# Pixels around the letters that belong to a word's box, as a share of the font's size.
MARGIN = 0.06


@dataclass(frozen=True)
class Style:
    """How the scenes of a dataset look.

    Attributes:
        upright: whether signs are seen straight on, so that words' boxes are parallel to the edges.
        sizes: least and greatest size of the font in pixels, in an image of 720 rows.
        signs: least and greatest number of signs.
        unreadable: greatest number of signs that are too small and too blurred to be read.
    """

    upright: bool
    sizes: tuple[int, int]
    signs: tuple[int, int]
    unreadable: int


@dataclass(frozen=True)
class Word:
    """A word of a scene: its corners (x, y), clockwise from its top left, and its text, if it can be read."""

    corners: Corners
    text: str | None


@dataclass(frozen=True)
class _Lettering:
    """A word as drawn.

    Attributes:
        mask: uint8 [height, width], 255 where there is ink; nothing of it is in the outermost pixels.
        left: x of the mask's first column, from where the word begins, in pixels.
        top: y of its first row, from the line that the letters stand on; negative.
    """

    mask: np.ndarray
    left: int
    top: int


@dataclass(frozen=True)
class _Line:
    """A word on a sign, before its sign is put anywhere: its left and top on the sign, in pixels."""

    text: str
    lettering: _Lettering
    left: int
    top: int


def draw_scene(draws: Draws, height: int, width: int, style: Style) -> tuple[np.ndarray, list[Word]]:
    """Draw a scene; return its pixels, uint8 [height, width, 3], and its words."""
    pixels = scenery.background(draws, height, width)
    words: list[Word] = []
    taken: list[tuple[int, int, int, int]] = []
    for blurred, count in ((False, draws.whole(*style.signs)), (True, draws.whole(0, style.unreadable))):
        for _ in range(count):
            attempts = (_draw_sign(draws, pixels, taken, style, blurred) for _ in range(SIGNS_TRIED))
            words += next(filter(None, attempts), [])
    return scenery.develop(draws, pixels), words


def _make_word(draws: Draws) -> str:
    """Make up a word that can be pronounced, or a number, at times with a comma in it."""
    if draws.chance(0.15):
        number = str(draws.whole(1, 999))
        return f"{number},{draws.whole(10, 99)}" if draws.chance(0.5) else number
    first = draws.whole(0, 1)
    word = "".join(
        draws.pick((CONSONANTS, VOWELS)[(place + first) % 2]) for place in range(draws.whole(3, 9))
    )
    return draws.pick((word, word.capitalize(), word.upper()))


def _letter(text: str, size: int, stroke: int) -> _Lettering:
    """Draw `text` by a font of `size` pixels, its lines thickened by `stroke` pixels."""
    font = _font(size)
    left, top, right, bottom = (int(each) for each in font.getbbox(text, anchor="ls", stroke_width=stroke))
    margin = max(1, round(size * MARGIN))
    canvas = Image.new("L", (right - left + 2 * margin, bottom - top + 2 * margin))
    place = (margin - left, margin - top)
    ImageDraw.Draw(canvas).text(place, text, fill=255, font=font, anchor="ls", stroke_width=stroke)
    return _Lettering(np.asarray(canvas), left - margin, top - margin)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # It has a scalable font as long as Pillow is built with FreeType, as its wheels are.
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font


def _draw_sign(
    draws: Draws, pixels: np.ndarray, taken: list[tuple[int, int, int, int]], style: Style, blurred: bool
) -> list[Word]:
    """Draw a sign where there is room, add its bounding box to `taken`, and return its words."""
    height, width = pixels.shape[1:]
    # Small words are more usual than large ones.
    low, high = (9, 14) if blurred else style.sizes
    size = round((low + (high - low) * draws.between(0, 1) * draws.between(0, 1)) * height / REFERENCE_HEIGHT)
    lines, across, down = _lay_out(draws, size, blurred)
    if not (plane := _find_place(draws, (across, down), (height, width), taken, style.upright)):
        return []
    unit = square_to_quadrilateral(plane)
    on_board = draws.chance(0.4)
    shade = scenery.colour(draws, draws.pick((draws.whole(10, 80), draws.whole(170, 245))), 30)
    if on_board:
        _blend(pixels, np.full((down, across), 255, np.uint8), _rounded(plane), shade)
    low_contrast = blurred or draws.chance(LOW_SHARE)
    contrast = draws.whole(*(LOW_CONTRAST if low_contrast else CONTRAST))
    lighter, tint = draws.chance(0.5), scenery.colour(draws, 0, 20)
    words = []
    for line in lines:
        rows, columns = line.lettering.mask.shape
        x = np.array([line.left, line.left + columns, line.left + columns, line.left]) / across
        y = np.array([line.top, line.top, line.top + rows, line.top + rows]) / down
        corners = _rounded(list(zip(*(each.tolist() for each in project(unit, x, y)), strict=True)))
        mask = _blur(line.lettering.mask) if blurred else line.lettering.mask
        ink = _ink(pixels, corners, contrast, lighter) + tint
        _blend(pixels, mask, corners, ink.clip(0, 255))
        words.append(Word(corners, None if blurred else line.text))
    return words


def _lay_out(draws: Draws, size: int, blurred: bool) -> tuple[list[_Line], int, int]:
    """Make up the words of a sign; return them, and the sign's width and height in pixels."""
    stroke = 0 if size < 20 else draws.pick((0, 0, 1, max(1, size // 24)))
    border = max(2, size // 4)
    placed, across, baseline = [], 0, border
    for _ in range(draws.pick((1, 1, 1, 2) if not blurred else (1, 1, 2))):
        baseline += size + draws.whole(0, size // 4)
        left = border
        for _ in range(draws.pick((1, 1, 2))):
            text = _make_word(draws)
            lettering = _letter(text, size, stroke)
            placed.append(_Line(text, lettering, left, baseline + lettering.top))
            left += lettering.mask.shape[1] + size // 2 + draws.whole(0, size // 4)
        across = max(across, placed[-1].left + placed[-1].lettering.mask.shape[1] + border)
    return placed, across, max(each.top + len(each.lettering.mask) for each in placed) + border


def _find_place(
    draws: Draws,
    size: tuple[int, int],
    image: tuple[int, int],
    taken: list[tuple[int, int, int, int]],
    upright: bool,
) -> list[Point] | None:
    """Return the corners of a sign of `size` (across, down) where it covers no other, or None."""
    height, width = image
    for _ in range(PLACES_TRIED):
        corners = _turn(draws, size, upright)
        x, y = [point[0] for point in corners], [point[1] for point in corners]
        room_x, room_y = width - (max(x) - min(x)) - 2 * EDGE, height - (max(y) - min(y)) - 2 * EDGE
        if room_x < 0 or room_y < 0:
            continue
        shift_x = EDGE - min(x) + int(draws.between(0, room_x))
        shift_y = EDGE - min(y) + int(draws.between(0, room_y))
        placed = [(a + shift_x, b + shift_y) for a, b in corners]
        x, y = [point[0] for point in placed], [point[1] for point in placed]
        box = (int(min(x)) - EDGE, int(min(y)) - EDGE, int(max(x)) + EDGE, int(max(y)) + EDGE)
        if not any(_overlap(box, other) for other in taken):
            taken.append(box)
            return placed
    return None


def _turn(draws: Draws, size: tuple[int, int], upright: bool) -> list[Point]:
    """Return the corners of a rectangle of `size` (across, down) as seen: turned and in perspective."""
    across, down = size
    if upright:
        return [(0, 0), (across, 0), (across, down), (0, down)]
    # The tangent of half the angle gives sine and cosine by plain arithmetic; most signs hang nearly level.
    half = 0.2 * draws.between(-1, 1) * draws.between(0, 1) + draws.between(-0.06, 0.06)
    cosine, sine = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    squeeze, shear = draws.between(0.7, 1.1), draws.between(-0.15, 0.15)
    # One of its sides is farther away, and so shorter.
    far = [draws.between(0.75, 1), 1.0]
    if draws.chance(0.5):
        far.reverse()
    points = []
    for u, v in ((0, 0), (1, 0), (1, 1), (0, 1)):
        y = (v - 0.5) * down * far[u]
        x = (u - 0.5) * across * squeeze + shear * y
        points.append((cosine * x - sine * y, sine * x + cosine * y))
    return points


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _rounded(corners: list[Point]) -> Corners:
    return tuple((round(x), round(y)) for x, y in corners)


def _ink(pixels: np.ndarray, corners: Corners, contrast: int, lighter: bool) -> np.ndarray:
    """Return a colour, int16 [3], that differs by `contrast` from what is behind a word.

    It differs by more where what is behind varies much, and to the other side where there is no room.
    """
    x, y = [corner[0] for corner in corners], [corner[1] for corner in corners]
    behind = pixels[:, min(y) : max(y), min(x) : max(x)].reshape(3, -1).astype(np.int32)
    mean = behind.sum(axis=1) // behind.shape[1]
    grey = behind.sum(axis=0) // 3
    level = int(grey.sum()) // len(grey)
    spread = int(np.abs(grey - level).sum()) // len(grey)
    step = max(contrast, 3 * spread)
    if lighter and level + step > 250:
        lighter = False
    elif not lighter and level - step < 5:
        lighter = True
    return (mean + (step if lighter else -step)).astype(np.int16)


def _blur(mask: np.ndarray) -> np.ndarray:
    """Return a mask blurred by [1 2 1] twice along both sides; it keeps its size."""
    blurred = np.pad(mask, 2).astype(np.int32)
    for _ in range(2):
        blurred = (blurred[:-2] + 2 * blurred[1:-1] + blurred[2:]) // 4
        blurred = (blurred[:, :-2] + 2 * blurred[:, 1:-1] + blurred[:, 2:]) // 4
    return blurred.astype(np.uint8)


def _blend(pixels: np.ndarray, mask: np.ndarray, corners: Corners, shade: np.ndarray) -> None:
    """Paint a mask in one colour into a quadrilateral of an image [3, height, width]."""
    ink, (left, top) = warp(mask, corners)
    rows, columns = ink.shape
    region = pixels[:, top : top + rows, left : left + columns]
    region += ((shade[:, np.newaxis, np.newaxis] - region) * ink >> 8).astype(np.int16)
