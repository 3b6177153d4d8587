"""An array in shards is read as numpy reads the whole of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from src.data.arrays import Split
from src.data.shards import ShardedArray

WHOLE = np.arange(60, dtype=np.int32).reshape(20, 3)
CUTS = ([], [1], [7, 13], [5, 5, 19], list(range(1, 20)))


@pytest.fixture(params=[*((cut, False) for cut in CUTS), (CUTS[0], True), (CUTS[2], True)], ids=str)
def array(request: pytest.FixtureRequest) -> ShardedArray:
    """The whole, cut into shards of different lengths, whose reads the kernel is told of or not."""
    cuts, announced = request.param
    return ShardedArray(np.split(WHOLE, cuts), announced=announced)


@pytest.mark.parametrize(
    "rows",
    [
        0,
        -1,
        np.int64(19),
        np.array(3),
        [19, 0, 5, 5],
        [-1, -20],
        [],
        np.array([[0, 19], [7, 6], [12, 13]]),
        np.zeros((0, 4), np.int64),
        np.random.default_rng(0).integers(-20, 20, (7, 50)),
        np.array([7, 8], np.uint8),
        *(
            slice(None),
            slice(3, 4),
            slice(6, 14),
            slice(-3, None),
            slice(9, 2),
            slice(5, 99),
            slice(None, None, -3),
        ),
    ],
    ids=str,
)
def test_rows_are_numpys(array: ShardedArray, rows: Any) -> None:
    expected = WHOLE[np.asarray(rows, np.int64) if isinstance(rows, list) else rows]
    np.testing.assert_array_equal(array[rows], expected, strict=True)


def test_the_whole_is_an_array_of_the_same_shape_and_type(array: ShardedArray) -> None:
    assert (len(array), array.shape, array.dtype) == (20, (20, 3), np.int32)
    np.testing.assert_array_equal(np.asarray(array), WHOLE, strict=True)
    assert np.array(array, dtype=np.float64).dtype == np.float64


@pytest.mark.parametrize("rows", [20, -21, [3, 20], [-21], 1.5, [0.0], (1, 2), [True] * 20])
def test_rows_that_are_not_there_are_refused(array: ShardedArray, rows: Any) -> None:
    with pytest.raises(IndexError):
        array[rows]


@pytest.mark.parametrize("rows", [slice(None), slice(4), slice(6, 14), slice(13, 13), slice(18, 99)])
def test_a_part_is_read_as_numpys_view(array: ShardedArray, rows: slice) -> None:
    part = Split((array,), (WHOLE,)).part(rows).inputs[0]
    assert isinstance(part, ShardedArray)
    np.testing.assert_array_equal(part[:], WHOLE[rows], strict=True)
    if len(part):
        np.testing.assert_array_equal(part[[-1, 0]], WHOLE[rows][[-1, 0]])


def test_samples_that_are_read_are_copies(array: ShardedArray) -> None:
    split = Split((array,), (array,))
    for rows in (slice(2, 4), np.array([2, 3])):
        samples = split.read(rows)
        samples.inputs[0][:] = 0
        np.testing.assert_array_equal(array[2:4], WHOLE[2:4])
