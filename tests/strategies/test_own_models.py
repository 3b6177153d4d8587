"""The model that is trained is the user's: under every strategy, or a line says before the start why not."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.measure.arithmetic import PARITY_STEPS
from tests import leaks
from tests.conftest import Commands

MODELS = "tests.strategies.own_models"
COMMON = ("tracking.backend=none", "hardware.device=cpu", "hardware.share_devices=true", "batch=32")
SHORT = ("dataset.limit=320", "dataset.test_limit=100", "epochs=1", "max_minutes=1")
STRATEGIES = ("single", "ddp", "mpi", "pipeline", "model_split", "parameter_server", "hogwild", "local_sgd")
# What their losses have in common with one device's by design.
SYNCHRONOUS = ("ddp", "mpi", "pipeline", "model_split", "parameter_server")


def losses(folder: Path) -> list[float]:
    with (folder / "steps.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["rank"] == "0"][:PARITY_STEPS]


def own(model: str) -> tuple[str, str]:
    return "model=custom", f"model.path={MODELS}.{model}"


def kind(model: str) -> tuple[str, str]:
    """One of those that `python -m bench.own_models` trains."""
    return "model=custom", f"model.path=bench.models.{model}.build"


@pytest.mark.slow
def test_an_awkward_model_trains_the_same_under_every_strategy(
    module_commands: Callable[[], Commands], mnist: None, tmp_path: Path
) -> None:
    commands = module_commands()
    words = (f"strategy={','.join(STRATEGIES)}", "-m", *own("Awkward"), *COMMON, *SHORT)
    completed = commands.run(*words, **leaks.everything(tmp_path))
    assert completed.returncode == 0, completed.stderr
    assert "ignores the others: 1" in completed.stdout
    # A sweep ends with its table.
    table = completed.stdout.partition("\nsweep, ")[2]
    assert "speed-up" in table and all(f"\n{name}" in table for name in STRATEGIES)
    found = {}
    for path in commands.folder.glob("runs/**/config.yaml"):
        folder, config = path.parent, yaml.safe_load(path.read_text())
        found[config["strategy"]["name"]] = folder
        metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
        assert metrics["status"] == "ok", config["strategy"]["name"]
    assert found.keys() == set(STRATEGIES)
    whole = losses(found["single"])
    assert len(whole) == PARITY_STEPS
    for strategy in SYNCHRONOUS:
        gaps = [abs(one - other) for one, other in zip(losses(found[strategy]), whole, strict=True)]
        assert max(gaps) < 1e-4, strategy


@pytest.mark.slow
def test_what_a_keras_model_adds_to_the_loss_counts_in_every_loop(
    module_commands: Callable[[], Commands], mnist: None, tmp_path: Path
) -> None:
    """By Keras's own `fit` (tf_mirrored), and the loop here (tf_custom), whatever the user's shell says."""
    commands, model = module_commands(), ("model=custom", "model.path=tests.models.own_keras.regularised")
    for strategy in ("tf_single", "tf_custom", "tf_mirrored"):
        shell = {} if strategy == "tf_single" else leaks.everything(tmp_path)
        completed = commands.run(f"strategy={strategy}", f"out={strategy}", *model, *COMMON, *SHORT, **shell)
        assert completed.returncode == 0, completed.stderr
        # What the look before the start has seen reaches the report.
        seen = json.loads((commands.folder / strategy / "environment.json").read_text())
        assert (seen["draws_random_numbers"], seen["computes_over_batch"]) == (False, False)
    whole, *others = (losses(commands.folder / name) for name in ("tf_single", "tf_custom", "tf_mirrored"))
    for other in others:
        assert max(abs(one - two) for one, two in zip(other, whole, strict=True)) < 1e-4


@pytest.mark.slow
def test_how_often_a_run_evaluates_changes_nothing(
    module_commands: Callable[[], Commands], mnist: None
) -> None:
    """Of a model that moves what training reads, in evaluation, too."""
    commands = module_commands()
    for strategy in ("single", "ddp"):
        for every in (2, 10):
            words = (f"strategy={strategy}", f"evaluate_every={every}", f"out={strategy}-{every}")
            completed = commands.run(*words, *kind("moving_buffer"), *COMMON, *SHORT)
            assert completed.returncode == 0, completed.stderr
            # The copies' own buffers are told of.
            assert ("each worker changes" in completed.stdout) == (strategy == "ddp")
        often, seldom = (losses(commands.folder / f"{strategy}-{every}") for every in (2, 10))
        assert often == seldom


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("strategy=pipeline", *kind("own_backward")),
            "a graph would leave out the backward pass of the autograd function Sign",
        ),
        (
            ("strategy=ddp", *kind("sparse")),
            "are exchanged; build the layer with sparse=False, or choose strategy=single",
        ),
        (
            ("strategy=mpi", *kind("complex_weights")),
            "the gradient of filter is of complex64, and dense real ones are",
        ),
        (("strategy=ddp", *kind("initialised")), "forward pass writes into its parameter scale, which each"),
        (
            ("strategy=mpi", *own("synchronised")),
            "strategy=mpi: 2 is nn.SyncBatchNorm, which not all strategies",
        ),
        (
            ("strategy=single", *own("Stateful")),
            "keeps something of each batch, and fails for one of another size",
        ),
        (("strategy=single", *own("Named")), "the model returns features, scores; choose the logits by task"),
        (("strategy=single", *own("Fixed")), "nothing to train: no parameter has a part in the loss"),
        (
            ("strategy=tf_single", *own("Named")),
            "is a model of torch, and strategy=tf_single trains",
        ),
    ],
    ids=[
        "backward",
        "sparse",
        "complex",
        "initialised",
        "synchronised",
        "stateful",
        "outputs",
        "frozen",
        "framework",
    ],
)
def test_what_would_be_another_model_is_refused_in_a_line(
    commands: Commands, mnist: None, words: tuple[str, ...], told: str
) -> None:
    completed = commands.run(*words, *COMMON, *SHORT, "out=run")
    assert completed.returncode == 2, completed.stderr
    (line,) = [line for line in completed.stderr.splitlines() if line.startswith("error")]
    assert told in line
    assert list(commands.folder.iterdir()) == []
    assert commands.left() == []


@pytest.mark.slow
def test_weights_that_no_seed_covers_are_told(commands: Commands, mnist: None) -> None:
    completed = commands.run("strategy=single", *own("Unseeded"), *COMMON, *SHORT)
    assert completed.returncode == 0, completed.stderr
    assert f"note: model.path={MODELS}.Unseeded: head.bias is another one each time" in completed.stdout


@pytest.mark.slow
def test_a_gradient_that_stops_coming_ends_ddp_with_the_key_that_helps(
    commands: Commands, mnist: None
) -> None:
    """What no look before the start can see."""
    words = ("strategy=ddp", *own("Fading"), *COMMON, *SHORT)
    completed = commands.run(*words)
    assert completed.returncode == 2
    assert "some parameters got no gradient in a step, though they get one in others; strategy." in (
        completed.stdout + completed.stderr
    )
    helped = commands.run(*words, "strategy.find_unused_parameters=true", "out=helped")
    assert helped.returncode == 0, helped.stderr
    assert commands.left() == []


@pytest.mark.slow
def test_a_part_that_begins_to_be_trained_later_ends_ddp(commands: Commands, mnist: None) -> None:
    """DDP doesn't know of it, and each rank would train its own."""
    completed = commands.run("strategy=ddp", "workers=2", *own("Thawing"), *COMMON, *SHORT)
    assert completed.returncode == 2
    told = completed.stdout + completed.stderr
    assert "the ranks' copies of trunk.weight have come apart" in told and commands.left() == []
