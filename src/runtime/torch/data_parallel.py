"""Copies of a model that DistributedDataParallel keeps equal, by a hook that averages their gradients."""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import nn

from src.measure.recorder import Recorder
from src.runtime.torch import sync_batchnorm
from src.runtime.torch import training as runtime
from src.worker import Run

Hook = Callable[[Recorder, dist.GradBucket], torch.futures.Future[torch.Tensor]]


class HookedDDPStrategy(DDPStrategy):
    """Lightning's DDPStrategy whose gradients a hook averages; it counts what it hands over."""

    def __init__(self, recorder: Recorder, hook: Hook, **options: Any) -> None:
        super().__init__(gradient_as_bucket_view=True, broadcast_buffers=False, **options)
        self._recorder = recorder
        self._hook = hook
        # When a rank had all of its own gradients, where the backend's threads exchange them.
        self._given: float | None = None

    def _register_ddp_hooks(self) -> None:
        assert isinstance(self.model, nn.parallel.DistributedDataParallel)
        self.model.register_comm_hook(self._recorder, self._timed)

    def _timed(self, recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last() and recorder.communication_seconds is None:
            self._given = self._when_done()
        return self._hook(recorder, bucket)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """All have everybody's gradients."""
        super().post_backward(closure_loss)
        if self._given is not None:
            self._recorder.exchange_seconds += self._when_done() - self._given
            self._given = None

    def _when_done(self) -> float:
        if self._recorder.config.batch_shares == "auto" and self.root_device.type == "cuda":
            # It has only been told of its work until now.
            torch.cuda.synchronize()
        return time.perf_counter()


def fit(run: Run, recorder: Recorder, strategy: DDPStrategy) -> None:
    """Trains copies that DistributedDataParallel keeps equal."""
    synchronise = run.config.batchnorm == "sync"
    runtime.fit(
        run,
        recorder,
        strategy,
        prepare=sync_batchnorm.convert if synchronise else lambda model: model,
        before_evaluation=share_buffers,
    )


def share_buffers(module: runtime.Training) -> None:
    """Rank 0's buffers for all: with local statistics, its own micro-batches are the ones that count.

    DDP would send them before every forward; BatchNorm doesn't read them while it trains, so before
    an evaluation is enough.
    """
    for buffer in module.model.buffers():
        dist.broadcast(buffer, src=0)
