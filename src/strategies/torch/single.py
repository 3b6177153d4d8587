"""One device, no distribution: what every other strategy is compared with."""

from __future__ import annotations

from pytorch_lightning.strategies import SingleDeviceStrategy

from src.measure.recorder import Recorder
from src.runtime.torch import training as runtime
from src.worker import Run


def train(run: Run, recorder: Recorder) -> None:
    """Trains on the rank's one device."""
    runtime.fit(run, recorder, SingleDeviceStrategy(device=runtime.root_device(run)))
