"""Describes the Keras models in FOLDER/keras.json; trains the shallow one from the weights that torch left.

python -m tests.models.keras_process FOLDER
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import time
from pathlib import Path

import keras
import numpy as np

from src.config import ConfigError
from src.data import arrays, available
from src.measure.rank_record import RankRecord
from src.measure.recorder import Recorder
from src.models import adapt
from src.runtime.common.context import RankContext
from src.runtime.tensorflow import model_check, setup
from src.strategies.tensorflow import tf_single
from tests.support import config

SHAPE = (28, 28, 1)
STEMS = {"resnet18": ("3x3", "7x7", "small"), "resnet50": ("3x3", "7x7")}
# The first convolution's place among the layers.
OWN = (
    "Subclassed",
    "unbuilt",
    "regularised",
    "OwnStep",
    "two_outputs",
    "five_outputs",
    "softmax",
    "stateful",
    "dropout",
    "normalised",
    "counting",
    "centred",
)
CUT = ("Subclassed", "unbuilt", "forgetful", "counting", "masked", "drawing")
FIRST = {"resnet18": 2, "resnet50": 2, "mobilenet_v2": 1}


def small(*, num_classes: int, input_shape: tuple[int, int, int]) -> keras.Model:
    """A model that asks for what it needs by Keras's usual names."""
    layers = [keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)]
    return keras.Sequential(layers)


def custom(path: str) -> keras.Model:
    chosen = config("strategy=tf_single", "model=custom", f"model.path={path}")
    return adapt.build(chosen, classes=10, shape=SHAPE)


def built(name: str, stem: str) -> keras.Model:
    chosen = config("strategy=tf_single", f"model={name}", f"model.stem={stem}")
    return adapt.build(chosen, classes=10, shape=SHAPE)


def trainable(model: keras.Model) -> int:
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def mistake(path: str) -> str:
    try:
        custom(path)
    except (ConfigError, TypeError) as error:
        return str(error)
    return "no mistake"


def looked_at(folder: Path, name: str, strategy: str = "tf_single") -> str | RankRecord:
    """What is said, or seen, of a model of tests/models/own_keras.py before it trains."""
    chosen = config(f"strategy={strategy}", "model=custom", f"model.path=tests.models.own_keras.{name}")
    data = arrays.load(available.ensure(chosen.dataset), 320)
    context = RankContext(chosen, 0, 1, data, folder, (0,))
    model = setup.build(context)
    before = [variable.numpy() for variable in model.variables]
    try:
        seen = model_check.check_model(context, model)
    except ConfigError as error:
        return str(error)
    assert all(map(np.array_equal, model.variables, before)), "the model is left as it was"
    return seen


def train(folder: Path) -> None:
    chosen = config("strategy=tf_single", "model=cnn", "batch=32", "dataset.limit=320")
    data = arrays.load(available.ensure(chosen.dataset), 320)
    context = RankContext(chosen, 0, 1, data, folder, (min(os.sched_getaffinity(0)),))
    built = setup.build

    def from_torch(context: RankContext) -> keras.Model:
        model = built(context)
        with np.load(folder / "weights.npz") as weights:
            model.set_weights([weights[name] for name in weights.files])
        return model

    setup.build = from_torch
    tf_single.train(context, Recorder(chosen, 0, folder / "tensorflow", started=time.time(), probes=False))
    setup.build = built


def losses(path: Path) -> list[float]:
    with path.open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def main() -> None:
    folder = Path(sys.argv[1])
    train(folder)
    models = {
        name: adapt.build(config("strategy=tf_single", f"model={name}"), classes=10, shape=SHAPE)
        for name in ("cnn", "mlp", "resnet18", "resnet50", "resnet101", "mobilenet_v2")
    }
    results = {
        "parameters": {name: trainable(model) for name, model in models.items()},
        "stems": {
            f"{name} {stem}": trainable(built(name, stem)) for name, stems in STEMS.items() for stem in stems
        },
        "small": [list(built(name, "small").layers[place].output.shape) for name, place in FIRST.items()],
        "shapes": {name: list(model.output_shape) for name, model in models.items()},
        "custom": list(custom("tests.models.keras_process.small").output_shape),
        "mistakes": [mistake("math.pi"), mistake("collections.Counter")],
        "looks": {name: looked_at(folder, name) for name in OWN},
        "synchronised": [
            looked_at(folder, "synchronised", strategy) for strategy in ("tf_single", "tf_mirrored", "tf_mpi")
        ],
        "cuts": {name: looked_at(folder, name, "tf_model_split") for name in CUT},
        "losses": losses(folder / "tensorflow" / "steps.csv"),
        "torch_losses": losses(folder / "torch" / "steps.csv"),
    }
    (folder / "keras.json").write_text(json.dumps(results))
    os._exit(0)


if __name__ == "__main__":
    main()
