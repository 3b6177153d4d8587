"""Make torch's schedules of a pipeline by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    get_schedule_class,
)

from src.runtime.torch.pipeline.stage_module import ScheduleFactory
from src.runtime.torch.pipeline.timed_stage import TimedStage

# By the names of `src.config.schedules`.
TORCH_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved": "Interleaved1F1B",
    "zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}


def torch_schedule(name: str) -> ScheduleFactory:
    """Return what makes the schedule `name` of a rank's stages, their micro-batches and the loss.

    One of several stages a rank leaves gradients as sums over micro-batches (`scale_grads`): torch would
    divide those of a weight that two of the rank's stages share twice.
    """
    schedule_class = get_schedule_class(TORCH_NAMES[name])

    def schedule(
        stages: Sequence[TimedStage], microbatches: int, loss: Any
    ) -> PipelineScheduleSingle | PipelineScheduleMulti:
        if issubclass(schedule_class, PipelineScheduleSingle):
            return schedule_class(stages[0], microbatches, loss_fn=loss)
        return schedule_class(list(stages), microbatches, loss_fn=loss, scale_grads=False)

    return schedule
