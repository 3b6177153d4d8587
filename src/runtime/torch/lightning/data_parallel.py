"""Keep the ranks' copies of a model equal by DistributedDataParallel and a hook that averages gradients."""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, SupportsFloat

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import nn

from src.compat.lightning import DDPStrategyWithHooks
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.lightning import sync_batchnorm
from src.runtime.torch.lightning.fit import fit
from src.runtime.torch.lightning.module import TrainingModule

Hook = Callable[[Recorder, dist.GradBucket], torch.futures.Future[torch.Tensor]]


class HookedDDPStrategy(DDPStrategyWithHooks):
    """Lightning's DDPStrategy with a communication hook that averages gradients, and with timing."""

    def __init__(self, recorder: Recorder, hook: Hook, *, behind: bool = False, **options: Any) -> None:
        """Average gradients by `hook`.

        Args:
            recorder: the rank's recorder, to which waits are added.
            hook: called as `hook(recorder, bucket)` for each bucket; returns a future of the averaged bucket.
            behind: whether the hook returns before its bucket is averaged, and counts no waits itself.
            **options: those of DDPStrategy.
        """
        super().__init__(gradient_as_bucket_view=True, broadcast_buffers=False, **options)
        self._recorder = recorder
        self._hook = hook
        self._behind = behind
        # When this rank had computed all its gradients, where the hook doesn't wait for the others'.
        self._handed_over: SupportsFloat | None = None

    def register_hooks(self, model: nn.parallel.DistributedDataParallel) -> None:
        """Register the hook that averages gradients."""
        model.register_comm_hook(self._recorder, self._timed_hook)

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


def fit_copies(context: RankContext, recorder: Recorder, strategy: DDPStrategy) -> None:
    """Train a copy of the model in each rank under `strategy`, with BatchNorm synchronised if configured.

    Raises:
        ConfigError: when the run can't go on from the configured checkpoint.
    """
    synchronise = context.config.batchnorm == "sync"
    fit(
        context,
        recorder,
        strategy,
        prepare=sync_batchnorm.convert if synchronise else lambda model: model,
        evaluating=buffers_of_rank_0,
    )


@contextlib.contextmanager
def buffers_of_rank_0(module: TrainingModule) -> Iterator[None]:
    """Copy rank 0's buffers to all ranks, so that rank 0's micro-batches alone give the local statistics.

    DDP would send the buffers before every forward pass. BatchNorm doesn't read them in training, so it is
    enough to send them before an evaluation; the other ranks may keep them after it.
    """
    for buffer in module.model.buffers():
        dist.broadcast(buffer, src=0)
    yield
