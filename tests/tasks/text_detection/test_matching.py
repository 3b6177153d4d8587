"""Which detections and words of an image are counted."""

from __future__ import annotations

import numpy as np
import pytest

from src.tasks.torch.text_detection.matching import Counts, count

NONE = np.zeros((0, 4, 2))


def box(left: float, top: float, right: float, bottom: float) -> list[list[float]]:
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def counts(
    found: list[list[list[float]]], words: list[list[list[float]]], ignored: tuple[int, ...] = ()
) -> Counts:
    flags = np.array([number in ignored for number in range(len(words))], dtype=np.uint8)
    return count(np.array(found or NONE), np.array(words or NONE, dtype=np.float32), flags)


WORD = box(0, 0, 40, 10)
BESIDE = box(50, 0, 90, 10)


def test_an_empty_image_counts_nothing() -> None:
    assert counts([], []) == (0, 0, 0)


def test_words_count_where_nothing_is_found() -> None:
    assert counts([], [WORD, BESIDE]) == (0, 0, 2)


def test_detections_count_where_there_is_nothing_to_find() -> None:
    assert counts([WORD], []) == (0, 1, 0)


def test_each_detection_finds_its_word() -> None:
    assert counts([BESIDE, WORD, box(0, 50, 40, 60)], [WORD, BESIDE]) == (2, 3, 2)


def test_of_two_detections_on_a_word_one_counts() -> None:
    # Shares 300/400 and 320/400.
    assert counts([box(0, 0, 30, 10), box(0, 0, 32, 10)], [WORD]) == (1, 2, 1)


def test_a_detection_over_two_words_finds_one_at_most() -> None:
    # 400 of 900 with either of two equal words, 500 of 900 with the larger of two others.
    assert counts([box(0, 0, 90, 10)], [WORD, BESIDE]) == (0, 1, 2)
    assert counts([box(0, 0, 90, 10)], [WORD, box(40, 0, 90, 10)]) == (1, 1, 2)
    # Two words one over the other, both of which it would find.
    assert counts([WORD], [box(0, 0, 36, 10), WORD]) == (1, 1, 2)


def test_an_overlap_of_exactly_a_half_finds_nothing() -> None:
    assert counts([box(0, 0, 20, 10)], [WORD]) == (0, 1, 1)
    assert counts([box(0, 0, 20.001, 10)], [WORD]) == (1, 1, 1)


def test_words_take_the_first_free_detection_in_order() -> None:
    words = [WORD, box(0, 0, 20, 10)]
    # The first one overlaps the words by 28/40 and 20/28, the second one by 40/44 and 20/44.
    either, first_only = box(0, 0, 28, 10), box(0, 0, 44, 10)
    assert counts([either, first_only], words) == (1, 2, 2)
    assert counts([first_only, either], words) == (2, 2, 2)


def test_detections_of_ignored_words_are_left_out() -> None:
    assert counts([WORD], [WORD], ignored=(0,)) == (0, 0, 0)
    # 24 of 40 columns are in the ignored word, then 20 of 40, which is no more than half.
    assert counts([box(16, 0, 56, 10)], [WORD], ignored=(0,)) == (0, 0, 0)
    assert counts([box(20, 0, 60, 10)], [WORD], ignored=(0,)) == (0, 1, 0)


def test_the_share_in_ignored_words_is_of_one_word_and_of_the_detection() -> None:
    halves = [box(0, 0, 20, 10), box(20, 0, 40, 10)]
    assert counts([WORD], halves, ignored=(0, 1)) == (0, 1, 0)
    # A small detection in a large ignored word, whose intersection over union is small.
    assert counts([box(1, 1, 3, 3)], [WORD], ignored=(0,)) == (0, 0, 0)


def test_what_lies_in_an_ignored_word_finds_no_other() -> None:
    assert counts([WORD], [box(0, 0, 44, 10), WORD], ignored=(0,)) == (0, 0, 1)


def test_corners_that_cross_are_counted_by_their_hull() -> None:
    bow = [WORD[0], WORD[2], WORD[1], WORD[3]]
    assert counts([bow], [WORD]) == (1, 1, 1)
    assert counts([WORD], [bow]) == (1, 1, 1)


@pytest.mark.parametrize("corner", [(5.0, 5.0), (np.nan, np.nan), (np.inf, 0.0)])
def test_a_detection_without_an_area_finds_nothing(corner: tuple[float, float]) -> None:
    flat = [list(corner)] * 4
    assert counts([flat], [WORD, BESIDE], ignored=(1,)) == (0, 1, 1)
    assert counts([flat, WORD], [WORD], ignored=(0,)) == (0, 1, 0)


def test_a_word_without_an_area_is_not_found() -> None:
    line = [[0.0, 0.0], [40.0, 0.0], [40.0, 0.0], [0.0, 0.0]]
    assert counts([line, WORD], [line]) == (0, 2, 1)


def test_quadrilaterals_need_not_be_rectangles() -> None:
    # A lozenge of 200 in the square around it, then in one that cuts four tips of 0.04 each off it.
    lozenge = [[10.0, 0.0], [20.0, 10.0], [10.0, 20.0], [0.0, 10.0]]
    assert counts([lozenge], [box(0, 0, 20, 20)]) == (0, 1, 1)
    # 199.84 of 384.32.
    assert counts([lozenge], [box(0.2, 0.2, 19.8, 19.8)]) == (1, 1, 1)
