"""What is looked at before the start: a task's loss, sums and metrics, and a model's layout."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from src.config import ConfigError
from src.data.generated import synthetic
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.sharding.sharded_module import ShardedModule
from src.runtime.torch.task_check import check_task
from src.runtime.torch.tensors import input_tensors
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


def bound(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.grad.clamp_(-1e-3, 1e-3)


class Own(nn.Module):
    """A dense layer, with something of its own that `kind` names."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.head, self.kind = nn.Linear(784, 3), kind
        self.calls, self.generator, self.cached = {"n": 0}, torch.Generator().manual_seed(0), 0
        self.mean = torch.zeros(())
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        if kind == "clamp":
            self.head.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        elif kind == "later":
            self.head.weight.register_post_accumulate_grad_hook(bound)
        elif kind == "mask":
            mask = torch.ones(3, 784).tril()
            self.head.weight.register_hook(lambda gradient: gradient * mask)
        elif kind == "double":
            self.head.double()

    def forward(self, images: Tensor) -> Tensor:
        hidden = images.flatten(1)
        if self.kind == "count":
            self.calls["n"] += 1
        elif self.kind == "draw":
            torch.rand((), generator=self.generator)
        elif self.kind == "buffer":
            self.seen += 1
        elif self.kind == "running":
            self.mean = 0.9 * self.mean + hidden.detach().mean()
        elif self.kind == "last":
            self.last = hidden.detach() + torch.rand(())
        elif self.kind == "cache":
            self.cached = len(hidden)
        return self.head(hidden.to(self.head.weight.dtype)).float()


def tried(folder: Path, kind: str, *words: str) -> list[str]:
    """The notes on a model of that kind."""
    notes: list[str] = []
    check_task(context_in(folder, "model=mlp", "workers=1", *words), Own(kind), notes.append)
    return notes


@pytest.mark.parametrize(
    ("kind", "kept"),
    [("count", r"calls\['n'\]"), ("draw", "generator"), ("buffer", "seen"), ("running", "mean")],
)
def test_what_no_checkpoint_has_is_refused_where_there_are_some(kind: str, kept: str, tmp_path: Path) -> None:
    assert tried(tmp_path, kind) == []
    with pytest.raises(ConfigError, match=f"^checkpoint_every=2: the model keeps {kept} of its steps"):
        tried(tmp_path, kind, "checkpoint_every=2")


@pytest.mark.parametrize("kind", ["cache", "last"])
def test_what_each_step_makes_anew_is_no_state(kind: str, tmp_path: Path) -> None:
    assert tried(tmp_path, kind, "checkpoint_every=2") == []


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [
        ("mask", ("strategy=fsdp",), "head.weight has a hook, which its parts on several devices haven't"),
        ("clamp", ("strategy=parameter_server",), "head.weight has a hook that isn't linear, and would take"),
        ("clamp", ("strategy=pipeline", "microbatches=4"), "head.weight has a hook that isn't linear"),
        ("later", ("strategy=pipeline", "microbatches=4"), "head.weight has a hook that isn't linear"),
        ("double", ("strategy=hogwild",), "head.weight is of torch.float64, and servers have all of them in"),
    ],
)
def test_what_parts_of_a_batch_or_of_a_weight_would_not_do_is_refused(
    kind: str, words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        tried(tmp_path, kind, *words, "workers=2")


def test_a_hook_that_is_as_under_ddp_is_noted(tmp_path: Path) -> None:
    assert tried(tmp_path, "mask", "strategy=ddp", "workers=2") == []
    (note,) = tried(tmp_path, "clamp", "strategy=ddp", "workers=2")
    assert note.startswith("note: the hook of head.weight isn't linear")
    assert tried(tmp_path, "clamp") == []


class Counter:
    """An object of the user's, which no look can put back."""

    passes = 0


class Experts(nn.Module):
    """Chooses a layer by each sample."""

    built: ClassVar[list[Experts]] = []

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.counter = nn.ModuleList(nn.Linear(784, 3) for _ in range(2)), Counter()
        self.built.append(self)

    def forward(self, images: Tensor) -> Tensor:
        self.counter.passes += 1
        rows = images.flatten(1)
        chosen = rows.mean(1) > float(FIRST_MEAN)
        found = rows.new_zeros(len(rows), 3)
        for expert, own in zip(self.experts, (chosen, ~chosen), strict=True):
            if own.any():
                found[own] = expert(rows[own])
        return found


# Of the first two samples one is brighter than this.
FIRST_MEAN = torch.zeros(())


def test_a_look_at_single_samples_finds_experts_and_leaves_the_model_that_is_trained_alone(
    tmp_path: Path,
) -> None:
    context = context_in(tmp_path, "model=custom", f"model.path={__name__}.Experts")
    (inputs,) = input_tensors(context, context.arrays.train.read(slice(2)).inputs, torch.device("cpu"))
    FIRST_MEAN.fill_(float(inputs.flatten(1).mean(1).mean()))
    model = setup.build(context)
    passes = model.counter.passes
    reached, always = setup.reached_parameters(context, model, torch.device("cpu"))
    assert len(reached) == 4 and not always
    assert model.counter.passes == passes and Experts.built[-1] is not model
    Experts.built.clear()


def test_a_step_that_uses_other_shards_than_the_first_one_ends_the_run() -> None:
    weights = {name: nn.Parameter(torch.ones(1)) for name in ("used", "unused")}
    weights["used"].grad = torch.ones(1)
    model = SimpleNamespace(named_parameters=weights.items)
    context = SimpleNamespace(config=SimpleNamespace(strategy={"name": "fsdp"}))
    module: Any = SimpleNamespace(_reached={"used"}, _checked=[], model=model, context=context)
    check = ShardedModule._check_gradients
    check(module)
    weights["unused"].grad = torch.ones(1)
    with pytest.raises(ConfigError, match="unused gets a gradient in this step, unlike in others"):
        check(module)
    weights["unused"].grad = weights["used"].grad = None
    with pytest.raises(ConfigError, match="used gets no gradient in this step, unlike in others"):
        check(module)
    module._checked.clear()
    with pytest.raises(ConfigError, match="used gets no gradient once it is sharded"):
        check(module)
