"""Check that a Keras model gives what its training takes, before any rank is started."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from src.compat.keras import layers_of
from src.config import ConfigError
from src.measure.rank_record import RankRecord
from src.models import adapt
from src.partition.keras import comparison
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import model_look, setup

# So many samples are called with.
SAMPLES = 4
# By how much the sum of a softmax's outputs may differ from 1.
ROUNDING = 1e-3


def check_model(context: RankContext, model: keras.Model) -> RankRecord:
    """Call the model on a few training samples, and return what it does in training; leave it as it was.

    Where the strategy cuts the model, its stages are compared with it. Whatever the model raises is raised as
    it is.

    Raises:
        ConfigError: for a model whose steps, outputs or state aren't those of the strategies here, and one
            that can't be cut as it is.
    """
    name = adapt.key_and_name(context.config)
    if type(model).train_step is not keras.Model.train_step:
        raise ConfigError(f"{name}: has a train_step of its own, which would not be used; leave it away")
    if stateful := [layer.name for layer in layers_of(model) if getattr(layer, "stateful", False)]:
        raise ConfigError(
            f"{name}: {stateful[0]} keeps its state from batch to batch, and which batches a worker sees "
            "depends on the strategy; build it with stateful=False"
        )
    config = context.config
    synchronised = [layer.name for layer in layers_of(model) if getattr(layer, "synchronized", False)]
    if synchronised and config.data_parallel_degree > 1:
        raise ConfigError(
            f"strategy={config.strategy['name']}: {synchronised[0]} has synchronized=True, which not all "
            "strategies do; build it without, and each worker has its own statistics under all of them"
        )
    images = setup.normalise(context, tf.constant(context.arrays.train.inputs[0][:SAMPLES]))
    for training in (True, False):
        with model_look.unchanged(model):
            outputs = tf.nest.flatten(model(images, training=training))
        if len(outputs) != 1:
            raise ConfigError(f"{name}: returns {len(outputs)} outputs, and one is trained, the logits")
    shape, classes = tuple(outputs[0].shape), context.arrays.classes
    if len(shape) != 2 or shape[1] < classes:
        raise ConfigError(f"{name}: returns {[*shape]} for {SAMPLES} samples of {classes} classes")
    values = outputs[0].numpy().astype(np.float64)
    if shape[1] > 1 and (values >= 0).all() and np.allclose(values.sum(1), 1, atol=ROUNDING):
        raise ConfigError(
            f"{name}: returns probabilities, which add up to 1, and the loss takes logits: leave the softmax "
            "of the last layer away"
        )
    if "partition" in context.config.strategy:
        comparison.check(model, images)
    return model_look.facts(model, images)
