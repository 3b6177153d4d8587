"""Extend torch's PipelineStage by a timeline, a count of the bytes that it sends, and recomputing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from src.compat.live_tensors import exchanged
from src.compat.pipelining import StaticStage, detachable, on_waiting
from src.measure.recorder import Recorder
from src.measure.timeline import Timeline
from src.partition.torch.simulation import tensors
from src.partition.torch.stage import Stage, as_received, receive_buffers
from src.partition.torch.transfer import HostStaging, stages_through_host
from src.runtime.torch.mesh import Axis

# Whether the activations of micro-batch `index` of `count` are thrown away and computed again for
# backward. GPipe's authors keep those of the last micro-batch, whose backward pass follows at once.
RECOMPUTES: dict[str, Callable[[int, int], bool]] = {
    "none": lambda index, count: False,
    "except_last": lambda index, count: index < count - 1,
    "full": lambda index, count: True,
    # The stage itself says what of each one is.
    "selective": lambda index, count: False,
}


class TimedStage(StaticStage):
    """A stage of a pipeline whose shapes are known in advance.

    Without them torch would find the shapes by forward passes, which change buffers.

    Args:
        stage: the stage's module.
        place: which stage it is, of how many.
        stages: the ranks that hold the stages, this one among them.
        device: where the stage runs.
        inputs: those of one micro-batch, which give the shapes of the first stage.
        timeline: records every activity.
        recorder: counts every byte that is sent.
        recomputes: `recomputes(index, count)` says whether the activations of micro-batch `index` of `count`
            are thrown away and computed again for its backward pass.
        splits: whether the schedule has backward passes for inputs and for weights apart.
    """

    def __init__(
        self,
        stage: Stage,
        place: tuple[int, int],
        stages: Axis,
        device: torch.device,
        inputs: tuple[Tensor, ...],
        *,
        timeline: Timeline,
        recorder: Recorder,
        recomputes: Callable[[int, int], bool],
        splits: bool = False,
    ) -> None:
        number, count = place
        received = inputs if number == 0 else receive_buffers(stage.received, device)
        sent = receive_buffers(stage.sent, device)
        super().__init__(stage, number, count, device, received, sent, group=stages.group)
        self._timeline = timeline
        self._recorder = recorder
        self._recomputes, self._splits = recomputes, splits
        self.microbatch = 0
        self.greets = not stages_through_host(device)
        self._staging = None if self.greets else HostStaging()
        on_waiting(lambda: timeline.mark("wait", timeline.microbatch))

    def buffers(self) -> list[Tensor]:
        """Return what activations and gradients are received into, once there is something."""
        infos = [*self.args_recv_info.values(), *self.grad_recv_info.values()]
        found = [getattr(info, "buffer", None) for own in infos for info in own]
        return [each for each in found if each is not None]

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._timeline.mark("wait", fwd_chunk_id)
        return self._receiving(super().get_fwd_recv_ops(fwd_chunk_id), ("forward", fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        self._timeline.mark("wait", bwd_chunk_id)
        return self._receiving(super().get_bwd_recv_ops(bwd_chunk_id), ("backward", bwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        self._timeline.mark("send", fwd_chunk_id)
        return self._sending(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        self._timeline.mark("send", bwd_chunk_id)
        sends = super().get_bwd_send_ops(bwd_chunk_id)
        exchanged(*(send.tensor for send in sends))
        return self._sending(sends)

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        exchanged(*(each for each in next_stage_bwd_outputs if isinstance(each, Tensor)))
        super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def _sending(self, sends: list[dist.P2POp]) -> list[dist.P2POp]:
        for send in sends:
            self._recorder.hand_over("point_to_point", send.tensor.nbytes, "pipeline")
        return sends if self._staging is None else self._staging.send(sends)

    def _receiving(self, receives: list[dist.P2POp], key: tuple[str, int]) -> list[dist.P2POp]:
        return receives if self._staging is None else self._staging.receive(receives, key)

    def _arrive(self, key: tuple[str, int]) -> None:
        """Copy what was received on the host to the stage's device, where that took this way."""
        if self._staging is not None:
            self._staging.arrive(key)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._arrive(("forward", fwd_chunk_id))
        self._timeline.mark("forward", fwd_chunk_id)
        self.microbatch = fwd_chunk_id
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        self._arrive(("backward", bwd_chunk_id))
        self._timeline.mark("backward", bwd_chunk_id)
        with self._as_of_whole_models():
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        self._timeline.mark("weight_backward", bwd_chunk_id)
        with self._as_of_whole_models():
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward=last_backward)

    def _as_of_whole_models(self) -> AbstractContextManager[object]:
        """Keep Lightning's autocast, within which a whole schedule runs, away from backward passes."""
        return torch.autocast(self.device.type, enabled=False)

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        assert self.chunks is not None
        if self._recomputes(self.microbatch, self.chunks):
            assert isinstance(self.submod, Stage)
            results = self.submod.computed_again(self.submod, args)
        else:
            results = self.submod(*args, **kwargs)
        if self.is_last:
            # torch detaches them in place after the backward pass for inputs.
            if self._splits:
                return tuple(map(detachable, tensors(results)))
            given = {id(each) for each in args}
            return tuple(each.view_as(each) if id(each) in given else each for each in tensors(results))
        sent = map(as_received, results)
        return tuple(map(detachable, sent) if self._splits else sent)
