"""One checkpoint format for every TensorFlow strategy: the whole model's arrays by name.

A checkpoint is a file that `numpy.load` reads anywhere, without pickle:

    model/<variable>       every variable of the model, shards joined, by Keras's path within it
    <slot>/<variable>      what the optimizer keeps for it (momentum; velocity)
    iterations             the optimizer's steps
    epoch, step            steps done: `epoch` whole epochs and `step` steps of the next one
    seed, global_batch, train_samples     what the order of samples depends on
    optimizer              its name
    worker_steps           steps of each worker, where they take turns as they can
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from src import rundir
from src.config import ConfigError
from src.data import order
from src.measure.recorder import Recorder
from src.runtime import resume
from src.runtime.tensorflow.sharding import joined, shards, split
from src.worker import Run

FILE = "checkpoint.npz"
SINGLE = ("epoch", "step", "seed", "global_batch", "train_samples", "optimizer")
NEEDED = (*SINGLE, "iterations")
# A model, or a part of it, and the optimizer that was built on its trained variables.
Part = tuple[keras.Model, keras.optimizers.Optimizer]


class Checkpoints:
    """Of one rank's run: the one that it goes on from, and those that it writes.

    `meet` returns once all ranks are there: off the clock they wait for rank 0 to have written.
    """

    def __init__(
        self, run: Run, recorder: Recorder, parts: Sequence[Part], meet: Callable[[], object] | None = None
    ) -> None:
        self._run = run
        self._recorder = recorder
        self._parts = parts
        self._meet = meet
        self._per_epoch = order.steps_per_epoch(run.arrays.train_samples, run.config.global_batch)
        self._written = -1

    def resume(self) -> int:
        """Restores the configured checkpoint; steps that had been done (0 without one)."""
        if self._run.config.resume is None:
            return 0
        found = read(self._run)
        restore(found, self._parts)
        step = found["epoch"] * self._per_epoch + found["step"]
        self._recorder.resume_at(step, batches=step, per_epoch=self._per_epoch)
        return step

    def completed(self, before: int, step: int, status: str | None) -> None:
        """Writes one if a multiple of `checkpoint_every` was passed since `before`, and at the end.

        Of a training that has diverged there is none: the last one may still be good.
        """
        every = self._run.config.checkpoint_every
        if every is None or step == self._written or status == "diverged":
            return
        if status is None and step // every == before // every:
            return
        with self._recorder.off_clock():
            # Of a job that is started again rows count up to here.
            self._recorder.flush()
            if self._meet is not None:
                self._meet()
            if self._run.rank == 0:
                epoch, within = divmod(step, self._per_epoch)
                path = self._run.folder / FILE
                write(path, self._parts, self._run, epoch=epoch, step=within)
            if self._meet is not None:
                self._meet()
        self._written = step


def write(
    path: Path,
    parts: Iterable[Part],
    run: Run,
    *,
    epoch: int,
    step: int,
    worker_steps: Sequence[int] = (),
) -> None:
    """One file, written whole or not at all."""
    whole: dict[str, Any] = {
        "epoch": epoch,
        "step": step,
        "seed": run.config.seed,
        "global_batch": run.config.global_batch,
        "train_samples": run.arrays.train_samples,
        "optimizer": run.config.optimizer["name"],
        "worker_steps": list(worker_steps),
    }
    for model, optimizer in parts:
        whole["iterations"] = optimizer.iterations.numpy()
        whole |= {f"model/{_name(model, v)}": joined(shards(v)) for v in model.variables}
        for kind, slots in _slots(model, optimizer).items():
            whole |= {f"{kind}/{name}": joined(found) for name, found in slots.items()}
    with rundir.whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **whole)


def read(run: Run) -> dict[str, Any]:
    """The checkpoint of `run.config.resume`.

    Raises:
        ConfigError: for a file that is none, or one whose order of samples isn't this run's.
    """
    config = run.config
    try:
        with np.load(str(config.resume)) as file:
            found = dict(file)
    except Exception as error:
        raise ConfigError(f"resume={config.resume}: is no checkpoint of a TensorFlow run") from error
    missing = [key for key in NEEDED if key not in found]
    if missing:
        raise ConfigError(
            f"resume={config.resume}: is no checkpoint of a TensorFlow run; it lacks {', '.join(missing)}"
        )
    found |= {key: found[key].item() for key in SINGLE}
    resume.check(config, found, found["optimizer"], run.arrays.train_samples)
    return found


def restore(found: Mapping[str, Any], parts: Iterable[Part]) -> None:
    """Puts weights, buffers and the optimizer's state back.

    Raises:
        ConfigError: when the checkpoint is of another model.
    """
    for model, optimizer in parts:
        optimizer.iterations.assign(found["iterations"])
        for variable in model.variables:
            _assign(variable, shards(variable), found, f"model/{_name(model, variable)}")
        owners = {_name(model, variable): variable for variable in model.trainable_variables}
        for kind, slots in _slots(model, optimizer).items():
            for name, held in slots.items():
                _assign(owners[name], held, found, f"{kind}/{name}")


def _name(model: keras.Model, variable: keras.Variable) -> str:
    """Keras's path without the model's own name, which a part of it hasn't."""
    return variable.path.removeprefix(f"{model.name}/")


def _slots(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> dict[str, dict[str, list[Any]]]:
    """The optimizer's variables by kind and by the model's variable, a shard's after the other."""
    own = [v for v in optimizer.variables if v.name not in ("iteration", "learning_rate")]
    kinds: dict[str, list[Any]] = {}
    for variable in own:
        # Keras names them after what they belong to, and their kind.
        kinds.setdefault(variable.name.rpartition("_")[2], []).append(variable)
    found: dict[str, dict[str, list[Any]]] = {}
    for kind, variables in kinds.items():
        remaining = iter(variables)
        found[kind] = {
            _name(model, owner): [next(remaining) for _ in shards(owner)]
            for owner in model.trainable_variables
        }
    return found


def _assign(owner: keras.Variable, held: Sequence[Any], found: Mapping[str, Any], name: str) -> None:
    value = found.get(name)
    if value is None or tuple(value.shape) != tuple(owner.shape):
        raise ConfigError(f"resume: the checkpoint is of another model or optimizer; {name} differs")
    pieces = [value] if len(held) == 1 else split(value, owner)
    for part, piece in zip(held, pieces, strict=True):
        part.assign(piece)
