"""Areas that quadrilaterals share."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from src.tasks.torch.text_detection import parallelograms
from src.tasks.torch.text_detection.matching import intersections, ious, polygons

SQUARE = [[0, 0], [4, 0], [4, 4], [0, 4]]


def test_shared_areas_and_ious_worked_by_hand() -> None:
    first = polygons(np.array([SQUARE, [[10, 0], [12, 0], [12, 2], [10, 2]]], dtype=np.float32))
    # A lozenge inside the square, and a box over its right edge.
    second = polygons(np.array([[[2, 0], [4, 2], [2, 4], [0, 2]], [[3, 0], [7, 0], [7, 4], [3, 4]]]))
    assert intersections(first, second).tolist() == [[8, 4], [0, 0]]
    assert ious(first, second) == pytest.approx(np.array([[0.5, 4 / 28], [0, 0]]))


def test_none_have_matrices_of_their_own() -> None:
    none, some = polygons(np.zeros((0, 4, 2))), polygons(np.array([SQUARE]))
    assert ious(none, some).shape == (0, 1) and ious(some, none).shape == (1, 0)
    assert ious(none, none).shape == (0, 0)


def test_crossing_corners_make_their_hull() -> None:
    (made,) = polygons(np.array([[SQUARE[0], SQUARE[2], SQUARE[1], SQUARE[3]]]))
    assert made.is_valid and made.area == 16


def test_a_concave_quadrilateral_stays_concave() -> None:
    (made,) = polygons(np.array([[[0, 0], [4, 4], [8, 0], [4, 8]]]))
    assert made.area == 16


@pytest.mark.parametrize("flat", [[[1, 1]] * 4, [[0, 0], [1, 1], [2, 2], [3, 3]], [[np.nan, 0], *SQUARE[1:]]])
def test_corners_without_an_area_share_none(flat: list[list[float]]) -> None:
    made = polygons(np.array([flat]))
    assert ious(made, polygons(np.array([SQUARE]))).tolist() == [[0]]
    assert ious(made, made).tolist() == [[0]]


def test_parallelograms_share_as_much_as_polygons() -> None:
    random = np.random.default_rng(0)
    origin, right, down = random.uniform(0, 9, (2, 3, 5000, 2)).transpose(1, 0, 2, 3)
    corners = np.stack([origin, origin + right, origin + right + down, origin + down], axis=2)
    # All turn clockwise.
    corners = np.where(parallelograms.areas(corners)[..., None, None] < 0, corners[:, :, ::-1], corners)
    first, second = polygons(corners[0]), polygons(corners[1])
    shared = shapely.area(shapely.intersection(first, second))
    united = shapely.area(first) + shapely.area(second) - shared
    assert parallelograms.ious(*corners) == pytest.approx(shared / united, rel=0, abs=1e-9)
    assert (shared == 0).any() and (shared > 0).sum() > 1000


def test_edges_of_parallelograms_may_coincide() -> None:
    random = np.random.default_rng(0)
    corners = random.uniform(0, 9, (100, 1, 2)) + np.array(SQUARE) @ [[0.8, 0.6], [-0.6, 0.8]]
    beside = corners + 4 * np.array([0.8, 0.6])
    shifted = corners + 1 * np.array([0.8, 0.6])
    rounding = random.normal(0, 1e-15, corners.shape)
    assert parallelograms.ious(corners, corners) == pytest.approx(np.ones(100), rel=0, abs=1e-12)
    assert parallelograms.ious(corners, corners + rounding) == pytest.approx(np.ones(100), rel=0, abs=1e-12)
    assert parallelograms.ious(corners, beside) == pytest.approx(np.zeros(100), rel=0, abs=1e-12)
    assert parallelograms.ious(corners, shifted) == pytest.approx(np.full(100, 0.6), rel=0, abs=1e-12)


def test_parallelograms_without_an_area_share_none() -> None:
    square = np.array([SQUARE, SQUARE, SQUARE], dtype=np.float64)
    flat = np.array([[[1, 1]] * 4, [[0, 0], [4, 0], [4, 0], [0, 0]], [[np.nan, 0], *SQUARE[1:]]])
    assert parallelograms.ious(square, flat).tolist() == [0, 0, 0]
    assert parallelograms.ious(flat, square).tolist() == [0, 0, 0]
    assert parallelograms.ious(flat, flat).tolist() == [0, 0, 0]
