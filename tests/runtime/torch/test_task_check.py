"""What is looked at before the start: a task's loss, sums and metrics, and a model's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from src.config import ConfigError
from src.data.generated import synthetic
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.task_check import check_task
from src.tasks.torch.classification import Classification
from tests.support import config

IMAGES = {"shape": [28, 28, 1], "classes": 3, "samples": 32, "test_samples": 4, "source": "generated"}


def context_in(folder: Path, *words: str) -> RankContext:
    chosen = config("strategy=single", "batch=16", *words)
    return RankContext(chosen, 0, 1, synthetic.make({**IMAGES, "generator_seed": 0}), folder, (0,))


class Mean(Classification):
    def loss(self, outputs: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
        return super().loss(outputs, targets).expand(2)


class TwoSums(Classification):
    sums = ("correct", "wrong")


class Unscored(Classification):
    def metrics(self, sums: Any, samples: int) -> dict[str, float]:
        return {"error": 1.0}


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Mean, r"its loss must be one number, the sum, and has the shape \[2\]$"),
        (TwoSums, r"its score must be 2 sums, and has \[1\]$"),
        (Unscored, "its file lists the metric accuracy, and it gives error$"),
    ],
)
def test_a_task_that_is_not_what_it_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: type[Classification], told: str
) -> None:
    context = context_in(tmp_path, "model=mlp")
    model = setup.build(context)
    check_task(context, model)
    made = task(classes=3, shape=(28, 28, 1), options={})
    monkeypatch.setattr(setup, "make_task", lambda context: made)
    with pytest.raises(ConfigError, match=f"^task=classification: {told}"):
        check_task(context, model)


def test_a_layout_that_a_model_cannot_have_is_told(tmp_path: Path) -> None:
    notes: list[str] = []
    path = "bench.models.view_after_convolution.build"
    setup.build(context_in(tmp_path, "model=custom", f"model.path={path}"), notes.append)
    (note,) = notes
    assert note.startswith(
        "note: the model runs in contiguous layout, for in channels_last, the faster one, "
    )
    assert "view size is not compatible" in note
