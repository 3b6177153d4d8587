"""Feed images as the guides of Keras and tf.data do: parallel maps over samples, batches and prefetching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from feed_common import MEAN, STD, arguments, finish

args = arguments()
folder = Path(args.data)
MARGIN = args.side // 8


def samples() -> tf.data.Dataset:
    """Return a dataset of single images and labels, in random order."""
    if args.kind == "files":
        return keras.utils.image_dataset_from_directory(
            str(folder / "images"),
            batch_size=None,
            image_size=(args.side, args.side),
            shuffle=not args.plain,
            verbose=False,
        )
    images, labels = np.load(folder / "images.npy"), np.load(folder / "labels.npy")
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    return data if args.plain else data.shuffle(len(labels))


def move(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Cut a random window out of the padded image, and mirror it half of the time."""
    padded = tf.pad(image, [[MARGIN, MARGIN], [MARGIN, MARGIN], [0, 0]])
    return tf.image.random_flip_left_right(tf.image.random_crop(padded, (args.side, args.side, 3))), label


def normalise(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Turn an image of 0 to 255 into floats of mean 0 and deviation 1."""
    return (tf.cast(image, tf.float32) / 255 - tf.constant(MEAN)) / tf.constant(STD), label


data: Any = samples().repeat()
if not args.plain:
    data = data.map(move, num_parallel_calls=tf.data.AUTOTUNE)
data = data.map(normalise, num_parallel_calls=tf.data.AUTOTUNE)
data = data.batch(args.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
finish(args, iter(data), lambda batch: batch[0].numpy())
