"""Make up words, and draw them as masks by the font that Pillow brings along."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from src.data.generated.randomness import Draws

CONSONANTS = "bcdfghjklmnprstvwz"
VOWELS = "aeiou"
# Pixels around the letters that belong to a word's box, as a share of the font's size.
MARGIN = 0.06


@dataclass(frozen=True)
class Lettering:
    """A word as drawn.

    Attributes:
        mask: uint8 [height, width], 255 where there is ink; nothing of it is in the outermost pixels.
        left: x of the mask's first column, from where the word begins, in pixels.
        top: y of its first row, from the line that the letters stand on; negative.
    """

    mask: np.ndarray
    left: int
    top: int


def make_word(draws: Draws) -> str:
    """Make up a word that can be pronounced, or a number, at times with a comma in it."""
    if draws.chance(0.15):
        number = str(draws.whole(1, 999))
        return f"{number},{draws.whole(10, 99)}" if draws.chance(0.5) else number
    first = draws.whole(0, 1)
    word = "".join(
        draws.pick((CONSONANTS, VOWELS)[(place + first) % 2]) for place in range(draws.whole(3, 9))
    )
    return draws.pick((word, word.capitalize(), word.upper()))


def letter(text: str, size: int, stroke: int) -> Lettering:
    """Draw `text` by a font of `size` pixels, its lines thickened by `stroke` pixels."""
    font = _font(size)
    left, top, right, bottom = (int(each) for each in font.getbbox(text, anchor="ls", stroke_width=stroke))
    margin = max(1, round(size * MARGIN))
    canvas = Image.new("L", (right - left + 2 * margin, bottom - top + 2 * margin))
    place = (margin - left, margin - top)
    ImageDraw.Draw(canvas).text(place, text, fill=255, font=font, anchor="ls", stroke_width=stroke)
    return Lettering(np.asarray(canvas), left - margin, top - margin)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # It has a scalable font as long as Pillow is built with FreeType, as its wheels are.
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
