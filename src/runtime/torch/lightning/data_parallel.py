"""Keep the ranks' copies of a model equal by DistributedDataParallel and a hook that averages gradients."""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, SupportsFloat

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from src.compat.lightning import DDPStrategyWithHooks
from src.compat.torch import BatchNorm
from src.config import ConfigError, own_training
from src.measure.recorder import Recorder
from src.models import adapt
from src.runtime.common.context import RankContext
from src.runtime.torch import mesh, setup, shards
from src.runtime.torch.lightning import own_step, sync_batchnorm
from src.runtime.torch.lightning.fit import fit
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.mesh import DATA, Axis
from src.runtime.torch.predicted_memory import CopyMemory

# How far the sums of equal copies may be apart by rounding, on ranks with other numbers of cores.
APART = 1e-5
# Elements of a weight that are added up at a time.
PART = 2**20
Hook = Callable[[Recorder, dist.GradBucket], torch.futures.Future[torch.Tensor]]


class HookedDDPStrategy(DDPStrategyWithHooks):
    """Lightning's DDPStrategy with a communication hook that averages gradients, and with timing."""

    def __init__(
        self,
        recorder: Recorder,
        hook: Hook,
        *,
        find_unused: bool | None = None,
        behind: bool = False,
        exchange_bytes: int | None = 0,
        exchange_buffers: Callable[[], Sequence[torch.Tensor]] = tuple,
        **options: Any,
    ) -> None:
        """Average gradients by `hook`.

        Args:
            recorder: the rank's recorder, to which waits are added.
            hook: called as `hook(recorder, bucket)` for each bucket; returns a future of the averaged bucket.
            find_unused: whether parameters without a gradient are looked for in each step; by default where a
                look at the model finds some.
            behind: whether the hook returns before its bucket is averaged, and counts no waits itself.
            exchange_bytes: what the hook holds besides the buckets, as predicted; `None` if that isn't known.
            exchange_buffers: returns that once it is there.
            **options: those of DDPStrategy.
        """
        super().__init__(gradient_as_bucket_view=True, broadcast_buffers=False, **options)
        self.memory = None if exchange_bytes is None else CopyMemory(buckets=True, exchange=exchange_bytes)
        self.exchange_buffers = exchange_buffers
        self.find_unused = find_unused
        self._recorder = recorder
        self._hook = hook
        self._behind = behind
        if behind and all(device.type == "cpu" for device in options["parallel_devices"]):
            # The backend's threads take time on the rank's own cores: its waiting can't be told from that.
            recorder.communication_seconds = None
        # When this rank had computed all its gradients, where the hook doesn't wait for the others'.
        self._handed_over: SupportsFloat | None = None

    def register_hooks(self, model: nn.parallel.DistributedDataParallel) -> None:
        """Register the hook that averages gradients."""
        model.register_comm_hook(self._recorder, self._timed_hook)

    def look_at(self, context: RankContext, model: nn.Module) -> None:
        """Have DDP look for parameters without a gradient in each step, if `model` has some."""
        if own_training.is_own(context.config):
            assert isinstance(model, pl.LightningModule)
            reached, always = own_step.reached_parameters(context, model)
        else:
            reached, always = setup.reached_parameters(context, model, torch.device("cpu"))
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        needed = not always or bool(trained - reached)
        if needed if self.find_unused is None else self.find_unused:
            self.find_unused_parameters()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a training step; explain torch's error where parameters get no gradient at times."""
        try:
            return super().training_step(*args, **kwargs)
        except RuntimeError as error:
            if "find_unused_parameters" not in str(error):
                raise
            raise ConfigError(
                "some parameters got no gradient in a step, though they get one in others; "
                "strategy.find_unused_parameters=true looks for them each time"
            ) from error

    def _timed_hook(self, recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last() and self._behind:
            self._handed_over = recorder.now()
        return self._hook(recorder, bucket)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Add the time from this rank's last gradient to the end of the exchange to the recorder."""
        super().post_backward(closure_loss)
        if self._handed_over is not None:
            self._recorder.exchanged_since(self._handed_over)
            self._handed_over = None


def backend_hook(recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket through the process group, as DDP does without a hook, and count its bytes.

    Args:
        recorder: the rank's recorder, which counts the bytes.
        bucket: the gradients to average.
    """
    assert dist.group.WORLD is not None
    recorder.hand_over("all_reduce", bucket.buffer().nbytes)
    return allreduce_hook(dist.group.WORLD, bucket)


def fit_copies(context: RankContext, recorder: Recorder, strategy: HookedDDPStrategy) -> None:
    """Train a copy of the model in each rank under `strategy`, with BatchNorm synchronised if configured.

    Raises:
        ConfigError: when the run can't go on from the configured checkpoint.
    """

    def prepare(model: nn.Module) -> nn.Module:
        strategy.look_at(context, model)
        return sync_batchnorm.convert(model) if context.config.batchnorm == "sync" else model

    fit(context, recorder, strategy, prepare=prepare, evaluating=buffers_of_rank_0)


def buffers_of_rank_0(module: TrainingModule) -> AbstractContextManager[None]:
    """Have all ranks evaluate with rank 0's buffers, as `buffers_of_first` says."""
    return buffers_of_first(module, [mesh.whole_world(module.context)])


def _figures(tensor: Tensor) -> Tensor:
    """Return the sums of a tensor's elements, of their sizes and of their squares, float64 [3]."""
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()
    total = torch.zeros(3, dtype=torch.float64, device=tensor.device)
    # A few at a time: no copy of the whole is made.
    for part in flat.split(PART):
        wide = part.double()
        total += torch.stack([wide.sum(), wide.abs().sum(), wide.square().sum()])
    return total


def check_copies(module: TrainingModule, axis: Axis) -> None:
    """Raise `ConfigError` where copies along an axis have come apart; all of its ranks call this function.

    A hook, or the model itself, may have changed weights by the rank's own samples, or has begun to train
    some of which DDP doesn't know. Of weights that ranks along the axis hold in parts nothing is told.
    """
    named = [
        (name, shards.local(parameter.detach()))
        for name, parameter in module.model.named_parameters()
        if parameter.layout is torch.strided and (axis.name == DATA or not shards.is_split(parameter))
    ]
    if not named:
        return
    own = torch.stack([_figures(each) for _, each in named])
    ends = torch.cat([own, -own])
    dist.all_reduce(ends, dist.ReduceOp.MAX, group=axis.group)
    largest, least = ends.chunk(2)
    # A sum may be of numbers that cancel: it is as exact as that of their sizes.
    apart = ((largest + least) > APART * own[:, [1, 1, 2]]).any(1).double()
    # Ranks with other weights may have other sizes, and all are to end.
    dist.all_reduce(apart, dist.ReduceOp.MAX, group=axis.group)
    moved = next((name for (name, _), flag in zip(named, apart.tolist(), strict=True) if flag), None)
    if moved is not None:
        raise ConfigError(
            f"{adapt.key_and_name(module.context.config)}: the ranks' copies of {moved} have come apart: a "
            "hook or the step changes weights by the rank's own samples, or trains some that it didn't train "
            "at first; choose strategy=single"
        )


@contextlib.contextmanager
def buffers_of_first(module: TrainingModule, axes: Sequence[Axis]) -> Iterator[None]:
    """Have all copies of a model evaluate with the buffers of the first one, and train on with their own.

    The copies stand along `axes`. So the first one's micro-batches alone give the local statistics. DDP would
    send the buffers before every forward pass; BatchNorm doesn't read its in training, and keeps the first
    one's. Where a model reads others, how often a run evaluates doesn't change what it trains.

    Raises:
        ConfigError: where the copies' weights have come apart.
    """
    axes = [axis for axis in axes if axis.size > 1]
    if not axes:
        yield
        return
    # An audit names what has come apart.
    for axis in axes if module.context.config.audit is None else ():
        check_copies(module, axis)
    layers = [layer for layer in module.model.modules() if isinstance(layer, BatchNorm)]
    statistics = {id(buffer) for layer in layers for buffer in layer.buffers()}
    buffers = [buffer for buffer in module.model.buffers() if id(buffer) not in statistics]
    own = [buffer.clone() for buffer in buffers]
    for buffer in module.model.buffers():
        for axis in axes:
            dist.broadcast(buffer, axis.ranks[0], group=axis.group)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, own, strict=True):
                buffer.copy_(value)
