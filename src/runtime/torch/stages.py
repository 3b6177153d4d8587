"""Stages under Lightning: what every strategy that cuts the model shares.

A strategy's file brings a schedule; here the model is traced and cut, each rank keeps its stage, and a
training step is one run of the schedule over the step's micro-batches, under manual optimisation:
Lightning's own closure would clear the gradients after the schedule has made them.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import ParallelStrategy
from torch import Tensor
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from src.data import order
from src.measure import memory
from src.measure.recorder import Recorder
from src.measure.timeline import Timeline
from src.partition import cost as measured
from src.partition import plan as planning
from src.partition.graph import Graph, operations
from src.partition.stage import Stage, buffers, wires
from src.runtime.torch import checkpoint, cost, cutting
from src.runtime.torch import training as runtime
from src.runtime.torch.basics import sums
from src.runtime.torch.feed import Batch, Feed, to_inputs
from src.runtime.torch.module import Training
from src.runtime.torch.pipeline_stage import CHECKPOINT, TimedStage
from src.worker import Run

ScheduleFactory = Callable[[TimedStage, int, Callable[..., Tensor]], PipelineScheduleSingle]
# Evaluation batches that a stage may be ahead of the next one.
AHEAD = 2


class StageStrategy(ParallelStrategy):
    """A Lightning strategy whose ranks hold one stage each; Lightning itself moves nothing between them."""

    @property
    def root_device(self) -> torch.device:
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank]

    def model_to_device(self) -> None:
        assert self.model is not None
        self.model.to(self.root_device)

    def reduce(self, tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    def barrier(self, name: str | None = None) -> None:
        dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        told = [obj]
        dist.broadcast_object_list(told, src)
        return told[0]


def train(run: Run, recorder: Recorder, schedule: ScheduleFactory, *, overlaps: bool) -> None:
    """Cuts the seeded model, keeps this rank's stage, and trains it under `schedule`.

    Args:
        run: the rank's run.
        recorder: the rank's recorder.
        schedule: makes torch's schedule from (stage, micro-batches, loss function).
        overlaps: whether stages work at the same time, for the predicted step.

    Raises:
        ConfigError: when the model can't be cut as asked.
    """
    device = runtime.root_device(run)
    nccl = device.type == "cuda" and not run.config.hardware["share_devices"]
    if not dist.is_initialized():
        dist.init_process_group("nccl" if nccl else "gloo")
    runtime.begin(run)
    module = StageTraining(run, recorder, schedule, overlaps=overlaps, device=device)
    strategy = StageStrategy(
        parallel_devices=[device] * run.world_size, cluster_environment=runtime.environment()
    )
    runtime.fit_module(run, recorder, strategy, module)
    module.timeline.write(recorder.folder / "timeline.json")


class StageTraining(Training):
    """One stage under Lightning; `self.model` is the stage, and the loss is made by the last one."""

    prefix = "part."

    def __init__(
        self, run: Run, recorder: Recorder, schedule: ScheduleFactory, *, overlaps: bool, device: torch.device
    ) -> None:
        whole = runtime.build(run).to(device)
        parameters = sum(p.numel() for p in whole.parameters())
        cutting.check_batchnorm(run, whole)
        inputs = cutting.example(run, run.config.microbatch, device)
        graph = operations(whole, inputs)
        plan = cutting.make_plan(run, graph, inputs, overlaps=overlaps)
        recorder.note(planning.show(plan))
        flops = cost.flops(graph.module, inputs[:4])
        ends = [0, *plan.boundaries, len(graph.operations)]
        start, stop = ends[run.rank], ends[run.rank + 1]
        autocast = run.config.precision == "bf16"
        stage = Stage(graph, start, stop, graph.values(inputs, autocast=autocast))
        super().__init__(run, stage)
        self.automatic_optimization = False
        self.first, self.last = run.rank == 0, run.rank == run.world_size - 1
        synchronise = torch.cuda.synchronize if device.type == "cuda" else None
        self.timeline = Timeline(first=run.config.hardware["warmup_steps"], synchronise=synchronise)
        timed = TimedStage(
            stage,
            run.rank,
            run.world_size,
            device,
            inputs,
            timeline=self.timeline,
            recorder=recorder,
            checkpoint=CHECKPOINT[run.config.strategy.get("checkpoint", "never")],
        )
        self._timed = timed
        self._schedule = schedule(timed, run.config.microbatches, self._marked_loss)
        self._recorder = recorder
        self._received = self._evaluation_wires(graph, start, device)
        self._known = {
            "parameters": parameters,
            "batch_statistics": any(isinstance(m, _BatchNorm) for m in whole.modules()),
            "flops_per_sample": flops,
            "saved_tensor_bytes_per_sample": measured.kept_bytes(graph, inputs, autocast=autocast)[
                start:stop
            ].sum()
            / len(inputs),
        }
        del whole, graph
        _release()

    def _evaluation_wires(self, graph: Graph, start: int, device: torch.device) -> dict[int, Any]:
        """What this stage receives, for each size of an evaluation batch."""
        sizes = {part.stop - part.start for part in self._test_pieces()}
        if self.first:
            return {}
        return {
            size: wires(graph, start, graph.values(cutting.blank(self.run, size, device))) for size in sizes
        }

    def feed(self, recorder: Recorder, device: torch.device) -> Feed:
        """A step's batch at once: images for the first stage, labels for the last one."""
        return Feed(self.run, recorder, device, parts=1, images=self.first, labels=self.last)

    def _marked_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.timeline.mark("loss", self._timed.microbatch)
        return self.loss(logits, labels)

    def training_step(self, batch: Batch, _: int) -> None:
        """One run of the schedule, then this stage's optimizer step."""
        images, labels = batch
        optimizer = self.optimizers()
        assert isinstance(optimizer, pl.core.optimizer.LightningOptimizer)
        optimizer.zero_grad()
        given = () if images is None else (images,)
        self._schedule.step(*given, target=labels, return_outputs=False)
        self.timeline.mark("optimizer")
        optimizer.step()
        self.timeline.end_step()
        self._recorder.communication_seconds = self.timeline.communication_seconds

    def take_loss(self) -> SupportsFloat:
        """The last stage's loss, for every rank; it travels while the next step computes."""
        loss = super().take_loss() if self.last else torch.zeros((), device=self.device)
        assert isinstance(loss, Tensor)
        return Arriving(loss.to(self.device, torch.float64), self.run.world_size - 1)

    @torch.no_grad()
    def evaluate(self, device: torch.device) -> Tensor:
        """(loss x samples, correct, samples): each test sample passes all stages; the last one scores."""
        arrays, found = self.run.arrays, torch.zeros(3, dtype=torch.float64, device=device)
        on_the_way: list[list[Any]] = []
        self.model.eval()
        try:
            for part in self._test_pieces():
                given = self.model(*self._evaluation_inputs(part, device))
                if self.last:
                    labels = torch.from_numpy(arrays.test_labels[part].copy()).to(device)
                    logits = given.float()
                    found += sums(functional.cross_entropy(logits, labels, reduction="sum"), logits, labels)
                    continue
                on_the_way.append([(dist.isend(tensor, self.run.rank + 1), tensor) for tensor in given])
                if len(on_the_way) > AHEAD:
                    _wait(on_the_way.pop(0))
            for sent in on_the_way:
                _wait(sent)
        finally:
            self.model.train()
        return found

    def _test_pieces(self) -> Iterator[slice]:
        return order.pieces(slice(0, self.run.arrays.test_samples), self.run.config.evaluation_batch)

    def _evaluation_inputs(self, part: slice, device: torch.device) -> tuple[Tensor, ...]:
        arrays = self.run.arrays
        if self.first:
            return (to_inputs(self.run, torch.from_numpy(arrays.test_images[part].copy()), device),)
        received = buffers(self._received[part.stop - part.start], device)
        for tensor in received:
            dist.recv(tensor.detach(), self.run.rank - 1)
        return tuple(tensor.detach() for tensor in received)

    def shares(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]] | None:
        """Every stage's share, gathered on rank 0."""
        mine = checkpoint.collect(self.model, optimizer, self.prefix)
        gathered: list[Any] | None = [None] * self.run.world_size if self.first else None
        dist.gather_object(mine, gathered, 0)
        return gathered

    def facts(self, device: torch.device) -> dict[str, Any]:
        """Of the whole model as it was before the cut; this stage's activations."""
        return {**self._known, **cost.peak(device)}


class Arriving:
    """A number that another rank sends; reading it waits for it."""

    def __init__(self, value: Tensor, source: int) -> None:
        self._value = value
        self._work = dist.broadcast(value, source, async_op=True)

    def __float__(self) -> float:
        if self._work is not None:
            self._work.wait()
            self._work = None
        return float(self._value)


def _wait(sent: list[Any]) -> None:
    for work, _ in sent:
        work.wait()


def _release() -> None:
    """What only the cut needed is freed, and the peak is taken from here on."""
    gc.collect()  # a traced graph refers to itself
    ctypes.CDLL(None).malloc_trim(0)
    memory.restart_peak()
