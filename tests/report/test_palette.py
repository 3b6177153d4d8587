"""The page's colours are legible in light and dark, and series are told apart by colour-blind eyes, too."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from src.report import palette

THEMES = ("light", "dark")
# Machado, Oliveira and Fernandes (2009), of linear RGB, at full severity.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2.2."""
    dark, light = sorted(float(linear(colour) @ XYZ[1]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB."""
    xyz = XYZ @ np.clip(rgb, 0, 1) / WHITE
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_the_contrast_of_wcag_aa_and_marks_that_of_graphics(theme: str) -> None:
    for ground in (palette.PAGE, palette.BAND):
        for text in (palette.INK, palette.SOFT, palette.WARN, palette.GOOD):
            assert contrast(getattr(text, theme), getattr(ground, theme)) >= 4.5, (text, ground)
    for mark in palette.SERIES:
        assert contrast(getattr(mark, theme), getattr(palette.PAGE, theme)) >= 3, mark


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", THEMES)
def test_no_two_series_look_alike(theme: str, vision: str) -> None:
    seen = {c.name: lab(VISIONS[vision] @ linear(getattr(c, theme))) for c in palette.SERIES}
    for one, other in combinations(seen, 2):
        # A difference of 2.3 is just noticed; thin lines need a multiple of it.
        assert np.linalg.norm(seen[one] - seen[other]) > 20, (one, other)


def test_every_colour_of_a_figure_has_a_dark_value() -> None:
    assert palette.variable("#034BAB") == "var(--c1)"
    assert palette.variable("#123456") is None
