"""Run one stage's passes, each as soon as what it needs has arrived; what it sends leaves behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from src.compat.live_tensors import exchanged
from src.measure.recorder import Recorder
from src.measure.timeline import Timeline
from src.partition.torch import transfer
from src.partition.torch.stage import Stage, receive_buffers
from src.runtime.torch.mesh import Axis
from src.runtime.torch.tensors import Tensors


@dataclass
class _UnderWay:
    """A micro-batch whose backward pass isn't done.

    Attributes:
        received: what its forward pass is given, as far as gradients of it are sent back.
        roots: what its backward pass begins at.
        gradients: the gradients of `roots`, received; none of a loss.
        arrival: waits for what has been asked for last.
    """

    received: Tensors = ()
    roots: Tensors = ()
    gradients: Tensors = ()
    arrival: list[Callable[[], None]] = field(default_factory=list)


class AsynchronousStage:
    """A stage that sends and receives by itself, without any schedule that all stages follow.

    Activations and gradients each have a process group of their own: one that is late holds up no other.

    Attributes:
        most_sent: how many tensors are kept after they were sent, the last ones.
    """

    def __init__(
        self,
        stage: Stage,
        number: int,
        stages: Axis,
        device: torch.device,
        *,
        timeline: Timeline,
        recorder: Recorder,
        recompute: bool,
    ) -> None:
        """Make the process groups; all ranks do so at once.

        Args:
            stage: the stage's module.
            number: which stage it is.
            stages: the ranks that hold the stages, one each.
            device: where the stage runs.
            timeline: records every activity.
            recorder: counts every byte that is sent.
            recompute: whether activations are thrown away, and computed again for the backward pass.
        """
        self._stage, self._first, self._recompute = stage, number == 0, recompute
        self._before, self._after = (
            stages.ranks[each] if 0 <= each < stages.size else -1 for each in (number - 1, number + 1)
        )
        self._device, self._timeline, self._recorder = device, timeline, recorder
        groups: list[Any] = [dist.new_group(list(stages.ranks)) for _ in range(2)]
        self._activations, self._gradients = groups
        self._under_way: dict[int, _UnderWay] = {}
        self._sending: deque[tuple[dist.Work, Tensor]] = deque()
        # The last stage's outputs are sent to nobody.
        crossing = len(stage.received) + (0 if stage.last else len(stage.sent))
        self.most_sent = 2 * stages.size * max(1, crossing)

    def expect(self, microbatch: int) -> None:
        """Begin to receive what the stage before sends of a micro-batch, if that isn't done yet."""
        if self._first or microbatch in self._under_way:
            return
        received = receive_buffers(self._stage.received, self._device)
        exchanged(*received)
        arrival = [transfer.irecv(each, self._before, self._activations) for each in received]
        self._under_way[microbatch] = _UnderWay(received, arrival=arrival)

    def forward(
        self, microbatch: int, shown: int, inputs: Tensors, loss: Callable[[Tensor | Tensors], Tensor] | None
    ) -> None:
        """Run a micro-batch's forward pass, and send on what it gives, or compute the last stage's loss.

        Args:
            microbatch: its number.
            shown: its number in the timeline.
            inputs: the model's, for the first stage.
            loss: computes the loss [] of the model's own output; `None` but in the last stage.
        """
        self.expect(microbatch)
        here = self._under_way.setdefault(microbatch, _UnderWay(inputs))
        self._wait(here, shown)
        self._timeline.mark("forward", shown)
        results = self._run(here.received)
        if loss is not None:
            self._timeline.mark("loss", shown)
            assert isinstance(results, Tensor | tuple)
            here.roots = (loss(results),)
            return
        pairs = list(zip(self._stage.sent, results, strict=True))
        here.roots = tuple(result for boundary, result in pairs if boundary.requires_grad)
        self._timeline.mark("send", shown)
        self._send([result.detach() for _, result in pairs], self._after, self._activations)
        buffers = receive_buffers([each for each in self._stage.sent if each.requires_grad], self._device)
        exchanged(*buffers)
        here.gradients = tuple(each.detach() for each in buffers)
        here.arrival = [transfer.irecv(each, self._after, self._gradients) for each in here.gradients]

    def backward(self, microbatch: int, shown: int) -> None:
        """Run a micro-batch's backward pass, and send back the gradients of what it was given."""
        here = self._under_way.pop(microbatch)
        self._wait(here, shown)
        self._timeline.mark("backward", shown)
        given = here.gradients or (None,) * len(here.roots)
        pairs = [pair for pair in zip(here.roots, given, strict=True) if pair[0].requires_grad]
        if pairs:
            # Lightning's autocast, within which a training step runs, isn't for backward passes.
            with torch.autocast(self._device.type, enabled=False):
                torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs])
        if self._first:
            return
        self._timeline.mark("send", shown)
        wanted = [
            each
            for boundary, each in zip(self._stage.received, here.received, strict=True)
            if boundary.requires_grad
        ]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in wanted]
        sent = [each.contiguous() for each in gradients]
        exchanged(*sent)
        self._send(sent, self._before, self._gradients)

    def finish(self) -> None:
        """Wait until all that this stage has sent has arrived."""
        self._timeline.mark("wait")
        while self._sending:
            self._sending.popleft()[0].wait()

    def _run(self, received: Tensors) -> Tensor | Tensors:
        if not self._recompute:
            results: Tensor | Tensors = self._stage(*received)
            return results
        results = self._stage.computed_again(self._stage, received)
        return results

    def _wait(self, here: _UnderWay, shown: int) -> None:
        self._timeline.mark("wait", shown)
        for arrived in here.arrival:
            arrived()
        here.arrival = []

    def _send(self, tensors: Sequence[Tensor], to: int, group: dist.ProcessGroup | None) -> None:
        for tensor in tensors:
            self._recorder.hand_over("point_to_point", tensor.nbytes, "pipeline")
            self._sending.append(transfer.isend(tensor, to, group))
        # What was sent so long ago has arrived, as what has come back since shows.
        while len(self._sending) > self.most_sent:
            self._sending.popleft()[0].wait()
