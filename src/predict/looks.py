"""Look at steps of strategies that nobody runs: by their own code, on tensors without data.

A process is the first rank of as many as are asked for; exchanges send nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from src.compat.torch import group_that_sends_nothing, has_batch_statistics
from src.config import Config, ConfigError
from src.config.mistakes import CommandError
from src.data import prepared
from src.measure.recorder import Recorder
from src.predict.asked import DIVIDE_SAMPLES, HYBRID, Asked
from src.predict.draws import drawn_again, laid_out_alike
from src.predict.dry_runs import SAMPLES, config_of, copies_of
from src.predict.gpu_operators import GpuOperators
from src.predict.law import Law, Share
from src.predict.layout import Layout, layout
from src.predict.looked import Looked
from src.predict.row import Row
from src.predict.stage_looks import CutModel
from src.predict.traced.programs import Traces
from src.predict.traced.stages import Cut
from src.runtime.common.context import RankContext
from src.runtime.torch import copies, dry_run, mesh, setup, update_rule
from src.runtime.torch import shards as sharded
from src.runtime.torch.dry_run import Look
from src.runtime.torch.kernel_counter import KernelCounter
from src.runtime.torch.sharding import model_shards
from src.runtime.torch.sharding.groups import Group
from src.runtime.torch.tensor import finding
from src.runtime.torch.tensor import plan as planning
from src.runtime.torch.tensor.group import AXIS, MeshTensorGroup
from src.runtime.torch.tensor.plan import Plan

CPU = torch.device("cpu")


def share_of(model: nn.Module) -> Share:
    """Return the part of a model that the first of several shards has."""
    every = [each for each in model.parameters() if each.numel() and each.dim()]
    return Share(tuple((len(each), each.numel() // len(each)) for each in every))


def whole(config: Config, *, buckets: bool) -> Look:
    """Look at a step of a device that has the whole model, with gradients in `buckets` or by themselves."""

    def divide(model: nn.Module, counter: KernelCounter) -> tuple[nn.Module, Callable[[], None]]:
        if buckets:
            put_gradients_in_buckets(model, config.microbatches, counter.gradient)
        return model, lambda: clip(model)

    def clip(model: nn.Module) -> None:
        if (limit := config.optimizer["clip_norm"]) is not None:
            update_rule.clip(model.parameters(), limit)

    with context_of(config) as (context, _), GpuOperators(), drawn_again():
        return dry_run.look(context, setup.make_task(context), CPU, divide, foreach=True)


def put_gradients_in_buckets(model: nn.Module, microbatches: int, note: Callable[[int], None]) -> None:
    """Have a model's gradients be in buckets that stay, as DistributedDataParallel does.

    Each is made apart, and copied into its bucket in the backward pass of a step's last micro-batch, when
    `note` is called with its bytes.
    """
    for parameter in (each for each in model.parameters() if each.requires_grad):
        bucket, passes = torch.zeros_like(parameter), itertools.count(1)

        def keep(own: Tensor, bucket: Tensor = bucket, passes: Iterator[int] = passes) -> None:
            if next(passes) % microbatches == 0 and own.grad is not None:
                bucket.copy_(own.grad)
                own.grad = bucket
                note(bucket.nbytes)

        parameter.register_post_accumulate_grad_hook(keep)


def shards(config: Config, found: Sequence[Group]) -> Look:
    """Look at a step of a device that has its shard of the model, which is gathered in groups."""
    with context_of(config) as (context, recorder), group_that_sends_nothing(config.workers):
        made = mesh.make(context, CPU)
        task = setup.make_task(context)
        with GpuOperators(), drawn_again():
            return model_shards.look(context, task, CPU, found, made, recorder, foreach=True)


def parts(config: Config, found: Plan) -> Look:
    """Look at a step of a device that has its part of each layer, by a plan."""
    with context_of(config) as (context, recorder), group_that_sends_nothing(config.workers):
        made = mesh.make(context, CPU)

        def divide(model: nn.Module, _: KernelCounter) -> tuple[nn.Module, Callable[[], None]]:
            group = MeshTensorGroup(made[AXIS], recorder)
            # Nothing is drawn of tensors without data: generators are left alone.
            group.region.watches = False
            planning.parallelize(model, found, group)
            return model, lambda: settle(model)

        def settle(model: nn.Module) -> None:
            average(model)
            if (limit := config.optimizer["clip_norm"]) is not None:
                sharded.clip(model.parameters(), limit, summed, lambda _: True)

        def summed(squares: Tensor) -> Tensor:
            dist.all_reduce(squares, group=made.get_group(AXIS))
            return squares

        def average(model: nn.Module) -> None:
            if config.degrees.data > 1:
                gradients = [sharded.local(each.grad) for each in model.parameters() if each.grad is not None]
                size = int(config.strategy["bucket_mb"] * 2**20)
                copies.average(gradients, mesh.axis(made, "data"), recorder, size)

        try:
            with GpuOperators(), drawn_again():
                return dry_run.look(context, setup.make_task(context), CPU, divide, foreach=True)
        except (ConfigError, MemoryError):
            raise
        except Exception as error:
            raise ConfigError(finding.failure(context, found, error)) from error


# How a model is divided: by a plan of parts, or into groups that are gathered; `None` where it isn't.
Division = Plan | Sequence[Group] | None


def check_mesh(config: Config) -> None:
    """Raise `ConfigError` for a mesh that isn't looked at."""
    if config.degrees.tensor == config.degrees.shard == 1:
        raise ConfigError("strategy.tensor=1 strategy.shard=1: a mesh of copies alone is strategy=ddp")


def find_groups(context: RankContext, model: nn.Module) -> Sequence[Group]:
    """Find the groups in which a model is gathered."""
    return model_shards.find_groups(context, model, CPU)


def find_plan(context: RankContext, model: nn.Module) -> Plan:
    """Find the plan by which layers are split into parts."""
    return finding.find(context, model, CPU)


def find_on_a_mesh(context: RankContext, model: nn.Module) -> Division:
    """Find how a mesh divides a model."""
    return (find_plan if context.config.degrees.tensor > 1 else find_groups)(context, model)


def on_a_mesh(config: Config, division: Any) -> Look:
    """Look at a step of a device on a mesh: of shards or parts, of which there may be copies."""
    return (parts if config.degrees.tensor > 1 else shards)(config, division)


@dataclass(frozen=True)
class StrategyLook:
    """The way in which steps of a strategy are looked at.

    Attributes:
        look: looks at one, by how the model is divided.
        find: finds that, by a whole model.
        divided: whether what is divided goes with the number of devices.
        check: refuses what isn't looked at.
    """

    look: Callable[[Config, Any], Look]
    find: Callable[[RankContext, nn.Module], Division] | None = None
    divided: bool = False
    check: Callable[[Config], None] | None = None


LOOKS = {
    "single": StrategyLook(lambda config, _: whole(config, buckets=False)),
    "ddp": StrategyLook(lambda config, _: whole(config, buckets=True)),
    "fsdp": StrategyLook(shards, find_groups, divided=True),
    "tensor_parallel": StrategyLook(parts, find_plan),
    HYBRID: StrategyLook(on_a_mesh, find_on_a_mesh, check=check_mesh),
}


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a whole model, which are found once for several looks.

    Attributes:
        weights: bytes of its weights.
        share: what the first of several shards has of it.
        batchnorm: whether it has statistics of a micro-batch.
        division: how it is divided.
    """

    weights: float
    share: Share
    batchnorm: bool
    division: Division

    @classmethod
    def of(cls, config: Config, own: StrategyLook) -> ModelFacts:
        """Build a model, and find how it is divided.

        Raises:
            ConfigError: where it can't be.
        """
        if own.check is not None:
            own.check(config)
        with context_of(config) as (context, _):
            if own.find is None:
                with drawn_again():
                    model, division = setup.build(context, _ignore), None
            else:
                # Which layers a model uses may depend on what they compute, and on how many ranks there are.
                model = setup.build(context, _ignore)
                with group_that_sends_nothing(config.workers):
                    division = own.find(context, model)
        weights = float(sum(each.nbytes for each in model.parameters()))
        return cls(weights, share_of(model), has_batch_statistics(model), division)


# Their steps differ with the number of devices in more than what is divided.
BY_NUMBER = ("tensor_parallel", HYBRID)


def looked_at(
    question: Asked, strategy: str, devices: Sequence[int], config: Config
) -> Iterator[tuple[int, Looked | str]]:
    """Yield for each number of devices the steps that tell of theirs, or why there are none.

    Copies and shards have one law for all of them; what layers are split into depends on the number.

    Args:
        question: what is asked.
        strategy: whose steps are looked at.
        devices: how many there are.
        config: of a run on few devices.
    """
    if config.cuts:
        yield from _pipelines(question, strategy, devices, config)
        return
    words, microbatches = question.words, config.microbatches
    own = LOOKS[strategy]
    shared: Looked | str | None = None
    fewest = 0
    for count in devices:
        # What can't be split among few can't be among a multiple of them.
        fails = isinstance(shared, str) and count % fewest == 0 and strategy != HYBRID
        if shared is None or (strategy in BY_NUMBER and not fails):
            fewest = count
            points = [(count, samples) for samples in _samples(question)]
            points += [(2 * count, SAMPLES[0])] if own.divided else []
            try:
                configs = {point: config_of(words, strategy, *point, microbatches) for point in points}
                shared = _looked(count, configs, own)
            except ConfigError as error:
                # A mesh can't be laid out of any number of devices.
                shared = str(error)
        yield count, shared


def _samples(question: Asked) -> Sequence[int]:
    """Return the samples of micro-batches that are looked at.

    A third number tells whether a model's operations go with them.
    """
    return (SAMPLES[0], SAMPLES[-1]) if question.straight else SAMPLES


def _looked(devices: int, configs: Mapping[tuple[int, int], Config], strategy: StrategyLook) -> Looked | str:
    try:
        with warnings.catch_warnings():
            # What a run prints once is of no use here.
            warnings.simplefilter("ignore")
            facts = ModelFacts.of(next(iter(configs.values())), strategy)
            looks = {point: strategy.look(config, facts.division) for point, config in configs.items()}
            law = Law.of({point: each.live.sizes for point, each in looks.items()}, facts.share)
    except Exception as error:
        return reason_of(error)
    traces: Traces | str
    try:
        own = {samples: each.trace for (count, samples), each in looks.items() if count == devices}
        more = {count: each.trace for (count, _), each in looks.items() if count != devices}
        traces = Traces.of(own, devices, more, facts.share)
    except ConfigError as error:
        traces = str(error)
    first = next(iter(configs.values()))
    name = first.strategy["name"]
    copies = None if name in DIVIDE_SAMPLES else copies_of(first) if name == HYBRID else 1
    # Each device builds the whole model and looks at it, or holds it against the split one.
    start = 4.0 if first.degrees.tensor > 1 else 2.0 if first.degrees.shard > 1 else 1.0
    buckets = first.strategy.get("bucket_mb", 0.0) * 2**20
    return Looked(devices, law, facts.weights, traces, buckets, copies, start, facts.batchnorm)


def _pipelines(
    question: Asked, strategy: str, devices: Sequence[int], config: Config
) -> Iterator[tuple[int, Looked | str]]:
    """Yield for each number of devices the stages that they would have, of which there may be copies."""
    words, parts = question.words, config.microbatches
    if not devices:
        return
    with contextlib.ExitStack() as contexts, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            given = {n: _first(words, strategy, devices, n, parts) for n in SAMPLES}
            made = {n: contexts.enter_context(context_of(each))[0] for n, each in given.items()}
            model = CutModel(made)
        except Exception as error:
            reason = reason_of(error)
            yield from ((count, reason) for count in devices)
            return
        for count in devices:
            try:
                few = config_of(words, strategy, count, 1, parts)
                samples = max(1, config.batch // (parts * few.degrees.batch))
                own = config_of(words, strategy, count, samples, parts)
                plan = model.plan(own, nearby(question.row(own, strategy, count)))
                points = _around(samples, max(1, len(next(iter(made.values())).arrays.train) // parts))
                law = model.law(plan, {n: config_of(words, strategy, count, n, parts) for n in points})
                cut = Cut(own, model.kernels, model.profile(samples), plan)
                # Each device holds the whole model against the cut one.
                yield count, Looked(count, law, model.weights, cut, copies=own.degrees.batch, at_start=2.0)
            except Exception as error:
                yield count, reason_of(error)


def _around(samples: int, there: int) -> tuple[int, int]:
    """Return two numbers of samples, of those that are asked for and of as many again, or half of them.

    `there` are no more in the dataset.
    """
    samples = min(samples, there)
    return (samples, 2 * samples) if 2 * samples <= there or samples == 1 else (samples // 2, samples)


def _first(words: Sequence[str], strategy: str, devices: Sequence[int], samples: int, parts: int) -> Config:
    """Compose a pipeline on the first number of devices that its options go with."""
    *others, last = devices
    for count in others:
        with contextlib.suppress(ConfigError):
            return config_of(words, strategy, count, samples, parts)
    return config_of(words, strategy, last, samples, parts)


def nearby(row: Row) -> Layout:
    """Lay a row out, on one node where nobody says what lies between nodes."""
    if row.network is None:
        row = row.model_copy(update={"devices_per_node": row.devices})
    return layout(row)


def reason_of(error: Exception) -> str:
    """Return why a step can't be looked at; raise what is no fault of the model's."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, CommandError | OSError | MemoryError):
        raise error
    # Whatever a model's code makes of tensors without data, it can't be looked at.
    said = (str(error).strip().splitlines() or [""])[0]
    return f"it can't be looked at without data: {type(error).__name__}: {said}"


@contextmanager
def context_of(config: Config) -> Iterator[tuple[RankContext, Recorder]]:
    with tempfile.TemporaryDirectory(prefix="scaleguide-") as folder:
        arrays = prepared.load(config.dataset)
        context = RankContext(config, 0, config.workers, arrays, Path(folder), (0,))
        recorder = Recorder(config, 0, Path(folder, "rank"), started=time.time(), probes=False)
        with laid_out_alike(config.model):
            yield context, recorder


def _ignore(text: str) -> None:
    """Take a note of a model that the user hears of when it runs."""
