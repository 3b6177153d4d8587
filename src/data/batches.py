"""Read the training samples of a step, in the configured order and augmented as configured.

Every strategy takes its training samples from here, whichever process, part of a batch or framework reads
them, and so trains on the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from src.config import Config
from src.data import order
from src.data.arrays import Arrays
from src.data.augmentation import AUGMENTATIONS
from src.data.samples import Samples


def training_order(config: Config, samples: int, epoch: int) -> np.ndarray:
    """Return the configured order of all training samples in an epoch, from 0: int64 [samples]."""
    permutation = order.epoch_order(samples, config.seed, epoch, config.dataset.get("shuffle_window"))
    if (parts := _parts_alike(config)) > 1:
        steps = order.steps_per_epoch(samples, config.global_batch)
        whole = permutation[: steps * config.global_batch].reshape(steps, parts, -1)
        # The first of them takes the place of the others.
        whole[:] = whole[:, :1]
    return permutation


def _parts_alike(config: Config) -> int:
    """Return of how many equal parts a batch is made, by an audit that asks for it; else 1."""
    return config.audit["alike"] if config.audit else 1


def training_batches(config: Config, samples: int, first: int, last: int) -> Iterator[np.ndarray]:
    """Yield the indices, int64 [global batch], of steps `first` to before `last`, counted over all epochs.

    The order is the configured one, of `samples` training samples.
    """
    per_epoch = order.steps_per_epoch(samples, config.global_batch)
    permutation = None
    for done in range(first, last):
        epoch, step = divmod(done, per_epoch)
        if permutation is None or step == 0:
            permutation = training_order(config, samples, epoch)
        yield order.batch_indices(permutation, step, config.global_batch)


def training_samples(
    arrays: Arrays,
    config: Config,
    indices: np.ndarray,
    epoch: int,
    *,
    inputs: bool = True,
    targets: bool = True,
) -> Samples:
    """Copy training samples out of the maps, and augment them as configured.

    Args:
        arrays: the dataset.
        config: the run's configuration.
        indices: the samples' places among all training samples, int64 of any shape; the arrays that are
            returned begin with the same dimensions.
        epoch: the epoch, from 0.
        inputs: whether inputs are read; otherwise there are none.
        targets: whether targets are read; otherwise there are none.
    """
    split, rows = arrays.train, indices.ravel()
    samples = Samples(
        tuple(array[rows] for array in split.inputs) if inputs else (),
        tuple(array[rows] for array in split.targets) if targets else (),
    )
    name = config.dataset.get("augment", "none")
    if name != "none":
        samples = AUGMENTATIONS[name](samples, config.seed, epoch, rows, arrays)
    return Samples(
        tuple(array.reshape(indices.shape + array.shape[1:]) for array in samples.inputs),
        tuple(array.reshape(indices.shape + array.shape[1:]) for array in samples.targets),
    )
