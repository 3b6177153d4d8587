"""PipeDream (Narayanan 2019): a pipeline without a flush between steps, whose stages see stale weights.

    rank 0 | F0 F1 B0 F2 B1 F3 B2 F4 ..       in flight: 2 micro-batches, and 2 versions of the weights
    rank 1 | .. F0 B0 F1 B1 F2 B2 F3 ..                  1 micro-batch, and the newest weights alone

No stage idles once the pipeline is full. The price is that the gradient of a step is that of older weights,
by up to as many updates as there are stages after this one (`src.partition.schedules.pipedream`).
"""

from __future__ import annotations

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.pipeline import pipedream_module
from src.runtime.torch.pipeline.stage_module import train_module


def train(context: RankContext, recorder: Recorder) -> None:
    """Cut the model and train this rank's stage.

    Raises:
        ConfigError: when the model can't be cut as the configuration asks.
    """
    train_module(context, recorder, pipedream_module.PipeDreamModule)
