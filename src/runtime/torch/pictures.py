"""Draw what a model sees in the first test images, each as its task draws it."""

from __future__ import annotations

import os
from math import ceil

import numpy as np
from PIL import Image

from src.data.samples import Samples
from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.torch.tensors import Tensors
from src.tasks.torch.task import Task

IMAGES, COLUMNS = 8, 4
# Pixels of an image's shorter side, up to which it is enlarged by a whole factor.
LEAST = 112
GAP = 4
WHITE = 255


def draw(context: RankContext, task: Task, part: slice, samples: Samples, outputs: Tensors) -> None:
    """Write a picture of the first test images into the run's directory, if they are among these samples.

    Args:
        context: the rank's context.
        task: the configured task.
        part: which of the test samples these are.
        samples: the samples; other inputs than images are not drawn.
        outputs: the model's outputs for them, in fp32 at least.
    """
    images = samples.inputs[0]
    if part.start or images.dtype != np.uint8 or images.ndim != 4:
        return
    names = context.arrays.names
    pictures = [
        task.draw(_enlarged(image), tuple(tensor[n : n + 1] for tensor in outputs), names)
        for n, image in enumerate(images[:IMAGES])
    ]
    path = context.folder / files.PREDICTIONS
    partial = path.with_name(f".{path.name}-{context.rank}")
    Image.fromarray(_tiled(pictures)).save(partial, "png")
    os.replace(partial, path)


def _enlarged(image: np.ndarray) -> np.ndarray:
    """Return an image [height, width, 1 or 3] in colour and at least LEAST pixels wide and high."""
    factor = ceil(LEAST / min(image.shape[:2]))
    colour = np.broadcast_to(image[..., :3], (*image.shape[:2], 3))
    return colour.repeat(factor, 0).repeat(factor, 1)


def _tiled(pictures: list[np.ndarray]) -> np.ndarray:
    """Return pictures of the same shape [height, width, 3] as one, side by side in rows."""
    height, width, _ = pictures[0].shape
    rows = ceil(len(pictures) / COLUMNS)
    shape = (rows * (height + GAP) - GAP, COLUMNS * (width + GAP) - GAP, 3)
    whole = np.full(shape, WHITE, dtype=np.uint8)
    for number, picture in enumerate(pictures):
        top, left = (number // COLUMNS) * (height + GAP), (number % COLUMNS) * (width + GAP)
        whole[top : top + height, left : left + width] = picture
    return whole
