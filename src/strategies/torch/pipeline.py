"""Pipeline: a step's batch passes the stages as micro-batches, and the stages work at the same time.

    gpipe (Huang 2019)                        1f1b (Narayanan 2019, without stale weights)
    rank 0 | F0 F1 F2 F3 .. .. B0 B1 B2 B3    rank 0 | F0 F1 .. B0 F2 B1 F3 B2 .. B3
    rank 1 | .. F0 F1 F2 F3 B0 B1 B2 B3 ..    rank 1 | .. F0 B0 F1 B1 F2 B2 F3 B3 ..

All schedules are torch's own; `src.partition.schedules.orders` has each one's order and source. 1f1b holds
fewer micro-batches' activations at once. Where a rank has several stages, the next rank gets its first work
sooner; where backward passes for weights are apart, they fill what would be idle.
"""

from __future__ import annotations

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.pipeline.schedules import torch_schedule
from src.runtime.torch.pipeline.stage_module import train_stages


def train(context: RankContext, recorder: Recorder) -> None:
    """Cut the model and train this rank's stages.

    Raises:
        ConfigError: when the model can't be cut as the configuration asks.
    """
    train_stages(context, recorder, torch_schedule(context.config.strategy["schedule"]), overlaps=True)
