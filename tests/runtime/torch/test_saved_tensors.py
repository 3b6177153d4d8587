"""`saved_tensors_bytes` is what autograd holds at its most, as hooks on real trainings count it."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import yaml
from torch.nn import functional

from src.models import adapt
from src.runtime.torch import model_cost
from src.tasks.torch.classification import Classification
from tests.support import config, run_ranks

RUNS = {
    "gpipe": ("strategy=pipeline", "strategy.schedule=gpipe", "microbatches=4"),
    "gpipe-bf16": ("strategy=pipeline", "strategy.schedule=gpipe", "microbatches=4", "precision=bf16"),
    "1f1b": ("strategy=pipeline", "strategy.schedule=1f1b", "microbatches=4"),
    "split": ("strategy=model_split", "microbatches=4"),
    "whole": ("strategy=model_split", "microbatches=1"),
}
# Bytes of a batch's labels, which like its images are one tensor, of which micro-batches are parts.
LABELS = 32 * 8
TASK = Classification(classes=10, shape=(28, 28, 1), options={})
COMMON = ("workers=2", "model=cnn", "batch=32", "dataset.limit=64", "dataset.test_limit=64")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory, mnist: None) -> dict[str, list[dict[str, int]]]:
    """What each rank of each run says of its saved tensors, and what it held."""
    folder = tmp_path_factory.mktemp("saved")
    for name, words in RUNS.items():
        chosen = config(*words, *COMMON, "strategy.partition=layers")
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dataclasses.asdict(chosen)))
    files = [folder / f"{name}.yaml" for name in RUNS]
    run_ranks("tests.runtime.torch.saved_rank", [folder, *files], world=2, logs=folder, limit=120)
    return {
        name: [json.loads((folder / name / f"{rank}.json").read_text()) for rank in (0, 1)] for name in RUNS
    }


@pytest.mark.parametrize("name", RUNS)
def test_stages_hold_what_they_say(counted: dict[str, list[dict[str, int]]], name: str) -> None:
    for rank, figures in enumerate(counted[name]):
        assert figures["said"] == pytest.approx(figures["held"], abs=LABELS), rank


def test_a_pipeline_holds_more_than_one_micro_batch(counted: dict[str, list[dict[str, int]]]) -> None:
    said = {name: [figures["said"] for figures in ranks] for name, ranks in counted.items()}
    # All 4 micro-batches are one batch.
    assert said["gpipe"] == pytest.approx(said["whole"], abs=LABELS)
    # One at a time; of the first stage's images all.
    assert said["gpipe"][1] == pytest.approx(4 * said["split"][1], abs=LABELS)
    assert said["1f1b"][1] == said["split"][1]
    assert said["split"][0] < said["1f1b"][0] < said["gpipe"][0]
    assert said["gpipe-bf16"][0] < said["gpipe"][0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_whole_models_are_those_of_its_precision_and_grow_with_the_micro_batch(precision: str) -> None:
    torch.manual_seed(0)
    chosen = config("strategy=single", "model=resnet18", f"precision={precision}")
    model, bf16 = adapt.build(chosen, classes=10, shape=(28, 28, 1)), precision == "bf16"
    images = torch.randn(12, 1, 28, 28)
    measured = model_cost.measure(
        model, TASK, [images[:4]], [torch.zeros(4, dtype=torch.long)], autocast=bf16
    )
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False)
    with autocast, hooks:
        loss = functional.cross_entropy(model(images), torch.zeros(12, dtype=torch.long))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held = sum(storage.nbytes() for pointer, storage in saved.items() if pointer not in weights)
    assert loss.isfinite()
    said = measured["saved_tensor_bytes_fixed"] + 12 * measured["saved_tensor_bytes_per_sample"]
    assert said == pytest.approx(held, rel=1e-6)
