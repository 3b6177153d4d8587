"""Words become maps as EAST's authors say, and maps become the words again."""

from __future__ import annotations

import numpy as np
import pytest

from src.tasks.torch.text_detection import rbox

LEVEL = [[8, 8], [48, 8], [48, 28], [8, 28]]
# A rectangle of 50 by 10, of which a step along is (0.8, 0.6) and a step down (-0.6, 0.8).
TURNED = [[20, 10], [60, 40], [54, 48], [14, 18]]


def encode(*words: list[list[float]], ignored: list[bool] | None = None, shrink: float = 0.3) -> rbox.Maps:
    flags = np.array(ignored or [False] * len(words), bool)
    return rbox.encode(np.array(words, np.float32).reshape(-1, 4, 2), flags, (16, 20), 4, shrink)


def test_sides_move_inwards_by_a_part_of_the_shorter_side() -> None:
    # 40 by 20: the reference length of each corner is 20, and 0.3 of it is 6.
    assert rbox.shrunk(np.array([LEVEL], float), 0.3).tolist() == [[[14, 14], [42, 14], [42, 22], [14, 22]]]


def test_the_corners_of_a_trapezium_have_reference_lengths_of_their_own() -> None:
    # The left side is 10 and the right one 20 long; the level ones, moved first, are longer than both.
    word = np.array([[[0, 5], [40, 0], [40, 20], [0, 15]]], float)
    corners = rbox.shrunk(word, 0.3)[0]
    along = np.array([40, -5]) / np.hypot(40, 5)
    top_left, top_right = word[0, 0] + 3 * along, word[0, 1] - 6 * along
    # The lower side is its mirror image, so that left and right stay upright: 3 and 6 inwards from each end.
    assert corners[0] == pytest.approx(top_left + np.array([0, 3]))
    assert corners[1] == pytest.approx(top_right + np.array([0, 6]))


def test_pixels_whose_centres_are_in_the_shrunk_word_are_text() -> None:
    maps = encode(LEVEL)
    # From 14 to 42 are the centres 18 to 38, and from 14 to 22 is 18 alone; on the edge is outside.
    rows, columns = np.nonzero(maps.text)
    assert (set(rows), set(columns)) == ({4}, {4, 5, 6, 7, 8, 9})
    assert not maps.ignored.any()


def test_distances_are_those_to_the_sides_of_the_whole_word() -> None:
    # The centre of row 4 and column 5 is at (22, 18).
    assert encode(LEVEL).geometry[:, 4, 5] == pytest.approx([10, 26, 10, 14, 0])


def test_a_turned_word_has_distances_in_its_own_frame() -> None:
    maps = encode(TURNED, shrink=0.2)
    rows, columns = np.nonzero(maps.text)
    assert len(rows)
    for row, column in zip(rows, columns, strict=True):
        offset = np.array([4 * column + 2 - 20, 4 * row + 2 - 10])
        along, down = offset @ [0.8, 0.6], offset @ [-0.6, 0.8]
        expected = [down, 50 - along, 10 - down, along, np.arctan2(0.6, 0.8)]
        assert maps.geometry[:, row, column] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("word", [LEVEL, TURNED, [[28, 4], [36, 4], [36, 54], [28, 54]]])
def test_each_pixel_of_a_word_says_where_the_word_is(word: list[list[float]]) -> None:
    maps = encode(word, shrink=0.1)
    rows, columns = np.nonzero(maps.text)
    boxes = rbox.decode(maps.geometry[:, rows, columns], rows, columns, 4)
    assert len(boxes)
    for box in boxes:
        assert box == pytest.approx(np.array(word, float), abs=1e-3)


def test_a_rectangle_begins_at_its_top_left_wherever_the_word_does() -> None:
    for first in range(4):
        word = np.roll(np.array([TURNED], float), first, axis=1)
        assert rbox.rectangles(word)[0] == pytest.approx(np.array(TURNED, float))


def test_a_rectangle_is_the_smallest_one_around_a_word() -> None:
    # A kite whose hull is a square of 20 but for one corner.
    found = rbox.rectangles(np.array([[[0, 0], [20, 0], [20, 20], [1, 19]]], float))[0]
    assert found == pytest.approx(np.array([[0, 0], [20, 0], [20, 20], [0, 20]]))


def test_ignored_words_are_marked_whole_and_hold_no_text() -> None:
    maps = encode(LEVEL, LEVEL, ignored=[False, True])
    assert not maps.text.any() and not maps.geometry.any()
    # Centres from 10 to 46, and from 10 to 26.
    assert maps.ignored.sum() == 10 * 5


def test_words_without_an_area_or_elsewhere_leave_no_trace() -> None:
    point, line = [[30, 30]] * 4, [[10, 10], [40, 10], [40, 10], [10, 10]]
    outside = [[-40, -40], [-10, -40], [-10, -20], [-40, -20]]
    maps = encode(point, line, outside)
    assert not maps.text.any() and not maps.ignored.any()


def test_a_word_that_is_too_small_to_be_learned_is_ignored_and_no_background() -> None:
    # The centre of row 2 is at 10: within 9 to 13, and not within 10.2 to 11.8.
    maps = encode([[8, 9], [40, 9], [40, 13], [8, 13]])
    rows, columns = np.nonzero(maps.ignored)
    assert not maps.text.any() and set(rows) == {2} and set(columns) == set(range(2, 10))


def test_an_image_without_words_has_empty_maps() -> None:
    maps = encode()
    assert not maps.text.any() and not maps.ignored.any() and not maps.geometry.any()


def test_a_word_over_the_edge_is_learned_where_the_image_shows_it() -> None:
    maps = encode([[-30, 8], [30, 8], [30, 28], [-30, 28]])
    rows, columns = np.nonzero(maps.text)
    assert min(columns) == 0
    assert maps.geometry[3, rows[0], 0] == pytest.approx(32)
