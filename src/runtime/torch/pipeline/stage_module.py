"""Train the stages of a cut model under Lightning, by the schedule that a strategy brings.

The model is traced and cut, and each rank keeps its stage. A training step is one run of the schedule over
the step's micro-batches, under manual optimisation: Lightning's own closure would clear the gradients after
the schedule has computed them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import SupportsFloat

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from src.compat.torch import gathered_parameters
from src.config.run_config import MESH
from src.config.schedules import SCHEDULES
from src.measure.live_step import LiveBytes
from src.measure.recorder import Recorder
from src.measure.timeline import Timeline
from src.models.torch.unchanged import evaluating
from src.partition import plan as planning
from src.partition import plan_table
from src.partition.saved_tensors import SavedTensors, most_bytes
from src.partition.schedules import tables
from src.partition.torch import export
from src.partition.torch.graph import operations
from src.partition.torch.saved_tensors import saved_by_stage
from src.partition.torch.stage import RankStages, Stage, receive_buffers
from src.run import files
from src.runtime.common.context import RankContext
from src.runtime.torch import (
    checkpoint,
    compilation,
    copies,
    freed_memory,
    model_cost,
    model_look,
    predicted_memory,
    process_group,
    setup,
    shards,
)
from src.runtime.torch import mesh as axes
from src.runtime.torch.checkpoint import RankState
from src.runtime.torch.feed import Batch, Feed
from src.runtime.torch.lightning.data_parallel import buffers_of_first
from src.runtime.torch.lightning.fit import cluster_environment, fit_module
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.lightning.parts_strategy import PartsStrategy
from src.runtime.torch.mesh import Axis
from src.runtime.torch.pipeline import cutting
from src.runtime.torch.pipeline.stage_evaluation import StageEvaluation
from src.runtime.torch.pipeline.stage_parts import StageParts
from src.runtime.torch.pipeline.stage_shards import StageShards
from src.runtime.torch.pipeline.tied_weights import TiedWeights
from src.runtime.torch.pipeline.timed_stage import RECOMPUTES, TimedStage
from src.runtime.torch.tensors import Tensors, target_tensors
from src.tasks.torch.outputs import model_outputs

ScheduleFactory = Callable[
    [Sequence[TimedStage], int, Callable[..., Tensor]], PipelineScheduleSingle | PipelineScheduleMulti
]


class ArrivingNumber:
    """A number that another rank sends, converted by `float`, which waits for its arrival."""

    def __init__(self, value: Tensor, sender: int, stages: Axis) -> None:
        """Begin to broadcast `value` [] from the rank `sender` of `stages`; all do so at the same step."""
        self._value = value
        self._work = dist.broadcast(value, sender, group=stages.group, async_op=True)

    @property
    def arrived(self) -> bool:
        """Return whether `float` wouldn't wait."""
        return self._work is None or self._work.is_completed()

    def __float__(self) -> float:
        if self._work is not None:
            self._work.wait()
            self._work = None
        return float(self._value)


def train_stages(
    context: RankContext, recorder: Recorder, schedule: ScheduleFactory, *, overlaps: bool
) -> None:
    """Cut the seeded model, keep this rank's stages, and train them under `schedule`.

    Args:
        context: the rank's context.
        recorder: the rank's recorder.
        schedule: makes torch's schedule from (the rank's stages, number of micro-batches, loss function).
        overlaps: whether stages work at the same time, by which the plan predicts a step's time.

    Raises:
        ConfigError: when the model can't be cut as the configuration asks.
    """
    train_module(context, recorder, functools.partial(StageModule, schedule=schedule, overlaps=overlaps))


def train_module(context: RankContext, recorder: Recorder, make: Callable[..., StageModule]) -> None:
    """Train the module of a rank's stages that `make` makes, as `StageModule` is made.

    Raises:
        ConfigError: when the model can't be cut as the configuration asks.
    """
    device = setup.root_device(context)
    process_group.join(context, setup.process_group_backend(context))
    export.load()
    setup.prepare_process(context)
    if context.config.degrees.shard > 1:
        freed_memory.return_blocks()
    mesh = axes.make(context, device) if context.config.supports.axis == MESH else None
    module = make(context, recorder, device=device, mesh=mesh)
    strategy = PartsStrategy(
        parallel_devices=[device] * context.world_size, cluster_environment=cluster_environment()
    )
    evaluating = functools.partial(
        buffers_of_first, axes=[axes.axis(mesh, name) for name in ("shard", "data")] if mesh else []
    )
    fit_module(context, recorder, strategy, module, evaluating)
    module.timeline.write(recorder.folder / files.TIMELINE)


def _flops(model: nn.Module, inputs: Tensors) -> float:
    """Return the FLOPs of a model for one sample, counted on a few of `inputs` if it takes so many."""
    try:
        return model_cost.flops(model, [tensor[:4] for tensor in inputs])
    except RuntimeError:
        # A model that asks for a batch's size in Python (`len`) is a graph of that size alone.
        return model_cost.flops(model, inputs)


class StageModule(TrainingModule):
    """The stages of a rank under Lightning.

    Attributes:
        model: the stage, or the `RankStages`.
        first, last: whether this rank has the first stage, and whether it has the last one, which computes
            the loss.
        timeline: records the rank's activities.
    """

    prefix = "part."

    def __init__(
        self,
        context: RankContext,
        recorder: Recorder,
        *,
        device: torch.device,
        schedule: ScheduleFactory | None = None,
        overlaps: bool = True,
        mesh: DeviceMesh | None = None,
    ) -> None:
        """Build, trace and cut the whole model, and keep this rank's stages on `device`.

        The arguments are those of `train_stages`, which says what is raised. Without a schedule a subclass
        runs the stages itself.
        """
        options = planning.CutOptions.of(context.config)
        stages = axes.whole_world(context) if mesh is None else axes.axis(mesh, "pipeline")
        whole = setup.build(context).to(device)
        parameters, state = sum(p.numel() for p in whole.parameters()), whole.state_dict()
        cutting.check_batchnorm(context, whole)
        inputs = cutting.example_inputs(context, context.config.microbatch, device)
        seen = model_look.facts(whole, inputs, precision=context.config.precision)
        # A graph of split layers is a part of the model.
        flops = _flops(whole, inputs) if context.config.degrees.tensor > 1 else None
        parts = StageParts(context, whole, mesh, recorder, device)
        graph = operations(whole, inputs, setup.make_task(context).outputs, tied=options.tied)
        parts.check(graph)
        plan = cutting.make_plan(context, graph, inputs, stages, overlaps=overlaps)
        recorder.note("\n".join(filter(None, [parts.shown, plan_table.show(plan)])))
        flops = flops or _flops(graph.module, inputs)
        ends = [0, *plan.boundaries, len(graph.operations)]
        placed = plan.devices or list(range(stages.size))
        numbers = [number for number, place in enumerate(placed) if place == stages.index]
        spans = [(ends[number], ends[number + 1]) for number in numbers]
        precision = context.config.precision
        values = graph.values(inputs, precision=precision)
        own = {
            number: Stage.of(graph, *span, values, plan.stages[number].again)
            for number, span in zip(numbers, spans, strict=True)
        }
        stage = own[numbers[0]] if len(own) == 1 else RankStages(graph.stages(spans), list(own.values()))
        super().__init__(context, stage)
        self.automatic_optimization = False
        self._recorder, self.parts = recorder, parts
        self.tied = checkpoint.tied_names(whole)
        self._tied_weights = TiedWeights(graph, plan.boundaries, placed, stages, recorder)
        self.unstaged = {name: state[name] for name in state.keys() - graph.module.state_dict().keys()}
        self.first, self.last = 0 in own, len(placed) - 1 in own
        self._loss_rank = stages.ranks[placed[-1]]
        self.stages = stages
        self.copies = None if mesh is None else axes.axis(mesh, "data")
        self.timeline = Timeline(first=context.config.hardware.warmup_steps, clock=recorder)
        self._own, self._timed = own, list[TimedStage]()
        if schedule is not None:
            self._timed = [
                TimedStage(
                    each,
                    (number, len(placed)),
                    stages,
                    device,
                    inputs,
                    timeline=self.timeline,
                    recorder=recorder,
                    recomputes=RECOMPUTES[options.recompute],
                    splits=options.schedule is not None and SCHEDULES[options.schedule].splits,
                )
                for number, each in own.items()
            ]
            self._schedule = schedule(self._timed, context.config.microbatches, self._marked_loss)
        self._divisor = 1.0
        self._step_targets: Tensors = ()
        self._evaluation = StageEvaluation(
            context, self.task, whole, graph, plan.boundaries, placed, stages, device
        )
        received = {
            number: receive_buffers(each.received, device) if number else inputs
            for number, each in own.items()
        }
        with compilation.without(context):
            few = context.arrays.train.read(slice(context.config.microbatch)).targets
            targets = target_tensors(self.task, few, device)
            saved = {
                number: saved_by_stage(each, received[number], self.task, targets, precision=precision)
                for number, each in own.items()
            }
        self._example: Tensors = received[numbers[0]]
        # The first copy's first ranks of each stage: ranks are counted along this axis last.
        self.holders = range(0, context.world_size, context.world_size // stages.size)
        chosen = sum(plan.stages[number].saved_bytes for number in numbers)
        # These are of the whole model, except the saved tensors, which are this stage's.
        self.whole_facts = {
            "parameters": parameters,
            "flops_per_sample": flops,
            "saved_tensors_bytes": round(chosen or self._most_saved(saved)),
            **seen,
        }
        sharded = mesh is not None and mesh["shard"].size() > 1
        only = own[numbers[0]]
        self.shards = StageShards(only, mesh, recorder) if mesh is not None and sharded else None
        parts.settle(only, self._tied_weights)
        del whole, graph, state
        setup.release()
        if self.shards is not None:
            self.shards.keep_blocks_of_a_step()

    def _most_saved(self, saved: Mapping[int, SavedTensors]) -> float:
        """Return the most bytes that the rank's stages save at once; `saved` has those of one micro-batch."""
        options, microbatches = planning.CutOptions.of(self.context.config), self.context.config.microbatches
        order = tables.table(options.schedule, self.stages.size, len(saved), microbatches)[self.stages.index]
        return most_bytes(order, saved, microbatches, options.recompute)

    def warm_up(self, feed: Feed) -> None:
        """Compile the only stage for a micro-batch, if that is configured."""
        compilation.warm_up(self.context, self.model, self._example)
        self._example = ()

    def held_tensors(self) -> Mapping[str, Sequence[Tensor]]:
        """Return what the stages receive into, and what sharded parameters are gathered into."""
        received = [buffer for stage in self._timed for buffer in stage.buffers()]
        return {"exchange": [*received, *gathered_parameters(self.model)]}

    def predicted_memory(self, strategy: Strategy, device: torch.device) -> LiveBytes:
        """Predict the live tensors of a step on `device`.

        Raises:
            NotImplementedError: where layers are sharded or split.
        """
        degrees = self.context.config.degrees
        if degrees.shard > 1 or degrees.tensor > 1:
            raise NotImplementedError("stages that are sharded, or whose layers are split, aren't predicted")
        place = self.stages.index, self.stages.size
        return predicted_memory.of_stages(self.context, self._own, self.model, self.task, device, place)

    def feed(self, recorder: Recorder, device: torch.device) -> Feed:
        """Make a feed of whole batches: inputs for the first stage, and targets for the last stage."""
        return Feed(self.context, recorder, device, self.task, parts=1, inputs=self.first, targets=self.last)

    def _marked_loss(self, returned: Tensor | tuple[Tensor, ...], places: Tensor) -> Tensor:
        """Return the loss [] of a micro-batch with these `places` [samples] in the step's batch."""
        self.timeline.mark("loss", self.timeline.microbatch)
        rows = slice(int(places[0]), int(places[-1]) + 1)
        targets = tuple(tensor[rows] for tensor in self._step_targets)
        return self.loss(model_outputs(returned), targets, self._divisor)

    def training_step(self, batch: Batch, _: int) -> None:
        """Run the schedule over one batch, and take the rank's optimizer step."""
        self._step_targets, self._divisor = batch.targets or (), batch.divisor
        optimizer = self.optimizers()
        assert isinstance(optimizer, pl.core.optimizer.LightningOptimizer)
        optimizer.zero_grad()
        # torch's schedules divide one tensor of targets; there may be several, so it is their places.
        places = torch.arange(len(self._step_targets[0])) if self.last else None
        self._schedule.step(*(batch.inputs or ()), target=places, return_outputs=False)
        if not self._schedule.scale_grads:
            self._settle_gradients()
        self._average()
        if self._tied_weights.here:
            # Last, so that all that hold a weight have the same bits: an average's rounding depends on where
            # in a bucket a gradient lies.
            self.timeline.mark("wait")
            self._tied_weights.sum_gradients()
        if (limit := self.context.config.optimizer["clip_norm"]) is not None:
            self.timeline.mark("wait")
            if self.shards is None:
                shards.clip(self.parameters(), limit, self._sum_over_stages, self._counts)
            else:
                self.shards.gradients.clip(limit, self._sum_over_stages)
        self.timeline.mark("optimizer")
        optimizer.step()
        self.timeline.end_step()

    def _settle_gradients(self) -> None:
        """Make sums over micro-batches means, in the parameters' layouts, which exchanges rely on.

        A backward pass for weights alone leaves the layout in which autograd has computed them: that of
        `weight.t()` is another one than the weight's.
        """
        for parameter in self.parameters():
            if (gradient := parameter.grad) is None:
                continue
            gradient.div_(self.context.config.microbatches)
            if gradient.layout is torch.strided and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)

    def _average(self) -> None:
        """Average the stage's gradients over its copies; of shards those that aren't averaged yet."""
        if self.shards is not None:
            self.shards.gradients.average_kept()
            return
        if self.copies is None or self.copies.size == 1:
            return
        self.timeline.mark("wait")
        gradients = [shards.local(each.grad) for each in self.parameters() if each.grad is not None]
        bucket_bytes = self.context.config.strategy["bucket_mb"] * 2**20
        copies.average(gradients, self.copies, self._recorder, bucket_bytes)

    def _sum_over_stages(self, squares: Tensor) -> Tensor:
        """Return the sum of all stages' `squares` []; all of them call this method at the same step."""
        # A stage without parameters has its zero on the CPU.
        squares = squares.to(self.device)
        dist.all_reduce(squares, group=self.stages.group)
        return self.parts.sum(squares)

    def _counts(self, parameter: Tensor) -> bool:
        """Return whether this rank counts a parameter's gradient in the model's norm."""
        return self.parts.counts(parameter) and self._tied_weights.counts(parameter)

    def take_sums(self) -> Tensor:
        """Return `sums` on the first rank that shares the stages, and zeros on others; begin them anew."""
        sums = super().take_sums()
        return sums if self.parts.first else torch.zeros_like(sums)

    def take_loss(self) -> SupportsFloat:
        """Return the last stage's mean loss on every rank, as a number that is still being sent."""
        loss = super().take_loss() if self.last else torch.zeros((), device=self.device)
        assert isinstance(loss, Tensor)
        return ArrivingNumber(loss.to(self.device, torch.float64), self._loss_rank, self.stages)

    def evaluate(self, device: torch.device) -> Tensor:
        """Pass this copy's part of the test set through all stages; return sums as `scoring.test_sums` does.

        The last stage scores, on the first rank that shares it; the other ranks return zeros.
        """
        with evaluating(self.model), self.shards.gathered() if self.shards else contextlib.nullcontext():
            found = self._evaluation.run(device)
        return found if self.parts.first else torch.zeros_like(found)

    def rank_states(self, optimizer: torch.optim.Optimizer) -> list[RankState] | None:
        """Gather the whole model's tensors on rank 0, shards and parts first; return `None` on others."""
        if self.shards is None and not self.parts.shared:
            return super().rank_states(optimizer)
        holds = self.context.rank in self.holders
        with self.shards.blocks_returned() if self.shards else contextlib.nullcontext():
            state = checkpoint.gathered_state(
                self.model, optimizer, self.context.folder, prefix=self.prefix, keeps=holds
            )
        return self.joined_states(state if holds else None)
