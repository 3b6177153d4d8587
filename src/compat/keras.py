"""Wrap private parts of Keras: a model's calls in order, its layers within layers, summed gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

# What a model is trained in is said by its code and the run's configuration: a user's keras.json, which Keras
# reads as it is imported, has no part in it.
keras.config.set_floatx("float32")
keras.config.set_epsilon(1e-7)
keras.config.set_image_data_format("channels_last")


def calls_in_order(model: keras.Model) -> list[Any]:
    """Return the calls of a functional model's operations, each after those whose results it reads."""
    by_depth = model._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]


def takes_training(operation: keras.Operation) -> bool:
    """Return whether a call of `operation` takes `training=`."""
    return bool(getattr(operation, "_call_has_training_arg", False))


def layers_of(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yield the layers of `model`, those within others included."""
    yield from model._flatten_layers()


def seeds_of(model: keras.Model) -> list[keras.Variable]:
    """Return the states of the generators from which the layers of `model` draw random numbers."""
    generators = [seed for layer in layers_of(model) for seed in layer._seed_generators]
    return [generator.state for generator in {id(each): each for each in generators}.values()]


class SummingOptimizer(keras.optimizers.Optimizer):
    """An optimizer that may change the gradients once they are summed over the replicas.

    Keras clips each replica's own gradients, before they are summed.
    """

    def of_sum(self, gradients: list[Any]) -> list[Any]:
        """Return what to update by, from the summed gradients, which are `None` where there is none."""
        return gradients

    def slot(self, slots: Sequence[Any], variable: Any) -> Any:
        """Return the one of `slots`, which `add_optimizer_variables` made, that belongs to `variable`."""
        return slots[self._get_variable_index(variable)]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        summed = list(super()._all_reduce_sum_gradients(grads_and_vars))
        gradients = self.of_sum([gradient for gradient, _ in summed])
        return [(gradient, variable) for gradient, (_, variable) in zip(gradients, summed, strict=True)]


def rate_source(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the schedule or the variable that an optimizer's learning rate comes from."""
    return optimizer._learning_rate
