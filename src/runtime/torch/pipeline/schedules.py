"""Make torch's schedules of a pipeline by their names."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from src.runtime.torch.pipeline.stage_module import ScheduleFactory
from src.runtime.torch.pipeline.timed_stage import TimedStage

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def torch_schedule(name: str) -> ScheduleFactory:
    """Return what makes the schedule `name` of a stage, its micro-batches and its loss."""
    schedule_class = SCHEDULES[name]

    def schedule(stage: TimedStage, microbatches: int, loss: Any) -> PipelineScheduleSingle:
        return schedule_class(stage, microbatches, loss_fn=loss)

    return schedule
