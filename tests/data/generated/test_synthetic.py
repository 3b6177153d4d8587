"""Synthetic samples are the same everywhere, and take no disk."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.data import prepared
from src.data.catalog import choice
from tests.prepared_data import load_arrays

OPTIONS = {"shape": [8, 6, 3], "classes": 5, "samples": 10**12, "test_samples": 40, "generator_seed": 0}


def dataset(**options: Any) -> dict[str, Any]:
    return choice("synthetic") | OPTIONS | options


def test_samples_by_the_trillion_take_the_memory_of_a_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = dataset()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    arrays = load_arrays(chosen)
    assert (arrays.train_samples, arrays.test_samples, arrays.classes) == (10**12, 40, 5)
    samples = arrays.train.read(np.array([3, 10**12 - 1, 256 + 3]))
    images, labels = samples.inputs[0], samples.targets[0]
    assert (images.shape, images.dtype, labels.dtype) == ((3, 8, 6, 3), np.uint8, np.int64)
    np.testing.assert_array_equal(images[0], images[2])
    assert labels[0] == labels[2]
    assert (images[0] != images[1]).any()
    assert arrays.test.read(slice(30, 50)).inputs[0].shape == (10, 8, 6, 3)
    with pytest.raises(IndexError, match="of 40"):
        arrays.test.read(np.array([40]))
    assert list(tmp_path.iterdir()) == [], "nothing is fetched or prepared"


def test_values_are_evenly_distributed_and_mean_and_deviation_theirs() -> None:
    arrays = load_arrays(dataset(shape=[64, 64, 3]))
    images = arrays.train.read(slice(0, 256)).inputs[0] / 255
    np.testing.assert_allclose(images.mean((0, 1, 2)), arrays.mean, atol=2e-3)
    np.testing.assert_allclose(images.std((0, 1, 2)), arrays.std, atol=2e-3)
    assert set(arrays.train.read(slice(0, 256)).targets[0]) == set(range(5))


def test_the_same_on_every_machine_and_others_by_the_seed() -> None:
    digests = []
    for seed in (0, 1):
        samples = load_arrays(dataset(generator_seed=seed)).train.read(slice(0, 256))
        digests.append(hashlib.sha256(samples.inputs[0].tobytes() + samples.targets[0].tobytes()).hexdigest())
    assert digests[0].startswith("e868d1eec27daec3")
    assert digests[0] != digests[1]


def test_limits_are_kept() -> None:
    limited = dataset(limit=100, test_limit=10)
    arrays = load_arrays(limited)
    assert (arrays.train_samples, arrays.test_samples, prepared.samples(limited)) == (100, 10, 100)
    assert (
        load_arrays(dataset(shape=[2000, 2000, 3])).train.read(np.arange(9)).inputs[0].nbytes
        == 9 * 12 * 10**6
    )
