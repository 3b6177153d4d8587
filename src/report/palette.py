"""Name the colours of a page and its figures, each with a value for light and one for dark surroundings.

Figures are drawn with the light values, and carry the names once they stand in a page (`src/report/svg.py`).
All marks have a contrast of at least 3:1 with the page, all text 4.5:1 (WCAG 2.2, 1.4.11 and 1.4.3).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """A colour by the name of its CSS variable, as hexadecimal RGB on a light and on a dark page."""

    name: str
    light: str
    dark: str


INK = Colour("ink", "#1c2126", "#e6e9ec")
SOFT = Colour("soft", "#566069", "#a2adb6")
LINE = Colour("line", "#dde2e6", "#38424b")
PAGE = Colour("page", "#ffffff", "#14181c")
BAND = Colour("band", "#f5f7f9", "#1d2329")
WARN = Colour("warn", "#a33b00", "#ffa870")
GOOD = Colour("good", "#00694c", "#5fd3ac")
IDLE = Colour("idle", "#c6cdd3", "#4a545d")
# These tell series apart: seven hues of such lightness that the colour-blind see a difference, too.
SERIES = (
    Colour("c1", "#034bab", "#3d9bff"),
    Colour("c2", "#8f3c0c", "#e88115"),
    Colour("c3", "#07975a", "#159768"),
    Colour("c4", "#a8508a", "#d953b9"),
    Colour("c5", "#2589d3", "#a2d7fd"),
    Colour("c6", "#ce7313", "#e8daa5"),
    Colour("c7", "#404040", "#ebebeb"),
)
COLOURS = (INK, SOFT, LINE, PAGE, BAND, WARN, GOOD, IDLE, *SERIES)


def css(theme: str) -> str:
    """Return the declarations of all colours in a theme, `light` or `dark`."""
    return " ".join(f"--{colour.name}: {getattr(colour, theme)};" for colour in COLOURS)


def variable(value: str) -> str | None:
    """Return `var(--name)` for the light value of a colour, `None` for one that the palette lacks."""
    return _VARIABLES.get(value.lower())


_VARIABLES = {colour.light: f"var(--{colour.name})" for colour in COLOURS} | {"#000000": "var(--ink)"}
