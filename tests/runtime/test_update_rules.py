"""Both frameworks update by one rule: the same gradients take the same weights to the same place, to 1e-9."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from src.runtime.common.learning_rate import LearningRate
from src.runtime.torch import update_rule
from tests.support import ROOT, config

STEPS = 6
SAMPLES = STEPS * 128
# Everything at once: a rate that rises and falls, decay, and a norm that some of the gradients pass.
TERMS = ("optimizer.weight_decay=0.1", "optimizer.clip_norm=2.5")
RATES = ("optimizer.lr=0.05", "optimizer.schedule=cosine", "optimizer.warmup_steps=3")
NAMES = ("sgd", "adam", "adamw", "adagrad")
CASES = {
    **{f"{name}-plain": (f"optimizer.name={name}", "optimizer.lr=0.05") for name in NAMES},
    **{f"{name}-decay": (f"optimizer.name={name}", TERMS[0]) for name in NAMES},
    **{name: (f"optimizer.name={name}", *TERMS, *RATES) for name in NAMES},
    "sgd-without-momentum": ("optimizer.momentum=0", *TERMS, *RATES),
    "clip": ("optimizer.clip_norm=2.5",),
}


@pytest.fixture(scope="module")
def gradients() -> dict[str, np.ndarray]:
    """Of two variables at each step, and where they begin; some are as small as an epsilon."""
    random = np.random.default_rng(0)
    sizes = np.logspace(-9, 0, 12).reshape(3, 4)
    return {
        "0": random.normal(size=(STEPS, 3, 4)) * sizes,
        "1": random.normal(size=(STEPS, 5)),
        "begin-0": random.normal(size=(3, 4)),
        "begin-1": random.normal(size=5),
    }


@pytest.fixture(scope="module")
def keras_ends(
    gradients: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, np.ndarray]:
    """Where TensorFlow's side ends, by case and variable."""
    folder = tmp_path_factory.mktemp("rules")
    (folder / "cases.json").write_text(json.dumps({name: (words, SAMPLES) for name, words in CASES.items()}))
    np.savez(folder / "gradients.npz", **gradients)
    files = [str(folder / name) for name in ("cases.json", "gradients.npz", "ends.npz")]
    module = "tests.runtime.tensorflow.rule_process"
    completed = subprocess.run(
        [sys.executable, "-m", module, *files],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    return dict(np.load(folder / "ends.npz"))


def torch_ends(words: tuple[str, ...], gradients: dict[str, np.ndarray]) -> list[np.ndarray]:
    chosen = config(*words)
    rate = LearningRate.of(chosen, SAMPLES)
    variables = [torch.nn.Parameter(torch.from_numpy(gradients[f"begin-{n}"].copy())) for n in range(2)]
    optimizer = update_rule.make_optimizer(chosen.optimizer, variables)
    for step in range(STEPS):
        for number, variable in enumerate(variables):
            variable.grad = torch.from_numpy(gradients[str(number)][step].copy())
        if chosen.optimizer["clip_norm"] is not None:
            update_rule.clip(variables, chosen.optimizer["clip_norm"])
        update_rule.set_rate(optimizer, rate(step))
        optimizer.step()
    return [variable.detach().numpy() for variable in variables]


@pytest.mark.parametrize("name", CASES)
def test_keras_ends_where_torch_ends(
    name: str, gradients: dict[str, np.ndarray], keras_ends: dict[str, np.ndarray]
) -> None:
    for number, expected in enumerate(torch_ends(CASES[name], gradients)):
        reached = keras_ends[f"{name}-{number}"]
        # Of the way that it went: some gradients are tiny.
        went = np.abs(expected - gradients[f"begin-{number}"])
        assert (np.abs(reached - expected) <= 1e-9 * np.maximum(went, 1e-6)).all(), name


def test_a_resumed_rate_is_that_of_the_step_whatever_the_updates(keras_ends: dict[str, np.ndarray]) -> None:
    rate = LearningRate.of(config(*CASES["sgd"]), SAMPLES)
    assert keras_ends["resumed-rate"] == pytest.approx(rate(2), rel=1e-12)
    assert rate(2) != rate(4)


def test_some_gradients_are_clipped_and_some_are_not(gradients: dict[str, np.ndarray]) -> None:
    norms = [math.hypot(*gradients["0"][step].ravel(), *gradients["1"][step]) for step in range(STEPS)]
    assert min(norms) < 2.5 < max(norms), norms


def test_a_gradient_is_clipped_before_weight_decay_is_added() -> None:
    settings = config("optimizer.weight_decay=0.5", "optimizer.momentum=0", "optimizer.lr=1").optimizer
    weight = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = update_rule.make_optimizer(settings, [weight])
    weight.grad = torch.tensor([10.0], dtype=torch.float64)
    update_rule.clip([weight], 1.0)
    optimizer.step()
    # 2 - (10 / (10 + 1e-6) + 0.5 * 2), and not 2 - 1.
    assert weight.item() == pytest.approx(2 - (10 / 10.000001 + 1), rel=1e-12)


def test_adamw_takes_decay_from_the_weight_itself() -> None:
    words = ("optimizer.name=adamw", "optimizer.weight_decay=0.5", "optimizer.lr=0.1")
    weight = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = update_rule.make_optimizer(config(*words).optimizer, [weight])
    weight.grad = torch.tensor([7.0], dtype=torch.float64)
    optimizer.step()
    # 0.1 x 0.5 of the weight, and Adam's first step, which is the rate whatever the gradient.
    assert weight.item() == pytest.approx(2 - 0.1 * 0.5 * 2 - 0.1, rel=1e-8)


def test_a_part_is_clipped_by_the_norm_of_the_whole() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    weight.grad = torch.tensor([3.0, 0.0], dtype=torch.float64)
    # Elsewhere there is a gradient of norm 4: the whole one's is 5.
    update_rule.clip([weight], 1.0, lambda squares: squares + 16)
    assert weight.grad.tolist() == pytest.approx([3 / 5.000001, 0.0], rel=1e-12)
    # Where there is none, there is nothing to clip.
    update_rule.clip([], 1.0)
