"""Pipeline: a step's batch flows through the stages as micro-batches, which the stages work on at once.

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
from src.runtime.torch import stages
from src.runtime.torch.pipeline_stage import TimedStage
from src.worker import Run

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def train(run: Run, recorder: Recorder) -> None:
    """Trains this rank's stage."""
    chosen = SCHEDULES[run.config.strategy["schedule"]]

    def schedule(stage: TimedStage, microbatches: int, loss: Any) -> PipelineScheduleSingle:
        return chosen(stage, microbatches, loss_fn=loss)

    stages.train(run, recorder, schedule, overlaps=True)
