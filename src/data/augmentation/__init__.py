"""Augment training samples: a file for each augmentation, and the table of their names.

How a sample is augmented depends on (seed, epoch, its index) alone, and so neither on the batch that it is in
nor on which process asks: all strategies train on the same pixels, and on the targets that belong to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from src.data.arrays import Arrays
from src.data.augmentation import affine, crop_flip
from src.data.samples import Samples

__all__ = ["AUGMENTATIONS", "Augmentation"]


class Augmentation(Protocol):
    """A function that augments training samples."""

    def __call__(
        self, samples: Samples, seed: int, epoch: int, indices: np.ndarray, arrays: Arrays
    ) -> Samples:
        """Return the samples augmented; these stay as they are.

        Args:
            samples: training samples as stored; without inputs or without targets where a process reads the
                others alone.
            seed: the run's seed.
            epoch: the epoch, from 0.
            indices: int64 [samples], their places among all training samples.
            arrays: the dataset, which has the shape of its images and their mean colour.
        """
        ...


# By the names that `dataset.augment` takes; which of them suit a dataset says its `allowed`.
AUGMENTATIONS: Mapping[str, Augmentation] = {"crop_flip": crop_flip.augment, "affine": affine.augment}
