"""A module of Lightning's, a parameter server's worker and a stage have one loss and one score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from src.data.generated import synthetic
from src.partition.torch.graph import operations
from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.feed import Batch
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.mesh import Axis
from src.runtime.torch.parameter_server.replica import Replica
from src.runtime.torch.pipeline.stage_evaluation import StageEvaluation
from src.runtime.torch.tensors import input_tensors, target_tensors
from src.tasks.torch.outputs import autocast
from tests.support import config

CPU = torch.device("cpu")
IMAGES = {"shape": [28, 28, 1], "classes": 10, "samples": 64, "test_samples": 40, "source": "generated"}


def context_in(folder: Path, precision: str) -> RankContext:
    chosen = config("model=cnn", "batch=32", f"precision={precision}")
    return RankContext(chosen, 0, 1, synthetic.make({**IMAGES, "generator_seed": 0}), folder, (0,))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_worker_has_the_loss_sums_and_gradient_of_a_lightning_module(
    tmp_path: Path, precision: str
) -> None:
    context = context_in(tmp_path, precision)
    module, replica = TrainingModule(context, setup.build(context)), Replica(context)
    indices = np.arange(32)
    samples = context.arrays.train.read(slice(32))
    batch = Batch(
        input_tensors(context, samples.inputs, CPU), target_tensors(module.task, samples.targets, CPU), 32.0
    )
    with autocast(precision, CPU):
        loss = module.training_step(batch, 0)
    assert loss is not None
    loss.backward()
    gradient, own_loss, own_sums = replica.gradient(indices, 0, 32.0)
    expected = torch.cat([p.grad.reshape(-1) for p in module.model.parameters() if p.grad is not None])
    assert torch.allclose(gradient, expected, rtol=1e-6, atol=1e-8)
    assert own_loss == pytest.approx(float(module.take_loss()), rel=1e-6)
    assert own_sums == module.take_sums()[3:].tolist()


def test_all_score_the_test_set_alike_and_draw_the_same_picture(tmp_path: Path) -> None:
    context = context_in(tmp_path, "bf16")
    module, replica = TrainingModule(context, setup.build(context)), Replica(context)
    images = input_tensors(context, context.arrays.test.read(slice(4)).inputs, CPU)
    whole = setup.build(context)
    graph = operations(whole, images)
    staged = StageEvaluation(context, module.task, whole, graph, [], [0], Axis(0, (0,), None), CPU)

    def of_stage() -> Tensor:
        with torch.no_grad():
            return staged.run(CPU)

    pictures = []
    scores = []
    for score in (
        lambda: module.evaluate(CPU),
        lambda: torch.from_numpy(replica.score(0, context.arrays.test_samples)),
        of_stage,
    ):
        scores.append(score())
        pictures.append((tmp_path / files.PREDICTIONS).read_bytes())
        (tmp_path / files.PREDICTIONS).unlink()
    assert module.model.training and replica.model.training
    loss, divisor, samples, correct = scores[0].tolist()
    assert samples == divisor == context.arrays.test_samples and 0 <= correct <= samples and loss > 0
    assert all(torch.equal(each, scores[0]) for each in scores)
    assert len(set(pictures)) == 1
