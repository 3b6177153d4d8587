"""Write and read checkpoints of every TensorFlow strategy, in one format: the whole model's arrays by name.

A checkpoint is a file that `numpy.load` reads anywhere, without pickle:

    model/<variable>       every variable of the model, shards joined, by Keras's path within it
    <slot>/<variable>      the optimizer's state for that variable (velocity, as torch's momentum_buffer)
    iterations             the optimizer's steps
    epoch, step            steps done: `epoch` whole epochs and `step` steps of the next one
    seed, global_batch, train_samples     what the order of samples depends on
    optimizer              the optimizer's name
    worker_steps           steps of each worker, where workers are asynchronous
    sums                   losses, correct answers and steps since the last evaluation, of others
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from src.config import ConfigError
from src.data import order
from src.measure.recorder import Recorder
from src.run.variables import RESUME
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from src.runtime.common.resume import check_checkpoint, resume_recorders
from src.runtime.tensorflow import update_rule
from src.runtime.tensorflow.variable_shards import join_shards, shards_of, split_value

SINGLE = ("epoch", "step", "seed", "global_batch", "train_samples", "optimizer")
NEEDED = (*SINGLE, "iterations")
# A model, or a part of it, and the optimizer that was built on its trained variables.
Part = tuple[keras.Model, keras.optimizers.Optimizer]


class Sums(NamedTuple):
    """Sums over the steps since the last evaluation.

    Attributes:
        loss: of their losses.
        correct: of their correct answers.
        steps: number of these steps.
    """

    loss: float = 0.0
    correct: float = 0.0
    steps: float = 0


class Checkpoints:
    """The checkpoints of one rank's run: the one that the run resumes from, and those that it writes.

    Attributes:
        sums: what was added up before the job was started again, since the last evaluation.
    """

    def __init__(
        self,
        context: RankContext,
        recorder: Recorder,
        parts: Sequence[Part],
        barrier: Callable[[], object] | None = None,
    ) -> None:
        """Serve one rank.

        Args:
            context: the rank's context.
            recorder: the rank's recorder.
            parts: the model, or its parts, each with its optimizer.
            barrier: returns once all ranks have called it. With a barrier, the other ranks wait off the clock
                until rank 0 has copied the state for a checkpoint.
        """
        self._context = context
        self._recorder = recorder
        self._parts = parts
        self._barrier = barrier
        samples = context.arrays.train_samples
        self._per_epoch = order.steps_per_epoch(samples, context.config.global_batch)
        self._asked_at = -1
        self.sums = Sums()
        # Rank 0 alone writes.
        self._writer = CheckpointWriter(context)

    def resume(self) -> int:
        """Restore the checkpoint that the configuration names; return how many steps it has done, or 0.

        Raises:
            ConfigError: when the file is no checkpoint that this run can go on from.
        """
        if self._context.config.resume is None:
            return 0
        checkpoint = read(self._context)
        restore(checkpoint, self._parts)
        steps = resume_recorders([self._recorder], checkpoint, self._per_epoch)
        for _, optimizer in self._parts:
            update_rule.resume_at(optimizer, steps)
        self._writer.resume_at(steps)
        if RESUME in os.environ:
            self.sums = Sums(*checkpoint["sums"].tolist())
        return steps

    def write(self, step: int, sums: Sums) -> None:
        """Have a checkpoint written after `step` steps, unless that is done; all ranks call this method."""
        if step == self._asked_at:
            return
        with self._recorder.off_clock():
            # If the job is started again, the rows up to this step count.
            self._recorder.flush()
            if self._barrier is not None:
                self._barrier()
            if self._context.rank == 0:
                epoch, within = divmod(step, self._per_epoch)
                write(self._writer, self._context, self._parts, epoch=epoch, step=within, sums=sums)
            if self._barrier is not None:
                self._barrier()
        self._asked_at = step

    def check(self) -> None:
        """Raise the error with which the writing of a checkpoint has ended, if it has."""
        self._writer.check()

    def settle(self, diverged_at: int | None) -> None:
        """End with the last good checkpoint; `diverged_at` is the first step whose loss was not finite."""
        if self._context.rank == 0 and self._context.config.checkpoint_every is not None:
            # The loss of a step is that of the state before it.
            self._writer.finish(lambda newest: diverged_at != newest + 1)


def write(
    writer: CheckpointWriter,
    context: RankContext,
    parts: Iterable[Part],
    *,
    epoch: int,
    step: int,
    worker_steps: Sequence[int] = (),
    sums: Sums | None = None,
) -> None:
    """Copy the state into memory, and have it written as the run's checkpoint, whole or not at all.

    A state that has an infinite or NaN element isn't written, so that the last good one stays.

    Args:
        writer: writes the checkpoint beside the training.
        context: the rank's context.
        parts: the model, or its parts, each with its optimizer.
        epoch: how many whole epochs are done.
        step: how many steps of the next epoch are done.
        worker_steps: how many steps each worker has done, where workers are asynchronous.
        sums: what was added up since the last evaluation, where they aren't.
    """
    writer.wait()
    whole: dict[str, Any] = {
        "epoch": epoch,
        "step": step,
        "seed": context.config.seed,
        "global_batch": context.config.global_batch,
        "train_samples": context.arrays.train_samples,
        "optimizer": context.config.optimizer["name"],
        "worker_steps": list(worker_steps),
        "sums": list(sums or ()),
    }
    for model, optimizer in parts:
        whole["iterations"] = optimizer.iterations.numpy()
        whole |= {f"model/{_name(model, v)}": join_shards(shards_of(v)) for v in model.variables}
        for kind, slots in _slots(model, optimizer).items():
            whole |= {f"{kind}/{name}": join_shards(parts) for name, parts in slots.items()}
    writer.write(
        epoch=epoch,
        step=step,
        broken=lambda: next(_not_finite(whole), None),
        save=lambda path: _save(whole, path),
    )


def _not_finite(whole: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a checkpoint's arrays that have an infinite or NaN element."""
    for name, value in whole.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            yield name


def _save(whole: Mapping[str, Any], path: Path) -> None:
    # numpy would change the ending of a path.
    with path.open("wb") as file:
        np.savez(file, **whole)


def read(context: RankContext) -> dict[str, Any]:
    """Read the checkpoint that the configuration's `resume` names.

    Raises:
        ConfigError: when the file is no checkpoint, or its run had another order of samples or another
            optimizer.
    """
    config = context.config
    try:
        with np.load(str(config.resume)) as file:
            checkpoint = dict(file)
    except Exception as error:
        raise ConfigError(f"resume={config.resume}: is no checkpoint of a TensorFlow run") from error
    missing = [key for key in NEEDED if key not in checkpoint]
    if missing:
        raise ConfigError(
            f"resume={config.resume}: is no checkpoint of a TensorFlow run; it lacks {', '.join(missing)}"
        )
    try:
        checkpoint |= {key: checkpoint[key].item() for key in SINGLE}
        numbers = all(isinstance(checkpoint[key], int) for key in SINGLE if key != "optimizer")
    except ValueError:
        numbers = False
    if not numbers:
        raise ConfigError(f"resume={config.resume}: is no checkpoint of a TensorFlow run")
    samples = context.arrays.train_samples
    check_checkpoint(config, checkpoint, checkpoint["optimizer"], samples)
    return checkpoint


def restore(checkpoint: Mapping[str, Any], parts: Iterable[Part]) -> None:
    """Restore weights, buffers and the optimizer's state from a checkpoint.

    Args:
        checkpoint: its entries by name, as `read` returns them.
        parts: the model, or its parts, each with its optimizer; changed in place.

    Raises:
        ConfigError: when the checkpoint is of another model.
    """
    for model, optimizer in parts:
        optimizer.iterations.assign(checkpoint["iterations"])
        for variable in model.variables:
            _assign(variable, shards_of(variable), checkpoint, f"model/{_name(model, variable)}")
        owners = {_name(model, variable): variable for variable in model.trainable_variables}
        for kind, slots in _slots(model, optimizer).items():
            for name, shards in slots.items():
                _assign(owners[name], shards, checkpoint, f"{kind}/{name}")


def _name(model: keras.Model, variable: keras.Variable) -> str:
    """Return Keras's path of a variable, without the model's own name, which the path in a stage lacks."""
    return variable.path.removeprefix(f"{model.name}/")


def _slots(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, dict[str, list[Any]]]:
    """Return the optimizer's variables by kind and by name of the model's variable, as lists of shards."""
    slot_variables = [v for v in optimizer.variables if v.name not in ("iteration", "learning_rate")]
    kinds: dict[str, list[Any]] = {}
    for variable in slot_variables:
        # Keras names a slot after the variable that it belongs to, and its kind.
        kinds.setdefault(variable.name.rpartition("_")[2], []).append(variable)
    slots: dict[str, dict[str, list[Any]]] = {}
    for kind, variables in kinds.items():
        remaining = iter(variables)
        slots[kind] = {
            _name(model, owner): [next(remaining) for _ in shards_of(owner)]
            for owner in model.trainable_variables
        }
    return slots


def check_model(checkpoint: Mapping[str, Any], model: keras.Model) -> None:
    """Raise `ConfigError` unless a checkpoint has every variable of a whole model, in its shape."""
    for variable in model.variables:
        _value(checkpoint, f"model/{_name(model, variable)}", variable)


def _value(checkpoint: Mapping[str, Any], name: str, owner: keras.Variable) -> Any:
    """Return the checkpoint's entry `name`; raise `ConfigError` unless it has the shape of `owner`."""
    value = checkpoint.get(name)
    if value is None or tuple(value.shape) != tuple(owner.shape):
        raise ConfigError(f"resume: the checkpoint is of another model or optimizer; {name} differs")
    return value


def _assign(owner: keras.Variable, shards: Sequence[Any], checkpoint: Mapping[str, Any], name: str) -> None:
    """Assign the checkpoint's entry `name` to `shards`, which are cut as the variable `owner` is."""
    value = _value(checkpoint, name, owner)
    pieces = [value] if len(shards) == 1 else split_value(value, owner)
    for shard, piece in zip(shards, pieces, strict=True):
        shard.assign(piece)
