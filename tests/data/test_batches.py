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


@pytest.fixture(scope="module")
def scenes() -> Arrays:
    """Images with up to four words, half of which cross or touch a border."""
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (24, 32, 48, 3), dtype=np.uint8)
    origins = generator.integers(0, (39, 25), (24, 4, 1, 2))
    corners = (origins + np.array([[0, 0], [9, 0], [9, 7], [0, 7]])).astype(np.float32)
    numbers = np.arange(24) % 5
    corners[np.arange(4) >= numbers[:, None]] = 0
    split = Split((images,), (corners, numbers, np.zeros((24, 4), dtype=np.uint8)))
    return Arrays(split, split, (32, 48, 3), ("text",), (0.5,) * 3, (0.2,) * 3, "generated")


@pytest.fixture(scope="module")
def moving() -> Any:
    words = ("dataset=icdar2015", "dataset.source=generated", "model=east")
    return config(*words, "dataset.augment=affine", "batch=8", "seed=5")


def test_inputs_and_targets_read_apart_belong_together(scenes: Arrays, moving: Any) -> None:
    indices = training_order(moving, 24, 3)
    both = training_samples(scenes, moving, indices, 3)
    pixels = training_samples(scenes, moving, indices, 3, targets=False)
    words = training_samples(scenes, moving, indices, 3, inputs=False)
    np.testing.assert_array_equal(both.inputs[0], pixels.inputs[0])
    for whole, alone, stored in zip(both.targets, words.targets, scenes.train.targets, strict=True):
        np.testing.assert_array_equal(whole, alone)
        assert (whole.dtype, whole.shape) == (stored.dtype, stored.shape)
    # Some words leave their images, and some others are cut off.
    assert both.targets[1].sum() < scenes.train.targets[1].sum()
    assert both.targets[2].any()


def test_words_are_moved_anew_in_each_epoch_whatever_their_batch(scenes: Arrays, moving: Any) -> None:
    first, second = (training_samples(scenes, moving, np.arange(24), epoch) for epoch in (0, 1))
    assert (first.inputs[0] != second.inputs[0]).any(axis=(1, 2, 3)).all()
    assert (first.targets[0] != second.targets[0]).any()
    for part in np.array_split(np.arange(24), 5):
        alone = training_samples(scenes, moving, part, 1)
        for piece, whole in zip(alone.inputs + alone.targets, second.inputs + second.targets, strict=True):
            np.testing.assert_array_equal(piece, whole[part])
    stacked = training_samples(scenes, moving, np.arange(24).reshape(4, 6), 1)
    assert stacked.targets[0].shape == (4, 6, 4, 4, 2)
    np.testing.assert_array_equal(stacked.targets[1].ravel(), second.targets[1])


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
