"""The contestants of the feed's bench feed the same images, and its own one says how many."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.feed import CONTESTANTS, OWN, feed, make_data
from tests.support import instances

SIDE = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("feed"), SIDE, 160)


@pytest.mark.slow
@pytest.mark.parametrize("name", instances([n for n in CONTESTANTS if n != OWN], "torchvision, files"))
def test_without_augmentation_the_pixels_are_the_same(folder: Path, tmp_path: Path, name: str) -> None:
    own, other = tmp_path / "own.npy", tmp_path / "other.npy"
    feed(OWN, folder, SIDE, f"--plain={own}")
    feed(name, folder, SIDE, f"--plain={other}")
    first, second = np.load(own), np.load(other)
    assert first.shape == second.shape == (64, SIDE, SIDE, 3)
    # TensorFlow decodes a JPEG by another approximation: a few levels of 256, a level is 0.02.
    allowed = 0.2 if name == "Keras, files" else 1e-5
    assert np.abs(first - second).max() < allowed


@pytest.mark.slow
def test_images_per_second_are_printed(folder: Path) -> None:
    assert json.loads(feed(OWN, folder, SIDE, "--seconds=0.5"))["samples_per_second"] > 0
