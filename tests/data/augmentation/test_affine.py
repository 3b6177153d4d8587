"""Images and the words in them are turned, scaled and moved together, as drawn by seed, epoch and index."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from PIL import Image, ImageDraw

from src.data.augmentation.affine import Moves, draw, move, warp

SHAPE = (96, 160, 3)
BLACK = (0, 0, 0)
# A quadrilateral without parallel sides, clockwise from its top left.
WORD = np.array([[60, 40], [110, 46], [104, 68], [62, 58]], dtype=np.float32)


def moves(matrices: np.ndarray, contrast: float = 1.0, brightness: float = 0.0) -> Moves:
    count = len(matrices)
    return Moves(matrices, np.full(count, contrast), np.full(count, brightness))


def matrix(scale: float, right: float, down: float) -> np.ndarray:
    return np.array([[[scale, 0, right], [0, scale, down]]], dtype=np.float64)


def image_of(corners: np.ndarray) -> np.ndarray:
    """White inside the corners [4, 2], black elsewhere; sixteen times drawn larger, for soft edges."""
    height, width, channels = SHAPE
    large = Image.new("L", (16 * width, 16 * height))
    # Pillow's corners are centres of pixels.
    ImageDraw.Draw(large).polygon([(16 * x - 0.5, 16 * y - 0.5) for x, y in corners], fill=255)
    drawn = np.asarray(large.resize((width, height), Image.Resampling.BOX))
    return np.repeat(drawn[..., None], channels, axis=2)


def words(*corners: np.ndarray, most: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    padded = np.zeros((1, most, 4, 2), dtype=np.float32)
    padded[0, : len(corners)] = np.reshape(corners, (-1, 4, 2))
    return padded, np.array([len(corners)]), np.zeros((1, most), dtype=np.uint8)


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], dtype=np.float32)


def test_the_identity_leaves_all_as_it_is() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, *SHAPE), dtype=np.uint8)
    before = images.copy()
    identity = np.concatenate([matrix(1, 0, 0)] * 2)
    np.testing.assert_array_equal(warp(images, moves(identity), BLACK), before)
    np.testing.assert_array_equal(images, before)
    for moved, stored in zip(move(words(WORD), identity[:1], SHAPE), words(WORD), strict=True):
        np.testing.assert_array_equal(moved, stored)
        assert moved.dtype == stored.dtype


def test_a_square_moves_by_whole_pixels_with_its_corners() -> None:
    image = np.zeros((1, *SHAPE), dtype=np.uint8)
    image[0, 20:30, 40:50] = 255
    shift = matrix(1, 7, -3)
    expected = np.zeros_like(image)
    expected[0, 17:27, 47:57] = 255
    np.testing.assert_array_equal(warp(image, moves(shift), BLACK), expected)
    np.testing.assert_array_equal(
        move(words(box(40, 20, 50, 30)), shift, SHAPE)[0][0, 0], box(47, 17, 57, 27)
    )


def test_a_square_doubles_on_the_plane_of_which_pixels_are_squares() -> None:
    image = np.zeros((1, *SHAPE), dtype=np.uint8)
    image[0, 20:30, 40:50] = 255
    double = matrix(2, -40, -20)
    # Pixels 40 to 60 and 20 to 40 in the end; beside an edge are a quarter of 255 and three, rounded down.
    moved = warp(image, moves(double), BLACK)[0, :, :, 0].astype(int)
    assert moved[30, 38:43].tolist() == [0, 63, 191, 255, 255]
    assert moved[30, 57:62].tolist() == [255, 255, 191, 63, 0]
    assert moved[18:23, 50].tolist() == [0, 63, 191, 255, 255]
    np.testing.assert_array_equal(
        move(words(box(40, 20, 50, 30)), double, SHAPE)[0][0, 0], box(40, 20, 60, 40)
    )


def test_a_quarter_of_the_size_leaves_the_colour_around() -> None:
    image = np.full((1, *SHAPE), 200, dtype=np.uint8)
    moved = warp(image, moves(matrix(0.25, 8, 4)), (10, 20, 30))[0]
    expected = np.full(SHAPE, (10, 20, 30))
    expected[4:28, 8:48] = 200
    np.testing.assert_array_equal(moved, expected)


@pytest.mark.parametrize("index", range(12))
def test_a_drawn_word_is_found_at_its_moved_corners(index: int) -> None:
    drawn = draw(3, 1, np.array([index]), SHAPE)
    (corners,), _, _ = move(words(WORD, most=1), drawn.matrices, SHAPE)
    pixels = warp(image_of(WORD)[None], moves(drawn.matrices), BLACK)[0, :, :, 0] / 255
    expected = shapely.Polygon(corners[0])
    rows, columns = np.indices(pixels.shape) + 0.5
    centre = [(pixels * columns).sum() / pixels.sum(), (pixels * rows).sum() / pixels.sum()]
    np.testing.assert_allclose(centre, [expected.centroid.x, expected.centroid.y], atol=0.1)
    assert pixels.sum() == pytest.approx(expected.area, rel=0.02)


def test_draws_are_within_their_bounds() -> None:
    matrices = draw(0, 0, np.arange(2000), SHAPE).matrices
    scales = np.sqrt(np.linalg.det(matrices[:, :, :2]))
    turns = np.rad2deg(np.arctan2(matrices[:, 1, 0], matrices[:, 0, 0]))
    assert 0.7 <= scales.min() < 0.71
    assert 1.49 < scales.max() <= 1.5
    assert np.abs(np.mean(np.log(scales)) - np.log(0.7 * 1.5) / 2) < 0.02
    assert 9.9 < np.abs(turns).max() <= 10
    height, width, _ = SHAPE
    middles = matrices @ (width / 2, height / 2, 1) - (width / 2, height / 2)
    assert (np.abs(middles) <= np.abs(scales - 1)[:, None] * (width / 2, height / 2) + 1e-9).all()


def test_draws_depend_on_seed_epoch_and_index_and_not_on_the_batch() -> None:
    indices = np.array([5, 900, 17])
    whole = draw(1, 2, indices, SHAPE)
    alone = draw(1, 2, indices[1:2], SHAPE)
    np.testing.assert_array_equal(alone.matrices[0], whole.matrices[1])
    for other in (draw(2, 2, indices, SHAPE), draw(1, 3, indices, SHAPE), draw(1, 2, indices + 1, SHAPE)):
        assert (other.matrices != whole.matrices).all()
        assert (other.contrast != whole.contrast).all()
        assert (other.brightness != whole.brightness).all()


def test_light_is_a_factor_about_the_middle_and_a_sum() -> None:
    image = np.full((1, *SHAPE), 100, dtype=np.uint8)
    image[0, 0, 0] = 255, 0, 128
    # (100 - 127.5) * 1.2 + 127.5 + 10 = 104.5, to the even number.
    relit = warp(image, moves(matrix(1, 0, 0), 1.2, 10.0), BLACK)[0]
    assert relit[1, 1].tolist() == [104, 104, 104]
    assert relit[0, 0].tolist() == [255, 0, 138]


def test_words_outside_are_left_out_and_the_others_move_up() -> None:
    first, gone, last = box(60, 40, 80, 50), box(10, 10, 30, 20), box(100, 60, 120, 70)
    corners, numbers, ignored = move(words(first, gone, last), matrix(1, -30, 0), SHAPE)
    assert numbers.tolist() == [2]
    np.testing.assert_array_equal(corners[0, 0], box(30, 40, 50, 50))
    np.testing.assert_array_equal(corners[0, 1], box(70, 60, 90, 70))
    assert not corners[0, 2:].any()
    assert not ignored.any()


def test_a_word_of_which_a_part_is_outside_is_ignored() -> None:
    # Of 20 columns 16 stay inside, 0.8 of the area; then 15.
    (corners,), (number,), (ignored,) = move(words(box(10, 10, 30, 20)), matrix(1, -14, 0), SHAPE)
    assert (number, ignored.tolist()) == (1, [0, 0, 0, 0])
    np.testing.assert_array_equal(corners[0], box(-4, 10, 16, 20))
    (corners,), (number,), (ignored,) = move(words(box(10, 10, 30, 20)), matrix(1, -15, 0), SHAPE)
    assert (number, ignored.tolist()) == (1, [1, 0, 0, 0])
    np.testing.assert_array_equal(corners[0], box(-5, 10, 15, 20))


def test_a_word_below_four_pixels_is_ignored() -> None:
    low, high = box(40, 20, 80, 27), box(40, 40, 80, 48)
    _, numbers, ignored = move(words(low, high), matrix(0.5, 0, 0), SHAPE)
    assert numbers.tolist() == [2]
    assert ignored.tolist() == [[1, 0, 0, 0]]


def test_ignored_words_stay_ignored_wherever_they_move() -> None:
    corners, numbers, ignored = words(box(0, 0, 20, 10), box(60, 40, 80, 50), box(60, 60, 80, 70))
    ignored[0, 2] = 1
    _, _, moved = move((corners, numbers, ignored), matrix(1, -40, 0), SHAPE)
    assert moved.tolist() == [[0, 1, 0, 0]]


def test_a_word_whose_corners_cross_is_moved_too() -> None:
    crossed = box(10, 10, 30, 20)[[0, 2, 1, 3]]
    corners, numbers, ignored = move(words(crossed), matrix(1, -25, 0), SHAPE)
    assert (numbers.tolist(), ignored[0, 0]) == ([1], 1)
    np.testing.assert_array_equal(corners[0, 0], crossed - (25, 0))


def test_an_image_without_words_has_none() -> None:
    corners, numbers, ignored = move(words(), matrix(1, 5, 5), SHAPE)
    assert (corners.any(), numbers.tolist(), ignored.any()) == (False, [0], False)
