"""Compute what is live at each moment of a step from that of a few steps that were looked at.

At each moment a device holds tensors of a fixed size, some whose size goes with the samples of a micro-batch,
and some of which each of the devices has its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from src.config.mistakes import ConfigError
from src.measure.live_bytes import PARTS

MOST_SAMPLES = 2**20


@dataclass(frozen=True)
class Law:
    """Bytes by part at each moment of a step, each [moments, parts].

    Attributes:
        whole: what each device holds.
        of_sample: what it holds for each sample of a micro-batch.
        divided: what all devices hold together of what each has its part of.
    """

    whole: np.ndarray
    of_sample: np.ndarray
    divided: np.ndarray

    @classmethod
    def of(cls, looked_at: Mapping[tuple[int, int], np.ndarray]) -> Law:
        """Find the law of steps by (devices, samples of a micro-batch): two, and a third of more devices.

        The first two are of as many devices. Without a third one nothing is divided.

        Raises:
            ConfigError: for steps that have not the same moments.
        """
        if len({sizes.shape for sizes in looked_at.values()}) > 1:
            raise ConfigError("its steps do other things with other samples or devices")
        ((devices, few), first), ((_, many), second), *third = looked_at.items()
        of_sample = (second - first) / (many - few)
        divided = np.zeros_like(first)
        for (more, samples), sizes in third:
            divided = (first - sizes + (samples - few) * of_sample) / (1 / devices - 1 / more)
        return cls(first - few * of_sample - divided / devices, of_sample, divided)

    def most(self, devices: int, samples: int) -> dict[str, float]:
        """Return the bytes by part at the moment when a device holds most."""
        sizes = self.whole + samples * self.of_sample + self.divided / devices
        fullest = sizes[sizes.sum(axis=1).argmax()]
        return dict(zip(PARTS, map(float, np.maximum(fullest, 0.0)), strict=True))

    def most_samples(self, devices: int, room: float) -> int:
        """Return the most samples of a micro-batch with which a device holds no more than `room` bytes."""
        # Whatever moment comes to be the fullest, that is a convex function of the samples.
        fits = [s for s in _powers() if sum(self.most(devices, s).values()) <= room]
        if not fits:
            return 0
        low, high = fits[-1], 2 * fits[-1]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if sum(self.most(devices, middle).values()) <= room else (low, middle)
        return low


def _powers() -> list[int]:
    return [2**power for power in range(MOST_SAMPLES.bit_length())]
