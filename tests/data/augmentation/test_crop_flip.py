"""Training images are moved and mirrored as drawn, and drawn by seed, epoch and index alone."""

from __future__ import annotations

import numpy as np
import pytest

from src.data.augmentation.crop_flip import Moves, crop_flip, draw

SHAPE = (32, 32, 3)
PINNED = [[-2, -2, 1, 1, -2, -1], [3, 1, 1, 1, -1, 1], [False, False, False, True, True, False]]


def by_definition(image: np.ndarray, down: int, right: int, mirrored: bool) -> np.ndarray:
    """A margin all around, a window, and its mirror image."""
    height, width, _ = image.shape
    margin = max(image.shape)
    padded = np.pad(image, ((margin, margin), (margin, margin), (0, 0)))
    top, left = margin + down, margin + right
    window = padded[top : top + height, left : left + width]
    return window[:, ::-1] if mirrored else window


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (9, 17, 4), (5, 5, 3)])
def test_an_image_is_the_window_of_the_padded_one(shape: tuple[int, int, int]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, *shape), dtype=np.uint8)
    before = images.copy()
    moves = draw(7, 3, np.arange(200), shape)
    result = crop_flip(images, moves)
    for number, image in enumerate(images):
        expected = by_definition(image, moves.rows[number], moves.columns[number], moves.mirrored[number])
        np.testing.assert_array_equal(result[number], expected)
    np.testing.assert_array_equal(images, before)


def test_extreme_moves() -> None:
    images = np.arange(1, 82, dtype=np.uint8).reshape(1, 9, 9, 1)
    for down in (-9, -1, 0, 1, 9):
        for right in (-9, 0, 9):
            moves = Moves(np.array([down]), np.array([right]), np.array([True]))
            np.testing.assert_array_equal(
                crop_flip(images, moves)[0], by_definition(images[0], down, right, True)
            )


def test_moves_are_evenly_drawn_over_the_margin_of_an_eighth() -> None:
    moves = draw(0, 0, np.arange(90_000), SHAPE)
    for offsets in (moves.rows, moves.columns):
        values, counts = np.unique(offsets, return_counts=True)
        assert values.tolist() == list(range(-4, 5))
        # Nine values of 10,000 each; four standard deviations are 380.
        assert np.abs(counts - 10_000).max() < 400
    assert abs(moves.mirrored.mean() - 0.5) < 0.01
    # Neither says anything of the other.
    together = np.corrcoef([moves.rows, moves.columns, moves.mirrored])
    assert np.abs(together - np.eye(3)).max() < 0.02


def test_draws_depend_on_seed_epoch_and_index_and_not_on_the_batch() -> None:
    indices = np.array([5, 900, 17, 3])
    whole = draw(1, 2, indices, SHAPE)
    for number in range(4):
        alone = draw(1, 2, indices[number : number + 1], SHAPE)
        assert (alone.rows[0], alone.columns[0]) == (whole.rows[number], whole.columns[number])
    many = np.arange(1000)
    first = draw(1, 2, many, SHAPE)
    for other in (draw(2, 1, many, SHAPE), draw(1, 3, many, SHAPE), draw(1, 2, many + 1, SHAPE)):
        assert 0.05 < np.mean(other.rows == first.rows) < 0.2
        assert 0.4 < np.mean(other.mirrored == first.mirrored) < 0.6


def test_draws_are_the_same_on_every_machine() -> None:
    moves = draw(0, 0, np.arange(6), SHAPE)
    assert [moves.rows.tolist(), moves.columns.tolist(), moves.mirrored.tolist()] == PINNED
