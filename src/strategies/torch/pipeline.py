"""Pipeline: a step's batch passes the stages as micro-batches, and the stages work at the same time.

    gpipe (Huang 2019)                        1f1b (Narayanan 2019, without stale weights)
    stage 0 | F0 F1 F2 F3 .. .. B0 B1 B2 B3   stage 0 | F0 F1 .. B0 F2 B1 F3 B2 .. B3
    stage 1 | .. F0 F1 F2 F3 B0 B1 B2 B3 ..   stage 1 | .. F0 B0 F1 B1 F2 B2 F3 B3 ..

Both are torch's own schedules. 1f1b holds fewer micro-batches' activations at once.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.pipeline.stage_module import train_stages
from src.runtime.torch.pipeline.timed_stage import TimedStage

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def train(context: RankContext, recorder: Recorder) -> None:
    """Cut the model and train this rank's stage.

    Raises:
        ConfigError: when the model can't be cut as the configuration asks.
    """
    schedule_class = SCHEDULES[context.config.strategy["schedule"]]

    def schedule(stage: TimedStage, microbatches: int, loss: Any) -> PipelineScheduleSingle:
        return schedule_class(stage, microbatches, loss_fn=loss)

    train_stages(context, recorder, schedule, overlaps=True)
