"""A process that updates variables by every rule of TensorFlow's side, in float64.

python -m tests.runtime.tensorflow.rule_process CASES.json GRADIENTS.npz RESULTS.npz

Torch and TensorFlow don't stand each other in one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from src.runtime.common.context import RankContext
from src.runtime.tensorflow import update_rule
from tests.support import config


def ends(words: list[str], samples: int, gradients: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Both variables after all steps, of one replica."""
    arrays: Any = SimpleNamespace(train_samples=samples)
    context = RankContext(config("strategy=tf_single", *words), 0, 1, arrays, Path(), (0,))
    optimizer = update_rule.make_optimizer(context)
    variables = [keras.Variable(gradients[f"begin-{number}"], dtype="float64") for number in range(2)]
    optimizer.build(variables)

    @tf.function
    def step(first: tf.Tensor, second: tf.Tensor) -> None:
        optimizer.apply_gradients(zip([first, second], variables, strict=True))

    for first, second in zip(gradients["0"], gradients["1"], strict=True):
        step(tf.constant(first), tf.constant(second))
    return [variable.numpy() for variable in variables]


def resumed_rate(words: list[str], samples: int, updates: int, steps: int) -> float:
    """The rate at which an optimizer goes on that has counted more updates than there were steps."""
    arrays: Any = SimpleNamespace(train_samples=samples)
    context = RankContext(config("strategy=tf_single", *words), 0, 1, arrays, Path(), (0,))
    optimizer = update_rule.make_optimizer(context)
    optimizer.iterations.assign(updates)
    update_rule.resume_at(optimizer, steps)
    return float(optimizer.learning_rate)


def main() -> None:
    cases, gradients, results = sys.argv[1:]
    keras.config.set_floatx("float64")
    read = dict(np.load(gradients))
    ended: dict[str, np.ndarray] = {}
    for name, (words, samples) in json.loads(Path(cases).read_text()).items():
        for number, value in enumerate(ends(words, samples, read)):
            ended[f"{name}-{number}"] = value
    words, samples = json.loads(Path(cases).read_text())["sgd"]
    # A checkpoint of two asynchronous workers, after two steps.
    ended["resumed-rate"] = np.array(resumed_rate(words, samples, updates=4, steps=2))
    np.savez(results, **ended)


if __name__ == "__main__":
    main()
