"""Profile a model's operations in the place of a training: what the stages of any cut of it would cost.

Measured are each operation's passes by itself, and a whole step of the uncut model, which tells what
operations gain side by side. Several processes may measure at once, as stages on one host share its memory.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from statistics import median

import torch
from torch import nn

from src.measure.recorder import Recorder
from src.partition import plan as planning
from src.partition.torch import cost, export
from src.partition.torch.graph import operations
from src.run import files
from src.run.status import Status
from src.run.tables import write_text
from src.runtime.common.context import RankContext
from src.runtime.common.rehearsed import rehearsed
from src.runtime.torch import rehearsal, scoring, setup, update_rule
from src.runtime.torch.pipeline import cutting
from src.runtime.torch.tensors import first_samples
from src.tasks.torch.outputs import autocast

ROUNDS, WARMUP = 9, 2


def train(context: RankContext, recorder: Recorder) -> None:
    """Profile in the place of a training.

    Raises:
        ConfigError: when the model can't be cut.
    """
    config, _ = rehearsed(context.config)
    own = dataclasses.replace(context, config=config, rank=0, world_size=config.workers)
    device = setup.root_device(own)
    export.load()
    setup.prepare_process(own)
    whole = setup.build(own).to(device)
    cutting.check_batchnorm(own, whole)
    inputs = cutting.example_inputs(own, config.microbatch, device)
    graph = operations(whole, inputs, setup.make_task(own).outputs, tied=planning.CutOptions.of(config).tied)
    profile = graph.profile(graph.values(inputs, precision=config.precision))
    rehearsal.together(context)
    steps = _steps(own, graph.module, device)
    costs = cost.costs(graph, inputs, precision=config.precision, splits=True)
    rehearsal.together(context)
    # A stage whose neighbours wait has the host's memory to itself.
    alone = _steps(own, graph.module, device) if context.rank == 0 else None
    found = {
        "model": dataclasses.asdict(profile),
        "costs": {key: each.tolist() for key, each in dataclasses.asdict(costs).items()},
        "step": steps,
        "alone": alone,
    }
    write_text(recorder.folder / files.REHEARSAL, json.dumps(found))
    recorder.finish(Status.OK)


def _steps(context: RankContext, model: nn.Module, device: torch.device) -> dict[str, float]:
    """Return the median seconds of a whole step's parts, of one micro-batch."""
    config = context.config
    inputs, targets = first_samples(context, setup.make_task(context), config.microbatch, device)
    task = setup.make_task(context)
    optimizer = update_rule.make_optimizer(config.optimizer, list(model.parameters()))
    rows: dict[str, list[float]] = {}
    for number in range(ROUNDS + WARMUP):
        marks: list[tuple[str, float]] = [("", _now(device))]

        def mark(name: str, marks: list[tuple[str, float]] = marks) -> None:
            marks.append((name, _now(device)))

        with autocast(config.precision, device):
            returned = model(*inputs)
            mark("forward")
            loss = scoring.training_sums(task, task.outputs(returned), targets, 1.0)[0]
        mark("loss")
        loss.backward()
        mark("backward")
        optimizer.step()
        mark("update")
        optimizer.zero_grad()
        mark("clear")
        for (_, begin), (name, end) in itertools.pairwise(marks):
            if number >= WARMUP:
                rows.setdefault(name, []).append(end - begin)
    return {name: median(each) for name, each in rows.items()}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
