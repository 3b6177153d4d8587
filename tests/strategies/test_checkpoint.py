"""One checkpoint format: what any torch strategy wrote, any other goes on from, and plain torch reads."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from src.models import adapt
from tests.prepared_data import load_arrays
from tests.support import config

Until = Callable[[Callable[[], object], float, str], float]
# Until a run trains, on a busy machine.
START = 120.0
BOUND = 1e-4
# Four micro-batches of eight samples, however they are shared out: BatchNorm sees one at a time.
MODELS = {"resnet18": ("model=resnet18", "dataset.limit=320"), "cnn": ("model=cnn", "dataset.limit=4800")}
STEPS = {"resnet18": 10, "cnn": 150}
# Where a pipeline is cut is measured, and one cut rounds unlike another. A rounding error grows by up to a
# thousand times a step in ResNet-18, and doesn't in the CNN. Two steps see the weights, the order of samples,
# and the optimizer's state.
COMPARED = {"resnet18": 2, "cnn": 10}
# No multiple of it ends an epoch of the two.
KEPT_EVERY = {"resnet18": 7, "cnn": 40}
COMMON = ("batch=32", "epochs=2", "optimizer.lr=0.01", "dataset.test_limit=1000")
FIXED = ("tracking.backend=none", "out=run", "hardware.device=cpu", "hardware.share_devices=true")
STRATEGIES = {
    "single": ("strategy=single", "microbatches=4"),
    "ddp": ("strategy=ddp", "workers=2", "microbatches=2"),
    "pipeline": ("strategy=pipeline", "workers=2", "microbatches=4", "strategy.schedule=1f1b"),
    "model_split": ("strategy=model_split", "workers=2", "microbatches=4"),
}
# Who wrote, and who goes on.
PAIRS = [
    pytest.param("resnet18", "single", "pipeline", marks=pytest.mark.slow),
    pytest.param("cnn", "pipeline", "ddp", marks=pytest.mark.slow),
    pytest.param("cnn", "ddp", "model_split", marks=pytest.mark.long),
    pytest.param("cnn", "model_split", "single", marks=pytest.mark.long),
]


def losses(folder: Path) -> dict[int, float]:
    """Rank 0's loss by step."""
    with (folder / "steps.csv").open(newline="") as file:
        return {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file) if row["rank"] == "0"}


@pytest.fixture(scope="module")
def whole(module_commands: Callable[[], Any], mnist: None) -> Callable[[str], Path]:
    """The folder of a model's `single`, uninterrupted, with a checkpoint at its end."""
    made: dict[str, Path] = {}

    def folder(model: str) -> Path:
        if model not in made:
            commands = module_commands()
            words = (*MODELS[model], *COMMON, *FIXED, "checkpoint_every=1000")
            completed = commands.run(*STRATEGIES["single"], *words)
            assert completed.returncode == 0, completed.stderr
            made[model] = commands.folder / "run"
        return made[model]

    return folder


@pytest.mark.parametrize(("model", "writer", "reader"), PAIRS)
def test_what_one_wrote_another_goes_on_from(
    commands, until: Until, whole: Callable[[str], Path], model: str, writer: str, reader: str
) -> None:
    words, steps = (*MODELS[model], *COMMON, *FIXED), STEPS[model]
    folder, file = commands.folder / "run", commands.folder / "kept.pt"
    every = f"checkpoint_every={KEPT_EVERY[model]}"
    process = commands.start(*STRATEGIES[writer], *words, every, "epochs=1000")
    written = folder / "checkpoint.pt"
    until(lambda: written.exists() or process.poll() is not None, START, "the first checkpoint")
    assert process.poll() is None, commands.output()
    written.rename(file)
    commands.end()
    process.wait()
    checkpoint = torch.load(file, weights_only=True)
    done_steps = checkpoint["epoch"] * steps + checkpoint["step"]
    # In the middle of an epoch, or the test would test less.
    assert checkpoint["step"]
    go_on = commands.run(*STRATEGIES[reader], *words, f"resume={file}", "overwrite=true")
    assert go_on.returncode == 0, go_on.stderr
    resumed, expected = losses(folder), losses(whole(model))
    if writer == "ddp":
        # Its losses have drifted from the uninterrupted ones by rounding: `single` goes on from there, too.
        again = commands.run(*STRATEGIES["single"], *words, f"resume={file}", "overwrite=true")
        assert again.returncode == 0, again.stderr
        expected = {**expected, **losses(folder)}
    assert min(resumed) == done_steps + 1 and max(resumed) == 2 * steps
    early = range(done_steps + 1, done_steps + 1 + COMPARED[model])
    gaps = [abs(resumed[step] - expected[step]) / max(1, abs(expected[step])) for step in early]
    assert max(gaps) <= BOUND, gaps
    # Not because nothing changes: the checkpoint's steps had.
    assert abs(expected[done_steps + 1] - expected[1]) > 100 * BOUND


def test_any_checkpoint_that_is_kept_is_gone_on_from(commands, mnist: None) -> None:
    words = (
        "strategy=single",
        "model=cnn",
        "batch=32",
        "dataset.limit=640",
        "dataset.test_limit=100",
        *FIXED,
    )
    first = commands.run(*words, "checkpoint_every=6", "checkpoint_keep=3")
    assert first.returncode == 0, first.stderr
    folder, expected = commands.folder / "run", losses(commands.folder / "run")
    names = {"checkpoint.pt", "checkpoint-18.pt", "checkpoint-12.pt"}
    assert {path.name for path in folder.iterdir() if "checkpoint" in path.name} == names
    folder = folder.rename(commands.folder / "first")
    again = commands.run(*words, f"resume={folder / 'checkpoint-12.pt'}")
    assert again.returncode == 0, again.stderr
    assert losses(commands.folder / "run") == {step: expected[step] for step in range(13, 21)}


@pytest.mark.slow
def test_asynchronous_workers_begin_with_its_running_statistics(
    commands, whole: Callable[[str], Path]
) -> None:
    written = whole("resnet18")
    completed = commands.run(
        "strategy=parameter_server",
        "strategy.mode=async",
        *MODELS["resnet18"],
        *COMMON,
        *FIXED,
        f"resume={written / 'checkpoint.pt'}",
        "epochs=3",
        "evaluate_every=1",
        "optimizer.lr=0.0001",
        SCALEGUIDE_MAX_MINUTES="0.00001",
    )
    assert completed.returncode == 0, completed.stderr
    # After one step, of ten that BatchNorm takes to forget what it began with.
    before, after = (
        json.loads((folder / "metrics.json").read_text())["accuracy"]
        for folder in (written, commands.folder / "run")
    )
    assert after == pytest.approx(before, abs=0.1)


@pytest.mark.slow
def test_plain_torch_reads_it(whole: Callable[[str], Path]) -> None:
    written = whole("resnet18")
    checkpoint = torch.load(written / "checkpoint.pt", weights_only=True)
    assert (checkpoint["epoch"], checkpoint["step"], checkpoint["seed"], checkpoint["global_batch"]) == (
        2,
        0,
        0,
        32,
    )
    chosen = config("model=resnet18", *COMMON)
    data = load_arrays(chosen.dataset)
    model = adapt.build(chosen, classes=data.classes, shape=data.shape)
    model.load_state_dict(checkpoint["model"])
    mean, std = (torch.tensor(value).view(1, -1, 1, 1) for value in (data.mean, data.std))
    with torch.no_grad():
        model.eval()
        images = torch.tensor(data.test.inputs[0]).permute(0, 3, 1, 2)
        logits = model((images.float() / 255 - mean) / std)
        right = int((logits.argmax(1) == torch.tensor(data.test.targets[0])).sum())
    accuracy = json.loads((written / "metrics.json").read_text())["accuracy"]
    assert right / 1000 == pytest.approx(accuracy, abs=1.1e-3)


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (["seed=1"], ["seed 0", "this run has 1"]),
        (["batch=64"], ["global batch 32", "this run has 64"]),
        (["optimizer.name=adam", "epochs=3"], ["optimizer sgd", "optimizer.name=sgd"]),
        (["epochs=2"], ["2 epochs done", "choose epochs=3"]),
        (["model=mobilenet_v2", "epochs=3"], ["another model"]),
        (
            ["strategy=parameter_server", "strategy.mode=downpour", "epochs=3"],
            ["optimizer sgd", "updates by adagrad"],
        ),
    ],
    ids=["seed", "batch", "optimizer", "epochs", "model", "downpour"],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    commands, whole: Callable[[str], Path], words: list[str], fragments: list[str]
) -> None:
    resume = f"resume={whole('cnn') / 'checkpoint.pt'}"
    completed = commands.run(*MODELS["cnn"], *COMMON, *FIXED, resume, *words)
    assert completed.returncode == 2, completed.stderr
    (line,) = [line for line in completed.stderr.splitlines() if line.startswith("error")]
    assert all(fragment in line for fragment in fragments), line
    assert list(commands.folder.iterdir()) == []


def test_a_checkpoint_is_not_deleted_by_the_run_that_resumes_it(commands) -> None:
    checkpoint = commands.folder / "run" / "checkpoint.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"years of work")
    completed = commands.run(*MODELS["cnn"], *COMMON, *FIXED, f"resume={checkpoint}", "overwrite=true")
    assert (completed.returncode, len(completed.stderr.splitlines())) == (2, 1)
    assert "lies in out=run" in completed.stderr
    assert checkpoint.read_bytes() == b"years of work"


@pytest.mark.slow
def test_pretrained_weights_are_loaded_where_they_fit(commands, whole: Callable[[str], Path]) -> None:
    written = whole("resnet18")
    completed = commands.run(
        "model=resnet18",
        f"model.pretrained={written / 'checkpoint.pt'}",
        "model.stem=7x7",
        "batch=32",
        "dataset.limit=320",
        "dataset.test_limit=1000",
        *FIXED,
    )
    assert completed.returncode == 0, completed.stderr
    log = (commands.folder / "run" / "logs" / "rank-0.log").read_text()
    assert "with the seed's values: conv1.weight" in log
    pretrained, fresh = losses(commands.folder / "run"), losses(written)
    assert pretrained[1] < fresh[1]
