"""Model split: layers over devices, one micro-batch at a time, while other stages wait (paper 4, Fig. 3).

stage 0 | F0 .. .. B0 | F1 .. .. B1
stage 1 | .. F0 B0 .. | .. F1 B1 ..
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from src.compat.pipelining import MicrobatchSchedule
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.pipeline.stage_module import train_stages
from src.runtime.torch.pipeline.timed_stage import TimedStage


class Sequential(MicrobatchSchedule):
    """A schedule in which a micro-batch's backward pass ends before the next one's forward pass begins."""

    def run_microbatch(self, stage: Any, index: int) -> None:
        """Run micro-batch `index` forward and backward through `stage`, transfers included."""
        transfer(stage.get_fwd_recv_ops(index))
        self.forward(index)
        transfer(stage.get_fwd_send_ops(index))
        self.compute_loss(index)
        transfer(stage.get_bwd_recv_ops(index))
        self.backward(index)
        transfer(stage.get_bwd_send_ops(index))


def transfer(operations: list[Any]) -> None:
    """Run torch's point-to-point `operations`, and wait until the tensors are sent or received."""
    works = [op.op(op.tensor, op.peer, group=op.group, tag=op.tag) for op in operations]
    for work in works:
        work.wait()


def train(context: RankContext, recorder: Recorder) -> None:
    """Cut the model and train this rank's stage.

    Raises:
        ConfigError: when the model can't be cut as the configuration asks.
    """

    def schedule(stages: Sequence[TimedStage], microbatches: int, loss: Any) -> PipelineScheduleSingle:
        return Sequential(stages[0], microbatches, loss_fn=loss)

    train_stages(context, recorder, schedule, overlaps=False)
