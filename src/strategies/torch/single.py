"""One device without distribution: the reference with which every other strategy is compared."""

from __future__ import annotations

from pytorch_lightning.strategies import SingleDeviceStrategy

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.lightning.fit import fit
from src.runtime.torch.lightning.rounding import measure_gap
from src.runtime.torch.setup import root_device


def train(context: RankContext, recorder: Recorder) -> None:
    """Train the model on this rank's one device, and measure what rounding does to its first losses."""
    fit(context, recorder, SingleDeviceStrategy(device=root_device(context)))
    measure_gap(context, recorder, SingleDeviceStrategy(device=root_device(context)))
