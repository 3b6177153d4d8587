"""Draw what stands behind the words of a scene: surfaces, textures, and shapes that look a little like text.

Pixels are whole numbers throughout, so that they are the same on every machine. Images are [3, height, width]
while they are drawn, because numpy is several times as fast on long rows as on triples.
"""

from __future__ import annotations

import numpy as np

from src.data.generated.randomness import Draws

# Cells of the texture in pixels, as powers of two, and how many grey levels each may add or take away.
TEXTURE = ((6, 20), (4, 10), (2, 6))
LIGHT_CELL, LIGHT = 7, 60
UNIT = 1024


def value_noise(draws: Draws, height: int, width: int, power: int, amplitude: int) -> np.ndarray:
    """Draw smooth noise, int16 [height, width] from -amplitude to amplitude.

    It has a new value each 2**power pixels; `power` is at most 7, so that products fit int16.
    """
    cell = 1 << power
    grid = draws.grid(height // cell + 2, width // cell + 2).astype(np.int16)
    # The share of the next value, at each pixel of a cell.
    share = np.arange(cell, dtype=np.int16)
    rows = (grid[:, :-1, np.newaxis] * (cell - share) + grid[:, 1:, np.newaxis] * share) >> power
    # Products with an amplitude below 128 fit too.
    rows = (rows.reshape(len(grid), -1)[:, :width] - np.int16(128)) * np.int16(amplitude) >> 7
    share = share[:, np.newaxis]
    smooth = (rows[:-1, np.newaxis] * (cell - share) + rows[1:, np.newaxis] * share) >> power
    return smooth.reshape(-1, width)[:height]


def colour(draws: Draws, light: int, spread: int) -> np.ndarray:
    """Draw a colour, int16 [3], whose channels differ from `light` by at most `spread`."""
    return np.array([light + draws.whole(-spread, spread) for _ in range(3)], dtype=np.int16).clip(0, 255)


def background(draws: Draws, height: int, width: int) -> np.ndarray:
    """Draw surfaces and clutter, int16 [3, height, width]."""
    pixels = np.empty((3, height, width), dtype=np.int16)
    pixels[:] = colour(draws, draws.whole(60, 200), 35)[:, np.newaxis, np.newaxis]
    for _ in range(draws.whole(3, 6)):
        shape = _Shape(draws, height, width, least=height // 6, most=height // 2)
        shape.paint(pixels, colour(draws, draws.pick((draws.whole(20, 90), draws.whole(160, 240))), 35))
    for _ in range(draws.whole(2, 4)):
        _stripes(draws, pixels)
    for _ in range(draws.whole(8, 14)):
        _row_of_shapes(draws, pixels)
    for _ in range(draws.whole(10, 30)):
        shape = _Shape(draws, height, width, least=3, most=height // 16)
        shape.paint(pixels, colour(draws, draws.whole(10, 245), 40), round_=draws.chance(0.4))
    texture = np.zeros((height, width), dtype=np.int16)
    for power, amplitude in TEXTURE:
        texture += value_noise(draws, height, width, power, draws.whole(2, amplitude))
    pixels += texture
    return pixels


def develop(draws: Draws, pixels: np.ndarray) -> np.ndarray:
    """Light a scene [3, height, width] unevenly, in place, and add a sensor's noise.

    Returns:
        uint8 [height, width, 3].
    """
    height, width = pixels.shape[1:]
    light = value_noise(draws, height, width, LIGHT_CELL, draws.whole(5, LIGHT))
    # The sensor's noise: -4 to 3.
    light += draws.grid(height, width) & np.uint8(7)
    light -= np.int16(4)
    pixels += light
    return np.stack(list(pixels.clip(0, 255, out=pixels).astype(np.uint8)), axis=-1)


class _Shape:
    """A parallelogram, or the ellipse in it, somewhere in an image.

    `region` is the part of the image that holds it, `u` and `v` the coordinates there along its two axes,
    int32, from -UNIT to UNIT inside.
    """

    def __init__(self, draws: Draws, height: int, width: int, *, least: int, most: int) -> None:
        # The half axes, in pixels, are near a right angle to each other and somewhat turned.
        a, b = draws.whole(least, most), draws.whole(least, most)
        turn = draws.between(-0.3, 0.3)
        axes = ((a, int(a * turn)), (int(-b * turn * draws.between(0.5, 1.5)), b))
        self._lay(axes, draws.whole(0, width), draws.whole(0, height), height, width)

    def _lay(
        self, axes: tuple[tuple[int, int], tuple[int, int]], x: int, y: int, height: int, width: int
    ) -> None:
        (ax, ay), (bx, by) = self.axes = axes
        reach_x, reach_y = abs(ax) + abs(bx), abs(ay) + abs(by)
        self.region = (
            slice(max(0, y - reach_y), max(0, min(height, y + reach_y + 1))),
            slice(max(0, x - reach_x), max(0, min(width, x + reach_x + 1))),
        )
        rows, columns = (np.arange(part.start, part.stop, dtype=np.int32) for part in self.region)
        dx, dy = columns - x, (rows - y)[:, np.newaxis]
        area = ax * by - ay * bx
        self.u = (dx * (by * UNIT) - dy * (bx * UNIT)) // area
        self.v = (dy * (ax * UNIT) - dx * (ay * UNIT)) // area

    def moved(self, x: int, y: int, height: int, width: int) -> _Shape:
        """Return the same shape with its centre at `x` and `y`."""
        other = object.__new__(_Shape)
        other._lay(self.axes, x, y, height, width)
        return other

    def paint(self, pixels: np.ndarray, shade: np.ndarray, *, round_: bool = False) -> None:
        """Fill the shape, or the ellipse in it, with one colour."""
        inside = self.u**2 + self.v**2 <= UNIT**2 if round_ else self.inside()
        for channel, value in zip(pixels, shade, strict=True):
            np.copyto(channel[self.region], value, where=inside)

    def inside(self) -> np.ndarray:
        """Return which pixels of the region are in the parallelogram, bool [rows, columns]."""
        return (abs(self.u) <= UNIT) & (abs(self.v) <= UNIT)


def _stripes(draws: Draws, pixels: np.ndarray) -> None:
    """Draw a railing, a blind or a wall of bricks: stripes across a parallelogram."""
    height, width = pixels.shape[1:]
    shape = _Shape(draws, height, width, least=height // 16, most=height // 4)
    count = draws.whole(4, 24)
    striped = shape.inside() & (shape.u * count // (2 * UNIT) % 2 == 0)
    if draws.chance(0.5):
        striped &= shape.v * count // UNIT % 3 != 0
    pixels[:, *shape.region] += striped * np.int16(draws.pick((-1, 1)) * draws.whole(15, 70))


def _row_of_shapes(draws: Draws, pixels: np.ndarray) -> None:
    """Draw equal shapes in a row, as windows, lamps or rivets, of the size of letters."""
    height, width = pixels.shape[1:]
    shape = _Shape(draws, height, width, least=3, most=height // 24)
    gap = 2 * (abs(shape.axes[0][0]) + abs(shape.axes[1][0])) + draws.whole(2, height // 36)
    x, y, drop = draws.whole(0, width), draws.whole(0, height), draws.whole(-6, 6)
    shade, round_ = colour(draws, draws.whole(10, 245), 40), draws.chance(0.3)
    for place in range(draws.whole(4, 12)):
        shape.moved(x + place * gap, y + place * drop, height, width).paint(pixels, shade, round_=round_)
