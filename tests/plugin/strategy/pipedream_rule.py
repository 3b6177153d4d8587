"""PipeDream's rule in one process: the whole model, each stage's weights of the version that the rule names.

Nothing here passes a stage, a version or a gradient on: all versions of all weights are kept, and a
micro-batch's forward and backward passes are those of one model that is put together for it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pytorch_lightning.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.func import functional_call

from src.measure.recorder import Recorder
from src.partition.balance import by_share
from src.partition.torch import export
from src.partition.torch.graph import operations
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.feed import Batch, Feed
from src.runtime.torch.lightning import fit
from src.runtime.torch.pipeline import cutting


def train(context: RankContext, recorder: Recorder) -> None:
    """Trains stages of as many operations each, as `partition=layers` cuts them."""
    setup.prepare_process(context)
    model, device = setup.build(context), setup.root_device(context)
    module = make(context, model, stages_of(context, model))
    fit.fit_module(context, recorder, SingleDeviceStrategy(device=device), module)


def stages_of(context: RankContext, model: nn.Module) -> Mapping[str, int]:
    """The stage of each parameter by its name."""
    export.load()
    device = setup.root_device(context)
    inputs = cutting.example_inputs(context, context.config.microbatch, device)
    graph = operations(model, inputs, setup.make_task(context).outputs)
    boundaries = by_share(len(graph.operations), [1.0] * context.config.strategy["stages"])
    held = graph.holders(boundaries)
    return {name: min(held[id(each)]) for name, each in model.named_parameters()}


def make(context: RankContext, model: nn.Module, stages: Mapping[str, int]) -> fit.TrainingModule:
    """Whatever takes the place of the module of a whole model is what this one extends."""
    options, micro = context.config.strategy, context.config.microbatches

    def updates_seen(stage: int, microbatch: int) -> int:
        """Those that the stage has made before the micro-batch comes; some are under way behind it."""
        if options["stash"] == "two":
            return max(0, microbatch // micro - 1)
        reached = 0 if options["vertical_sync"] else stage
        finished = max(0, microbatch - (options["stages"] - reached - 1))
        return finished // micro

    class Rule(fit.TrainingModule):
        def __init__(self) -> None:
            super().__init__(context, model)
            self.automatic_optimization = False
            self.history: list[dict[str, Tensor]] = []
            self.begun = self.steps = 0

        def feed(self, recorder: Recorder, device: torch.device) -> Feed:
            return Feed(context, recorder, device, self.task, parts=1)

        def training_step(self, batch: Batch, _: int) -> None:
            if not self.history:
                self.history = [self.copied()]
            optimizer = self.optimizers()
            optimizer.zero_grad()
            pieces = [each.chunk(micro) for each in (*batch.inputs, *batch.targets)]
            for *inputs, targets in zip(*pieces, strict=True):
                seen = {
                    name: self.history[updates_seen(stages[name], self.begun)][name]
                    .clone()
                    .requires_grad_(each.requires_grad)
                    for name, each in self.model.named_parameters()
                }
                outputs = self.task.outputs(functional_call(self.model, seen, tuple(inputs)))
                self.loss(outputs, (targets,), batch.divisor).backward()
                for name, each in self.model.named_parameters():
                    if seen[name].grad is not None:
                        part = seen[name].grad / micro
                        each.grad = part if each.grad is None else each.grad + part
                self.begun += 1
            optimizer.step()
            self.history.append(self.copied())
            self.steps += 1
            every = context.config.checkpoint_every
            if every is not None and self.steps % every == 0:
                # The pipeline is empty.
                self.history, self.begun = [], 0

        def copied(self) -> dict[str, Tensor]:
            return {name: each.detach().clone() for name, each in self.model.named_parameters()}

    return Rule()
