"""One process that trains cases of a framework's `single`, and tells of their rounding gaps.

    python -m tests.runtime.rounding_rank CASES      with a launcher's environment variables

CASES is a folder with `cases.json` (a list of name and change) and `<name>.yaml` (a configuration). Written
are `<name>.json`, the recorder's files in `<name>/0/`, and, from the first case's model, `weights.npz`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from src.config import Config
from src.config import run_config as configuration
from src.data import order
from src.measure.recorder import Recorder
from src.runtime.common import rounding
from src.runtime.common.context import RankContext
from src.runtime.common.step_policy import StepPolicy
from tests.prepared_data import load_arrays

TESTED = 20
epoch_order, measure_gap, note_seconds = order.epoch_order, rounding.measure_gap, rounding.NOTE_SECONDS
is_late = StepPolicy.is_late


def unstable_torch(num_classes: int) -> Any:
    """A model that enlarges a difference of its weights a thousandfold at each step."""
    from torch import nn

    class Waves(nn.Sequential):
        def forward(self, images: Any) -> Any:
            return (1000 * super().forward(images)).sin()

    return Waves(nn.Flatten(), nn.Linear(784, num_classes))


def unstable_tensorflow(num_classes: int, input_shape: tuple[int, int, int]) -> Any:
    """A model that enlarges a difference of its weights a thousandfold at each step."""
    import keras

    waves = keras.layers.Activation(lambda sums: keras.ops.sin(1000 * sums))
    layers = [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes), waves]
    return keras.Sequential(layers)


class Framework:
    """What the tests need of torch or TensorFlow."""

    def __init__(self, name: str) -> None:
        self.is_torch = name == "torch"
        if self.is_torch:
            from src.runtime.torch import step_seeds

            self._step_seeds, self._seed = step_seeds, step_seeds.seed
        folder = "torch.lightning" if self.is_torch else "tensorflow"
        self.module = resolve_name(f"src.runtime.{folder}.rounding")
        self.nudge = self.module.nudge
        self.build = resolve_name(f"src.runtime.{name}.setup").build

    def weights(self, model: Any) -> list[Any]:
        return list(model.parameters()) if self.is_torch else model.weights

    def values(self, model: Any) -> list[np.ndarray]:
        if self.is_torch:
            return [weight.detach().numpy().copy() for weight in self.weights(model)]
        return [weight.numpy() for weight in self.weights(model)]

    def freeze_first(self, model: Any) -> None:
        if self.is_torch:
            self.weights(model)[0].requires_grad = False
        else:
            self.weights(model)[0].trainable = False

    def forget(self) -> None:
        """Names of layers begin anew, so that one model's checkpoint is another one's."""
        if not self.is_torch:
            import keras

            keras.utils.clear_session()

    def draw(self) -> list[Any]:
        """The next random number of every global generator."""
        if self.is_torch:
            import torch

            own = torch.rand(()).item()
        else:
            import tensorflow as tf

            own = float(tf.random.uniform(()))
        return [random.random(), float(np.random.rand()), own]

    def disturb(self, model: Any) -> None:
        """Have dropout draw other masks, until `settle`."""
        if self.is_torch:
            self._step_seeds.seed = lambda config, rank, step: self._seed(config, rank, step + 1)
        else:
            for state in model.non_trainable_variables:
                state.assign(state + 1)

    def settle(self) -> None:
        """Have dropout draw the masks that it would have drawn."""
        if self.is_torch:
            self._step_seeds.seed = self._seed


def tell_of_nudge(framework: Framework, context: RankContext, path: Path) -> None:
    """Writes the seeded model's weights: as built, nudged by seed 0, again, by seed 1, with one frozen."""
    arrays = {}
    for name, seed in (("before", None), ("after", 0), ("again", 0), ("other", 1), ("frozen", 0)):
        model = framework.build(context)
        if name == "frozen":
            framework.freeze_first(model)
        # Building has seeded the framework's own generators.
        random.seed(0)
        np.random.seed(0)
        if seed is not None:
            framework.nudge(model, seed)
        arrays[f"{name}/drawn"] = np.array(framework.draw())
        arrays |= {f"{name}/{n}": value for n, value in enumerate(framework.values(model))}
    np.savez(path, **arrays)


def apply(framework: Framework, change: str | None) -> None:
    """Makes one change for the next training."""
    order.epoch_order = epoch_order
    framework.settle()
    rounding.NOTE_SECONDS = 0.0 if change == "slow" else note_seconds

    def nudge(model: Any, seed: int) -> None:
        if change in (None, "slow", "stopped", "other batches"):
            framework.nudge(model, seed)
        if change == "other batches":
            order.epoch_order = lambda samples, seed, *others: epoch_order(samples, seed + 1, *others)
        elif change == "other masks":
            framework.disturb(model)
        elif change == "failing":
            raise RuntimeError("the last digit is gone")

    framework.module.nudge = nudge


def train(config: Config, folder: Path, *, stopped: bool) -> dict[str, Any]:
    """One training, as `src.worker` starts it; returns what measuring the gap did to its record.

    One that is `stopped` is late from its eleventh step on.
    """
    whole = load_arrays(config.dataset)
    few = whole.first(test=TESTED)
    context = RankContext(config, 0, 1, few, folder, tuple(sorted(os.sched_getaffinity(0)))[:1])
    recorder = Recorder(config, 0, folder / "0", started=time.time(), probes=False)
    StepPolicy.is_late = (lambda *_: recorder.steps > 10) if stopped else is_late
    before: dict[str, bytes] = {}

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / "0").iterdir() if path.is_file()}

    def watched(context: RankContext, recorder: Recorder, first_losses: Callable[..., Any]) -> None:
        before.update(files())
        measure_gap(context, recorder, first_losses)

    rounding.measure_gap = watched
    resolve_name(config.strategy["entry"])(context, recorder)
    after = files()
    was, now = (json.loads(record["record.json"]) for record in (before, after))
    return {
        "record": now,
        "files": sorted(name for name in after if before.get(name) != after[name]),
        "keys": [key for key in now if key not in was or was[key] != now[key]],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    framework = Framework(configuration.load(folder / f"{cases[0][0]}.yaml").framework)
    for number, (name, change) in enumerate(cases):
        config = configuration.load(folder / f"{name}.yaml")
        framework.forget()
        apply(framework, change)
        (folder / f"{name}.json").write_text(
            json.dumps(train(config, folder / name, stopped=change == "stopped"))
        )
        if number == 0:
            arrays = load_arrays(config.dataset)
            tell_of_nudge(framework, RankContext(config, 0, 1, arrays, folder, (0,)), folder / "weights.npz")
        print(f"{name}: done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
