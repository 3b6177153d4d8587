"""Whoever reads a training sample gets the same pixels of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from src.data.arrays import Arrays, Split
from src.data.augmentation import crop_flip
from src.data.batches import training_batches, training_order, training_samples
from src.data.order import epoch_order
from tests.support import config


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (200, 16, 16, 3), dtype=np.uint8)
    split = Split((images, np.arange(200.0)), (generator.integers(0, 10, 200),))
    return Arrays(split, split, (16, 16, 3), tuple("0123456789"), (0.0,) * 3, (1 / 255,) * 3, "generated")


@pytest.fixture(scope="module")
def chosen() -> Any:
    return config("batch=32", "seed=5", "dataset.augment=crop_flip", "dataset.shuffle_window=64")


def test_parts_of_a_batch_have_the_pixels_of_the_whole(arrays: Arrays, chosen: Any) -> None:
    indices = training_order(chosen, 200, 2)[:32]
    whole = training_samples(arrays, chosen, indices, 2).inputs[0]
    for parts in (2, 3, 5):
        pieces = [training_samples(arrays, chosen, i, 2).inputs[0] for i in np.array_split(indices, parts)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
    stacked = training_samples(arrays, chosen, indices.reshape(4, 8), 2)
    np.testing.assert_array_equal(stacked.inputs[0].reshape(whole.shape), whole)
    np.testing.assert_array_equal(stacked.targets[0].ravel(), arrays.train.targets[0][indices])


def test_images_alone_are_augmented_and_anew_in_each_epoch(arrays: Arrays, chosen: Any) -> None:
    indices = np.arange(50)
    first, second = (training_samples(arrays, chosen, indices, epoch) for epoch in (0, 1))
    stored = arrays.train.inputs[0][:50]
    moves = crop_flip.draw(5, 1, indices, (16, 16, 3))
    np.testing.assert_array_equal(second.inputs[0], crop_flip.crop_flip(stored, moves))
    assert (first.inputs[0] != second.inputs[0]).any()
    np.testing.assert_array_equal(first.inputs[1], arrays.train.inputs[1][:50])
    plain = training_samples(arrays, config("dataset.augment=none"), indices, 1)
    np.testing.assert_array_equal(plain.inputs[0], stored)


def test_what_a_rank_does_not_use_is_not_read(arrays: Arrays, chosen: Any) -> None:
    assert training_samples(arrays, chosen, np.arange(4), 0, inputs=False).inputs == ()
    assert training_samples(arrays, chosen, np.arange(4), 0, targets=False).targets == ()


def test_the_order_has_the_configured_window(chosen: Any) -> None:
    np.testing.assert_array_equal(training_order(chosen, 200, 1), epoch_order(200, 5, 1, 64))
    steps = list(training_batches(chosen, 200, 6, 8))
    np.testing.assert_array_equal(np.concatenate(steps), epoch_order(200, 5, 1, 64)[:64])
