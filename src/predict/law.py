"""Compute what is live at each moment of a step from that of a few steps that were looked at.

At each moment a device holds tensors of a fixed size, some whose size goes with the samples of a micro-batch,
and some of which each of the devices has its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from src.config.mistakes import ConfigError
from src.measure.live_bytes import PARTS

MOST_SAMPLES = 2**20
# By what part of it steps may be off a straight line over samples.
STRAIGHT = 0.01


@dataclass(frozen=True)
class Share:
    """The part of a model that the first of several shards has.

    It has as many rows of each parameter as any, which is more than its part where rows don't divide.

    Attributes:
        shapes: of each parameter: rows, and elements of one.
    """

    shapes: tuple[tuple[int, int], ...]

    def __call__(self, devices: int) -> float:
        """Return the part that one of so many has."""
        whole = sum(rows * row for rows, row in self.shapes) or 1
        return sum(-(-rows // devices) * row for rows, row in self.shapes) / whole


def all_of_it(devices: int) -> float:
    """Return the part of a model that each of several devices has where nothing is divided."""
    return 1.0


@dataclass(frozen=True)
class Law:
    """Bytes by part at each moment of a step, each [moments, parts].

    Attributes:
        whole: what each device holds.
        of_sample: what it holds for each sample of a micro-batch.
        divided: what all devices hold together of what each has its part of.
        share: from a number of devices, the part of that which the fullest one holds.
    """

    whole: np.ndarray
    of_sample: np.ndarray
    divided: np.ndarray
    share: Callable[[int], float]

    @classmethod
    def of(cls, looked_at: Mapping[tuple[int, int], np.ndarray], share: Callable[[int], float]) -> Law:
        """Find the law of steps by (devices, samples of a micro-batch).

        Two at least are of the first one's number of devices, in order of samples; those between the first
        and the last of these tell whether what is held goes with samples. One more, of more devices, tells
        what is divided.

        Raises:
            ConfigError: for steps that have not the same moments, or don't go with samples.
        """
        if len({sizes.shape for sizes in looked_at.values()}) > 1:
            raise ConfigError("its steps do other things with other samples or devices")
        devices = next(iter(looked_at))[0]
        (few, first), *between, (more, third) = [
            (samples, sizes) for (count, samples), sizes in looked_at.items() if count == devices
        ]
        of_sample = (third - first) / (more - few)
        for many, second in between:
            off = abs(first + (many - few) * of_sample - second).sum(axis=1).max()
            if off > STRAIGHT * second.sum(axis=1).max():
                raise ConfigError("what it holds doesn't go with the samples of a micro-batch")
        last = [(count, sizes) for (count, _), sizes in looked_at.items() if count != devices]
        divided = np.zeros_like(first)
        for count, sizes in last:
            divided = (first - sizes) / (share(devices) - share(count))
        return cls(first - few * of_sample - divided * share(devices), of_sample, divided, share)

    def sizes(self, devices: int, samples: int) -> np.ndarray:
        """Return the bytes by part at each moment of a step [moments, parts]."""
        return self.whole + samples * self.of_sample + self.divided * self.share(devices)

    def most(self, devices: int, samples: int) -> dict[str, float]:
        """Return the bytes by part at the moment when a device holds most."""
        sizes = self.sizes(devices, samples)
        fullest = sizes[sizes.sum(axis=1).argmax()]
        return dict(zip(PARTS, map(float, np.maximum(fullest, 0.0)), strict=True))

    def most_samples(self, devices: int, room: float) -> int:
        """Return the most samples, up to `MOST_SAMPLES`, with which a device holds `room` bytes at most."""
        # Whatever moment comes to be the fullest, that is a convex function of the samples.
        fits = [s for s in _powers() if sum(self.most(devices, s).values()) <= room]
        if not fits:
            return 0
        if fits[-1] >= MOST_SAMPLES:
            return MOST_SAMPLES
        low, high = fits[-1], 2 * fits[-1]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if sum(self.most(devices, middle).values()) <= room else (low, middle)
        return low


@dataclass(frozen=True)
class Fullest:
    """Laws of several devices, of which the one counts that holds most."""

    laws: Sequence[Law]

    def most(self, devices: int, samples: int) -> dict[str, float]:
        """Return the bytes by part of the one that holds most, when it does."""
        return max((law.most(devices, samples) for law in self.laws), key=lambda parts: sum(parts.values()))

    def most_samples(self, devices: int, room: float) -> int:
        """Return the most samples with which each of them holds `room` bytes at most."""
        return min(law.most_samples(devices, room) for law in self.laws)


def _powers() -> list[int]:
    return [2**power for power in range(MOST_SAMPLES.bit_length())]
