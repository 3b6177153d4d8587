"""Update variables by the configured rule: as torch's optimizers do, to the last digit that rounding leaves.

Keras's own rules are others. Its momentum holds learning rates, so that a rate that changes acts only little
by little (torch's is what Goyal 2017, section 3, calls momentum correction); its Adam and Adagrad have their
epsilon elsewhere in the formula; its weight decay isn't added to gradients; and it clips the gradient of each
replica, not their sum. `src/runtime/torch/update_rule.py` is the other framework's side of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.compat.keras import SummingOptimizer, rate_source
from src.runtime.common import update_terms
from src.runtime.common.context import RankContext
from src.runtime.common.learning_rate import LearningRate

# torch's defaults.
BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
ADAGRAD_EPSILON = 1e-10
CLIP_EPSILON = 1e-6


class RateTable(keras.optimizers.schedules.LearningRateSchedule):
    """A `LearningRate` as a Keras schedule: a table by the number of steps that are done.

    Attributes:
        offset: steps that are done before the optimizer's first one, less the updates that it has counted.
    """

    def __init__(self, rate: LearningRate, step: Callable[[], tf.Tensor] | None = None) -> None:
        """Take the rates from `rate`.

        Args:
            rate: the learning rate.
            step: returns the number of steps that are done; without it that is the optimizer's own count.
        """
        self.offset = 0
        self._rates = np.array([rate(done) for done in range(rate.changing_steps + 1)])
        self._step = step

    def __call__(self, iterations: Any) -> tf.Tensor:
        """Return the rate [] of the next step, in Keras's floating-point type."""
        count = tf.convert_to_tensor(iterations) + self.offset if self._step is None else self._step()
        place = tf.clip_by_value(tf.cast(count, tf.int64), 0, len(self._rates) - 1)
        return tf.gather(tf.constant(self._rates, keras.config.floatx()), place)


class UpdateRule(SummingOptimizer):
    """An optimizer that clips the sum of the replicas' gradients, and then adds weight decay (L2).

    A subclass defines `update` for one variable.
    """

    def __init__(self, rate: RateTable | float, *, weight_decay: float, clip_norm: float | None) -> None:
        """Update at a learning rate.

        Args:
            rate: the learning rate, or a schedule of it.
            weight_decay: the factor of a variable that is added to its gradient.
            clip_norm: greatest norm of the gradient of all variables; `None` for no limit.
        """
        super().__init__(learning_rate=rate)
        self._decay = weight_decay
        self._clip_norm = clip_norm

    def of_sum(self, gradients: list[Any]) -> list[Any]:
        """Return the replicas' summed gradients, clipped if configured."""
        return gradients if self._clip_norm is None else clip(gradients, self._clip_norm)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Add weight decay to the gradient of one variable, and update it."""
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        if self._decay:
            gradient += tf.constant(self._decay, variable.dtype) * variable
        self.update(gradient, variable, tf.cast(learning_rate, variable.dtype))

    def update(self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
        """Change one variable by its gradient at a learning rate []."""
        raise NotImplementedError


class SGD(UpdateRule):
    """Stochastic gradient descent with momentum: v <- mu v + g, w <- w - rate v."""

    def __init__(self, rate: RateTable | float, *, momentum: float, **terms: Any) -> None:
        """Take the momentum `mu`, and the arguments of `UpdateRule`."""
        super().__init__(rate, **terms)
        self._momentum = momentum

    def build(self, variables: Sequence[Any]) -> None:
        """Make a velocity for each variable."""
        super().build(variables)
        self._velocities = self.add_optimizer_variables(variables, "velocity") if self._momentum else []

    def update(self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
        """Change one variable by its gradient at a learning rate []."""
        if self._momentum:
            velocity = self.slot(self._velocities, variable)
            self.assign(velocity, velocity * tf.constant(self._momentum, variable.dtype) + gradient)
            gradient = velocity
        self.assign_sub(variable, tf.convert_to_tensor(gradient) * rate)


class Adam(UpdateRule):
    """Adam (Kingma 2015, algorithm 1), and with `shrink` AdamW (Loshchilov 2019, algorithm 2)."""

    def __init__(self, rate: RateTable | float, *, shrink: float = 0.0, **terms: Any) -> None:
        """Take the arguments of `UpdateRule`, and the part of a variable that `rate` = 1 would take away."""
        super().__init__(rate, **terms)
        self._shrink = shrink

    def build(self, variables: Sequence[Any]) -> None:
        """Make both moments of each variable's gradient, under Keras's names."""
        super().build(variables)
        self._moments = self.add_optimizer_variables(variables, ["momentum", "velocity"])

    def update(self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
        """Change one variable by its gradient at a learning rate []."""
        kind, (one, two) = variable.dtype, BETAS
        # 1 - 0.999 to the power of a small number has few digits in fp32.
        count = tf.cast(tf.convert_to_tensor(self.iterations) + 1, tf.float64)
        corrections = [tf.cast(1 - tf.pow(tf.constant(beta, tf.float64), count), kind) for beta in BETAS]
        first, second = (self.slot(moments, variable) for moments in self._moments)
        self.assign_add(first, (gradient - first) * (1 - one))
        self.assign(second, second * two + tf.square(gradient) * (1 - two))
        denominator = tf.sqrt(tf.convert_to_tensor(second) / corrections[1]) + ADAM_EPSILON
        step = tf.convert_to_tensor(first) / corrections[0] / denominator
        if self._shrink:
            step += tf.constant(self._shrink, kind) * variable
        self.assign_sub(variable, rate * step)


class Adagrad(UpdateRule):
    """Adagrad (Duchi 2011, figure 1), with no accumulated gradient to begin with."""

    def build(self, variables: Sequence[Any]) -> None:
        """Make the sum of each variable's squared gradients."""
        super().build(variables)
        self._accumulators = self.add_optimizer_variables(variables, "accumulator")

    def update(self, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
        """Change one variable by its gradient at a learning rate []."""
        accumulator = self.slot(self._accumulators, variable)
        self.assign_add(accumulator, tf.square(gradient))
        self.assign_sub(
            variable, rate * gradient / (tf.sqrt(tf.convert_to_tensor(accumulator)) + ADAGRAD_EPSILON)
        )


def make_optimizer(
    context: RankContext,
    *,
    rate: LearningRate | None = None,
    step: Callable[[], tf.Tensor] | None = None,
    served: bool = False,
    clips: bool = True,
) -> UpdateRule:
    """Make the optimizer that the configuration names.

    Args:
        context: the rank's context.
        rate: the learning rate, by default the configured one.
        step: returns the number of global batches before that of the gradient; without it that is the number
            of updates.
        served: whether asynchronous workers clip gradients and add weight decay (L2) to them.
        clips: whether the optimizer clips the gradient, of which it must have the whole then.
    """
    settings = context.config.optimizer
    if served:
        settings = update_terms.of_servers(settings)
    rate = rate or LearningRate.of(context.config, context.arrays.train_samples)
    table = rate(0) if rate.constant else RateTable(rate, step)
    decoupled = settings["name"] == "adamw"
    terms: dict[str, Any] = {
        "weight_decay": 0.0 if decoupled else settings["weight_decay"],
        "clip_norm": settings["clip_norm"] if clips else None,
    }
    if settings["name"] == "adagrad":
        return Adagrad(table, **terms)
    if settings["name"] == "sgd":
        return SGD(table, momentum=settings["momentum"], **terms)
    return Adam(table, shrink=settings["weight_decay"] if decoupled else 0.0, **terms)


def resume_at(optimizer: keras.optimizers.Optimizer, step: int) -> None:
    """Have an optimizer's learning rate go on after `step` steps, whatever number of updates it has counted.

    The number differs where asynchronous workers had made several updates of a batch. This function is called
    before the optimizer's update is traced.
    """
    source = rate_source(optimizer)
    if isinstance(source, RateTable):
        source.offset = step - int(optimizer.iterations.numpy())


def squared_norm(gradients: Iterable[tf.Tensor]) -> tf.Tensor:
    """Return the sum of the squares [] of all elements."""
    return tf.add_n([tf.reduce_sum(tf.square(tf.convert_to_tensor(gradient))) for gradient in gradients])


def clip(gradients: Sequence[Any], limit: float, squares: tf.Tensor | None = None) -> list[Any]:
    """Return gradients scaled so that the norm of the whole model's is `limit`, if it is larger.

    The factor is min(1, limit / (norm + 1e-6)), as in `torch.nn.utils.clip_grad_norm_`.

    Args:
        gradients: the gradients, where there is one.
        limit: the greatest norm.
        squares: squared norm [] of the whole model's gradient, if `gradients` aren't all of it.
    """
    if squares is None:
        squares = squared_norm(gradient for gradient in gradients if gradient is not None)
    factor = tf.minimum(tf.ones((), squares.dtype), limit / (tf.sqrt(squares) + CLIP_EPSILON))
    return [None if gradient is None else tf.convert_to_tensor(gradient) * factor for gradient in gradients]
