"""The first test images are drawn as the task draws them, by whoever scores them, and nobody else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from src.data.samples import Samples
from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.torch import pictures, setup
from src.runtime.torch.pictures import COLUMNS, GAP
from src.tasks.torch.classification import CAPTION
from tests.runtime.torch.test_feed import dataset
from tests.support import config


def test_first_images_stand_side_by_side_above_what_the_model_says(tmp_path: Path) -> None:
    context = RankContext(config(), 0, 1, dataset(), tmp_path, (0,))
    images = np.full((10, 28, 28, 1), 90, np.uint8)
    images[5] = 200
    samples = Samples((images,), (np.zeros(10, np.int64),))
    logits = torch.zeros(10, 10)
    pictures.draw(context, setup.make_task(context), slice(10, 20), samples, (logits,))
    assert not list(tmp_path.iterdir()), "these are not the first"
    pictures.draw(context, setup.make_task(context), slice(0, 10), samples, (logits,))
    drawn = np.asarray(Image.open(tmp_path / files.PREDICTIONS))
    side = 28 * 4
    assert drawn.shape == (2 * (side + CAPTION) + GAP, COLUMNS * (side + GAP) - GAP, 3)
    # The sixth is the second of the second row.
    top, left = side + CAPTION + GAP, side + GAP
    assert (drawn[top : top + side, left : left + side] == 200).all()
    assert (drawn[:side, :side] == 90).all()
    assert drawn[side : side + CAPTION, :side].min() < 128, "there is a caption"


def test_what_is_no_image_is_not_drawn(tmp_path: Path) -> None:
    context = RankContext(config(), 0, 1, dataset(), tmp_path, (0,))
    samples = Samples((np.zeros((4, 7), np.float32),), (np.zeros(4, np.int64),))
    pictures.draw(context, setup.make_task(context), slice(0, 4), samples, (torch.zeros(4, 10),))
    assert not list(tmp_path.iterdir())
