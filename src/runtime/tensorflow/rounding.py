"""Train a `tf_single` run's first steps once more, from weights that are changed by one last digit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np

from src.measure.arithmetic import PARITY_STEPS
from src.measure.recorder import Recorder
from src.run.status import Status
from src.runtime.common import rounding
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import setup, update_rule
from src.runtime.tensorflow.callback import StepFollower


def nudge(model: keras.Model, seed: int) -> None:
    """Change each trained weight by one unit in the last place of its type, up or down by `seed`.

    The random numbers of Keras and TensorFlow stay as they are.
    """
    generator = rounding.generator_of(seed)
    for variable in model.trainable_variables:
        value = keras.ops.convert_to_numpy(variable)
        toward = rounding.directions(generator, value.shape).astype(value.dtype)
        variable.assign(np.nextafter(value, toward))


def restart(context: RankContext, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Set a trained model and its optimizer back to what they were before the first step.

    So the compiled step serves again; to trace and compile another one may take minutes.
    """
    fresh = setup.build(context)
    fresh_optimizer = update_rule.make_optimizer(context)
    fresh_optimizer.build(fresh.trainable_variables)
    # States of random generators, which draw dropout's masks, are among a model's variables.
    trained = [*model.variables, *optimizer.variables]
    for variable, first in zip(trained, [*fresh.variables, *fresh_optimizer.variables], strict=True):
        variable.assign(first)


def measure_gap(
    context: RankContext,
    recorder: Recorder,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    run: Callable[[StepFollower], object],
) -> None:
    """Measure the `rounding_gap` of a finished training, as `src.runtime.common.rounding` says.

    Args:
        context: the rank's context.
        recorder: the rank's recorder.
        model: the trained model, whose variables are changed.
        optimizer: the model's optimizer.
        run: trains `model` from the first batch on by the training's own compiled step, until the follower
            that it is given has a status.
    """

    def first_losses() -> Sequence[float]:
        restart(context, model, optimizer)
        nudge(model, context.config.seed)
        follower = LossFollower()
        run(follower)
        return follower.losses

    rounding.measure_gap(context, recorder, first_losses)


class LossFollower:
    """A `StepFollower` that keeps the losses of the first steps, and then ends the training.

    Attributes:
        losses: the mean loss of each completed step.
        late: never true: these few steps have no time limit.
    """

    late = False

    def __init__(self) -> None:
        self.losses: list[float] = []

    @property
    def status(self) -> Status | None:
        """Return `ok` once there are enough losses, and `None` before."""
        return Status.OK if len(self.losses) >= PARITY_STEPS else None

    def on_train_start(self) -> None:
        """Do nothing: nothing here is timed."""

    def on_steps_end(self, losses: Sequence[float], correct: float, *, late: bool) -> None:
        """Keep the losses of steps that were completed together."""
        self.losses += losses
