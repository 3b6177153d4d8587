"""Look at pipelines that nobody runs: what their stages hold, and what their operations ask of a device.

A model is traced once, on tensors without data; each number of devices cuts it as a run on them would, by how
long operations take on a described device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from src.compat.torch import TensorsWithoutData, has_batch_statistics, with_tensors
from src.config import Config
from src.measure.kernels import Trace
from src.measure.live_bytes import PARTS
from src.measure.live_step import LiveBytes
from src.partition import balance
from src.partition import plan as planning
from src.partition.live_memory import StageBytes
from src.partition.model_profile import LiveTensor, ModelProfile
from src.partition.plan import CutOptions, Plan
from src.partition.torch import cost, export
from src.partition.torch.graph import Value, operations
from src.partition.torch.simulation import Tensors
from src.partition.torch.stage import RankStages, Stage
from src.predict.constants import Constants
from src.predict.gpu_operators import GpuInterpreter, GpuOperators
from src.predict.law import Fullest, Law, all_of_it
from src.predict.layout import Layout
from src.predict.traced.programs import Traces
from src.predict.traced.stages import OperationKernels, link_of
from src.runtime.common.context import RankContext
from src.runtime.torch import predicted_memory, scoring, setup, update_rule
from src.runtime.torch.checkpoint import tied_names
from src.runtime.torch.kernel_counter import KernelCounter
from src.runtime.torch.pipeline import cutting
from src.runtime.torch.tensors import first_samples
from src.tasks.torch.outputs import autocast, model_outputs
from src.tasks.torch.task import Task

CPU = torch.device("cpu")


class CutModel:
    """A model that stages of any number of devices are cut of."""

    def __init__(self, contexts: Mapping[int, RankContext]) -> None:
        """Trace the model that `contexts` train, by the samples of a micro-batch, in order.

        Raises:
            ConfigError: for a model that can't be cut, or what of it doesn't go with samples.
        """
        export.load()
        self._contexts = contexts
        self._profiles: dict[int, ModelProfile] = {}
        self._passes: dict[Hashable, StageBytes] = {}
        few, *_, many = contexts
        first, config = contexts[few], contexts[few].config
        whole = setup.build(first, lambda _: None)
        self.batchnorm = has_batch_statistics(whole)
        self.weights = float(sum(each.nbytes for each in whole.parameters()))
        shares = CutOptions.of(config).tied == "together" and tied_names(whole)
        self._further = ", or strategy.tied=reduce, for layers share a weight" if shares else ""
        self._task = setup.make_task(first)
        inputs = {samples: cutting.example_inputs(each, samples, CPU) for samples, each in contexts.items()}
        tied, precision = CutOptions.of(config).tied, config.precision
        self._graph = operations(whole, inputs[many], self._task.outputs, tied=tied)
        self._values = {n: self._graph.values(each, precision=precision) for n, each in inputs.items()}
        counts, sizes = cost.weights(self._graph)
        kept = [cost.kept_bytes(self._graph, inputs[each], precision=precision) for each in (few, many)]
        looks = {samples: self._look(contexts[samples], inputs[samples]) for samples in contexts}
        self.kernels = OperationKernels(
            traces=Traces.of({samples: trace for samples, (trace, _) in looks.items()}, 1),
            spans=looks[few][1],
            parameters=counts,
            weight_bytes=sizes,
            kept=((few, kept[0]), (many, kept[1])),
        )

    def profile(self, samples: int) -> ModelProfile:
        """Return the operations, with tensors of micro-batches of so many samples at the boundaries."""
        if samples not in self._profiles:
            self._profiles[samples] = self._profile(samples)
        return self._profiles[samples]

    def _profile(self, samples: int) -> ModelProfile:
        few, *_, many = self._contexts
        first, last = (self._graph.profile(self._values[each]) for each in (few, many))
        share = (samples - few) / (many - few)
        crossing = tuple(
            tuple(
                LiveTensor(a.name, round(a.nbytes + share * (b.nbytes - a.nbytes)), a.requires_grad)
                for a, b in zip(before, after, strict=True)
            )
            for before, after in zip(first.crossing, last.crossing, strict=True)
        )
        return dataclasses.replace(first, crossing=crossing)

    def plan(self, config: Config, layout: Layout) -> Plan:
        """Return the cut that a run would make on devices of a kind.

        Raises:
            ConfigError: where it can't be cut so.
        """
        constants = Constants()
        stages = config.degrees.pipeline * config.virtual_stages
        balance.check_stages(len(self._graph.operations), stages, "stages", self._further)
        costs = self.kernels.costs(config.microbatch, layout.device, constants)
        demands = planning.demands_of(config, overlaps=True)
        return planning.make(
            self.profile(config.microbatch), costs, link_of(layout, constants, within=True), demands
        )

    def law(self, plan: Plan, configs: Mapping[int, Config]) -> Fullest:
        """Return the law by which the device that holds most of a cut's stages holds what it holds.

        Args:
            plan: the cut.
            configs: of a run, by two numbers of samples of a micro-batch, in order. Which moment of a pass is
                the fullest may change with samples: the law is right for these two.
        """
        count = next(iter(configs.values())).degrees.pipeline
        laws = []
        for rank in range(count):
            spans = self._spans(plan, rank, count)
            held = {
                (count, samples): self._held(config, plan, rank, spans).sizes
                for samples, config in configs.items()
            }
            laws.append(Law.of(held, all_of_it))
        return Fullest(laws)

    def most(self, plan: Plan, config: Config, ranks: Sequence[int]) -> dict[str, float]:
        """Return the bytes by part on the one of some devices that holds most, when it does."""
        count, found = config.degrees.pipeline, []
        for rank in ranks:
            sizes = self._held(config, plan, rank, self._spans(plan, rank, count)).sizes
            found.append(sizes[sizes.sum(axis=1).argmax()])
        fullest = max(found, key=lambda parts: float(parts.sum()))
        return dict(zip(PARTS, map(float, fullest), strict=True))

    def _spans(self, plan: Plan, rank: int, count: int) -> dict[int, tuple[int, int]]:
        """Return the operations of each stage of a rank, from one to another, by the stage's number."""
        ends = [0, *plan.boundaries, len(self._graph.operations)]
        placed = plan.devices or list(range(count))
        return {
            number: (ends[number], ends[number + 1]) for number, place in enumerate(placed) if place == rank
        }

    def _held(self, config: Config, plan: Plan, rank: int, spans: Mapping[int, tuple[int, int]]) -> LiveBytes:
        """Return what a rank holds that has the stages `spans`, operations from one to another, by number."""
        first = next(iter(self._contexts.values()))
        count = config.degrees.pipeline
        context = dataclasses.replace(first, config=config, rank=rank, world_size=count)
        values = self._values_of(config)
        own, passes = {}, {}
        for number, span in spans.items():
            again = plan.stages[number].again
            own[number] = stage = Stage.of(self._graph, *span, values, again)
            # Other numbers of copies and micro-batches have the same stages.
            key = span, repr(again), config.microbatch, config.microbatches == 1, repr(CutOptions.of(config))
            if key not in self._passes:
                self._passes[key] = predicted_memory.of_passes(
                    context, stage, self._task, CPU, first=number == 0
                )
            passes[number] = self._passes[key]
        only = next(iter(own.values()))
        whole = self._graph.stages(list(spans.values())) if len(own) > 1 else None
        module = only if whole is None else RankStages(whole, list(own.values()))
        return predicted_memory.of_stages(
            context, own, module, self._task, CPU, (rank, count), foreach=True, passes=passes
        )

    def _values_of(self, config: Config) -> Mapping[str, Value]:
        """Return the forms of the graph's tensors for a run's micro-batches."""
        samples = config.microbatch
        if samples not in self._values:
            context = dataclasses.replace(next(iter(self._contexts.values())), config=config)
            inputs = cutting.example_inputs(context, samples, CPU)
            self._values[samples] = self._graph.values(inputs, precision=config.precision)
        return self._values[samples]

    def _look(self, context: RankContext, inputs: Tensors) -> tuple[Trace, np.ndarray]:
        """Return what one micro-batch asks of a device, and which kernels each pass is, [3, operations, 2].

        Behind the operations' spans are those of the loss, as another one, and of the update.
        """
        fake = TensorsWithoutData(allow_non_fake_inputs=True)
        module, config = self._graph.module, context.config
        state: dict[str, Tensor] = {
            n: fake.from_tensor(each) for n, each in [*module.named_parameters(), *module.named_buffers()]
        }
        taken, targets = first_samples(context, self._task, config.microbatch, CPU)
        given, expected = (tuple(map(fake.from_tensor, each)) for each in (taken, targets))
        counter = KernelCounter(fake, waits=True)
        with fake, counter, with_tensors(module, state), GpuOperators():
            run = partial(
                cost.passes,
                self._graph,
                given,
                counter.place,
                precision=config.precision,
                splits=True,
                interpreter=GpuInterpreter,
            )
            # Gradients are added to from the second micro-batch on.
            run()
            counter.begin()
            spans = run()
            loss = _loss_spans(self._task, module, given, expected, counter, config.precision)
            update = _update_span(config, [*module.parameters()], counter)
            trace = counter.trace()
        return trace, np.concatenate([spans, loss, update], axis=1).astype(int)


def _loss_spans(
    task: Task, module: nn.Module, given: Tensors, expected: Tensors, counter: KernelCounter, precision: str
) -> np.ndarray:
    """Return which kernels the loss of a model's outputs is, forward and backward, [3, 1, 2]."""
    with autocast(precision, CPU):
        outputs = model_outputs(module(*given))
        leaves = tuple(each.detach().requires_grad_(each.requires_grad) for each in outputs)
        begin = counter.place()
        loss = scoring.training_sums(task, leaves, expected, 1.0)[0]
    middle = counter.place()
    loss.backward()
    return np.array([[(begin, middle)], [(middle, counter.place())], [(middle, counter.place())]])


def _update_span(config: Config, weights: Sequence[Tensor], counter: KernelCounter) -> np.ndarray:
    """Return which kernels an update of all weights is, as the only pass of a last operation, [3, 1, 2]."""
    optimizer = update_rule.make_optimizer(config.optimizer, list(weights))
    for group in optimizer.param_groups:
        group["foreach"] = True
    # Its state is made in the first step.
    optimizer.step()
    begin = counter.place()
    optimizer.step()
    return np.array([[(begin, counter.place())], [(0, 0)], [(0, 0)]])
