"""Draw scenes whose class can be learned and isn't obvious, in integers alone.

A scene is a large figure on a textured ground, with smaller figures behind and before it. Its class is a
composition of four attributes of the large figure: a pair of colours, the angle and the width of the stripes
between them, and an outline. Classes share values, so that no attribute suffices. Place, size,
turn, shade, light, ground, the smaller figures and the noise are random and say nothing about the class. A
mirrored scene has the same class, so that images may be flipped for augmentation.

No function is used whose last digit could differ between processors: the pixels are the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from src.data.generated.randomness import Stream

# The length of an image's shorter side in units of a scene's coordinates.
SIDE = 1024
# 1024 times the cosine of k/64 of a turn, k from 0 to 16.
COSINES = np.array(
    [1024, 1019, 1004, 980, 946, 903, 851, 792, 724, 650, 569, 483, 392, 297, 200, 100, 0], dtype=np.int32
)
QUARTER = 16
# Two colours a row.
COLOURS = np.array(
    [
        [[205, 60, 50], [240, 200, 90]],
        [[230, 230, 220], [40, 45, 60]],
        [[60, 120, 200], [225, 225, 215]],
        [[60, 120, 200], [240, 200, 90]],
        [[70, 150, 70], [200, 215, 90]],
        [[70, 150, 70], [205, 60, 50]],
        [[150, 70, 170], [235, 170, 205]],
        [[150, 70, 170], [60, 165, 165]],
        [[225, 135, 40], [90, 60, 45]],
        [[225, 135, 40], [60, 120, 200]],
        [[60, 165, 165], [40, 60, 110]],
        [[60, 165, 165], [240, 200, 90]],
        [[215, 195, 60], [190, 80, 130]],
        [[235, 170, 205], [70, 150, 70]],
        [[120, 85, 60], [190, 170, 140]],
        [[120, 85, 60], [60, 165, 165]],
        [[70, 75, 85], [150, 190, 225]],
        [[190, 80, 130], [40, 60, 110]],
        [[210, 95, 125], [85, 110, 60]],
        [[205, 60, 50], [225, 225, 215]],
    ],
    dtype=np.int32,
)
# Angles of stripes, in 1/64 of a turn, and stripes over the image's shorter side.
ANGLES = np.array([0, 4, 8, 12, 16], dtype=np.int32)
STRIPES = np.array([3, 5, 7, 10], dtype=np.int32)
# An outline is where max(a |u|, b |v|, c |u| + d |v|) lies between `hole` and 16 times the radius, with u and
# v the coordinates in the figure's own frame: disc, bar, square, ring, rhombus.
OUTLINES = np.array(
    [[16, 16, 11, 11, 0], [16, 44, 0, 0, 0], [18, 18, 0, 0, 0], [14, 14, 10, 10, 8], [0, 0, 13, 26, 0]],
    dtype=np.int32,
)
# How far apart successive classes are among the compositions; coprime to their number.
STRIDE = 7
LARGE, SMALL = (330, 480), (90, 200)


@dataclass(frozen=True)
class Difficulty:
    """How far scenes of one class differ, and how much those of different classes have in common.

    Attributes:
        values: number of values of each attribute: colours, angles, stripes, outlines. Their product is at
            least the number of classes, and coprime to STRIDE.
        shade: greatest change of a colour's channels, of 255.
        noise: greatest change of a pixel's channels, of 255.
        figures: number of smaller figures behind the large one, and as many before it.
    """

    values: tuple[int, int, int, int]
    shade: int
    noise: int
    figures: int


@dataclass(frozen=True)
class _Figures:
    """One figure in each of n scenes; all arrays are int32 [n], colours [n, 2, 3], outlines [n, 5].

    `stripe_angle` runs from 0 to 32 and `turn` from 0 to 63, in 1/64 of a turn.
    """

    x: np.ndarray
    y: np.ndarray
    radius: np.ndarray
    turn: np.ndarray
    colours: np.ndarray
    stripe_angle: np.ndarray
    stripes: np.ndarray
    phase: np.ndarray
    outline: np.ndarray


def draw(stream: Stream, labels: np.ndarray, height: int, width: int, difficulty: Difficulty) -> np.ndarray:
    """Draw a scene for each label, int64 [n], as uint8 [n, height, width, 3]."""
    count, short = len(labels), min(height, width)
    xs = (((2 * np.arange(width) + 1) * SIDE) // (2 * short)).astype(np.int32)[np.newaxis, np.newaxis, :]
    ys = (((2 * np.arange(height) + 1) * SIDE) // (2 * short)).astype(np.int32)[np.newaxis, :, np.newaxis]
    extent = (int(width * SIDE // short), int(height * SIDE // short))
    anything = stream.integers(0, prod(difficulty.values), (1 + 2 * difficulty.figures, count))
    ground = _figures(stream, anything[0], extent, LARGE, difficulty)
    figures = [_figures(stream, each, extent, SMALL, difficulty) for each in anything[1:]]
    figures.insert(difficulty.figures, _figures(stream, labels, extent, LARGE, difficulty))

    canvas = _striped(ground, xs, ys)
    # The ground is paler than the figures.
    canvas = (canvas + stream.integers(40, 216, (count, 1, 1, 3)).astype(np.int32)) // 2
    for figure in figures:
        np.copyto(canvas, _striped(figure, xs, ys), where=_inside(figure, xs, ys)[..., np.newaxis])
    return _lit(stream, canvas, difficulty.noise)


def composition(labels: np.ndarray, values: tuple[int, ...]) -> list[np.ndarray]:
    """Return which of its `values` each attribute has in scenes of these classes, [n] for each attribute."""
    number = labels * STRIDE % prod(values)
    places = []
    for count in values:
        number, place = np.divmod(number, count)
        places.append(place)
    return places


def _figures(
    stream: Stream,
    labels: np.ndarray,
    extent: tuple[int, int],
    radii: tuple[int, int],
    difficulty: Difficulty,
) -> _Figures:
    """Draw the random properties of a figure of each label."""
    count = len(labels)
    colours, angle, stripes, outline = (
        table[place * len(table) // values]
        for table, place, values in zip(
            (COLOURS, ANGLES, STRIPES, OUTLINES),
            composition(labels, difficulty.values),
            difficulty.values,
            strict=True,
        )
    )

    def between(low: int, high: int, *more: int) -> np.ndarray:
        return stream.integers(low, high, (count, *more)).astype(np.int32)

    margin = radii[0] * 3 // 4
    slant = angle + between(-1, 2)
    return _Figures(
        x=between(margin, extent[0] - margin + 1),
        y=between(margin, extent[1] - margin + 1),
        radius=between(radii[0], radii[1] + 1),
        turn=between(0, 4 * QUARTER),
        colours=colours + between(-difficulty.shade, difficulty.shade + 1, 2, 3),
        stripe_angle=np.where(between(0, 2) == 1, slant, 2 * QUARTER - slant) % (4 * QUARTER),
        stripes=stripes,
        phase=between(0, 512),
        outline=outline,
    )


def _striped(figure: _Figures, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Return the figure's stripes all over the image, int32 [n, height, width, 3]."""
    cosine, sine = _direction(figure.stripe_angle)
    # 512 is a period.
    along = ((xs * cosine + ys * sine) * _column(figure.stripes) >> 11) + _column(figure.phase)
    share = np.abs((along & 511) - 256)[..., np.newaxis]
    first, second = (figure.colours[:, np.newaxis, np.newaxis, place] for place in (0, 1))
    return second + ((first - second) * share >> 8)


def _inside(figure: _Figures, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Return whether a point lies inside the figure's outline, bool [n, height, width]."""
    cosine, sine = _direction(figure.turn)
    dx, dy = xs - _column(figure.x), ys - _column(figure.y)
    across = np.abs(dx * cosine + dy * sine) >> 10
    up = np.abs(dy * cosine - dx * sine) >> 10
    a, b, c, d, hole = (_column(each) for each in figure.outline.T)
    distance = np.maximum(np.maximum(a * across, b * up), c * across + d * up)
    radius = _column(figure.radius)
    return (distance < 16 * radius) & (distance >= hole * radius)


def _lit(stream: Stream, canvas: np.ndarray, noise: int) -> np.ndarray:
    """Change the scenes' light and contrast, add noise, and return them as uint8."""
    count = len(canvas)
    contrast = stream.integers(150, 281, (count, 1, 1, 1)).astype(np.int32)
    light = stream.integers(-30, 31, (count, 1, 1, 1)).astype(np.int32)
    canvas = ((canvas - 128) * contrast >> 8) + (128 + light)
    return np.clip(canvas + grain(stream, canvas.shape, noise), 0, 255).astype(np.uint8)


def grain(stream: Stream, shape: tuple[int, ...], most: int) -> np.ndarray:
    """Draw noise from -`most` to `most`, at most 63, uniform, as int16 [*shape]."""
    octets = stream.octets(prod(shape)).reshape(shape).astype(np.int16)
    return (octets * np.int16(2 * most + 1) >> 8) - np.int16(most)


def _direction(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 1024 times the cosine and the sine of an angle, in 1/64 of a turn, as int32 [n, 1, 1]."""
    quarter, rest = np.divmod(angle, QUARTER)
    cosine, sine = COSINES[rest], COSINES[QUARTER - rest]
    turned = [(cosine, sine), (-sine, cosine), (-cosine, -sine), (sine, -cosine)]
    return (
        _column(np.choose(quarter, [each[0] for each in turned])),
        _column(np.choose(quarter, [each[1] for each in turned])),
    )


def _column(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int32)[:, np.newaxis, np.newaxis]
