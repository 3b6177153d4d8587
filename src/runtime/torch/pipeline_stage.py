"""torch's PipelineStage that records what it does when, counts what it sends, and re-materialises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.utils.checkpoint import checkpoint as rematerialise

from src.measure.recorder import Recorder
from src.measure.timeline import Timeline
from src.partition.stage import Stage, buffers

wait_for: Callable[[list[dist.Work]], None] = schedules._wait_batch_p2p
# Whether the activations of micro-batch `index` of `count` are thrown away and computed again for
# backward. GPipe's authors keep the last one's: its backward pass follows at once.
CHECKPOINT: dict[str, Callable[[int, int], bool]] = {
    "never": lambda index, count: False,
    "except_last": lambda index, count: index < count - 1,
    "always": lambda index, count: True,
}


class TimedStage(PipelineStage):
    """One stage with static shapes: torch would otherwise find them by forward passes that move buffers.

    Args:
        stage: the module.
        index: of the stage; also its rank.
        stages: how many there are.
        device: where it runs.
        inputs: images of one micro-batch, for the first stage's shapes.
        timeline: told of every activity.
        recorder: told of every byte that is sent.
        checkpoint: whether to re-materialise micro-batch (index, of count).
    """

    def __init__(
        self,
        stage: Stage,
        index: int,
        stages: int,
        device: torch.device,
        inputs: Tensor,
        *,
        timeline: Timeline,
        recorder: Recorder,
        checkpoint: Callable[[int, int], bool],
    ) -> None:
        received = (inputs,) if index == 0 else buffers(stage.received, device)
        sent = buffers(stage.sent, device)
        super().__init__(stage, index, stages, device, input_args=received, output_args=sent)
        self._timeline = timeline
        self._recorder = recorder
        self._checkpoint = checkpoint
        self.microbatch = 0
        # A send that isn't taken yet keeps its stage waiting, too: where torch's schedules wait for works
        # is the one place that knows.
        schedules._wait_batch_p2p = self._wait

    def _wait(self, works: list[dist.Work]) -> None:
        if works:
            self._timeline.mark("wait", self.microbatch)
        wait_for(works)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._timeline.mark("wait", fwd_chunk_id)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        self._timeline.mark("wait", bwd_chunk_id)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._timeline.mark("send", fwd_chunk_id)
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        self._timeline.mark("send", bwd_chunk_id)
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, sends: list[dist.P2POp]) -> list[dist.P2POp]:
        self._recorder.payload_bytes += sum(send.tensor.nbytes for send in sends)
        return sends

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._timeline.mark("forward", fwd_chunk_id)
        self.microbatch = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        self._timeline.mark("backward", bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        assert self.chunks is not None
        if not self._checkpoint(self.microbatch, self.chunks):
            return self.submod(*args, **kwargs)
        frozen = lambda: (contextlib.nullcontext(), unmoved_buffers(self.submod))  # noqa: E731
        return rematerialise(self.submod, *args, use_reentrant=False, context_fn=frozen, **kwargs)


@contextlib.contextmanager
def unmoved_buffers(module: nn.Module) -> Iterator[None]:
    """A second forward pass over the same samples writes into copies of the buffers, not into them."""
    owners = [(layer, name) for layer in module.modules() for name in layer._buffers]
    kept = [layer._buffers[name] for layer, name in owners]
    for (layer, name), buffer in zip(owners, kept, strict=True):
        layer._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for (layer, name), buffer in zip(owners, kept, strict=True):
            layer._buffers[name] = buffer
