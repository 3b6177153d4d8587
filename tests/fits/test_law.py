"""The law of what is live, on hand-made steps of two moments."""

from __future__ import annotations

import numpy as np
import pytest

from src.config.mistakes import ConfigError
from src.fits.law import MOST_SAMPLES, Law
from src.measure.live_bytes import PARTS

WEIGHTS, ACTIVATIONS = PARTS.index("weights"), PARTS.index("activations")


def sizes(devices: int, samples: int) -> np.ndarray:
    """Two moments: 10 bytes and a part of 80, with 3 a sample; and 50 bytes with one a sample."""
    moments = np.zeros((2, len(PARTS)))
    moments[0, WEIGHTS], moments[0, ACTIVATIONS] = 10 + 80 / devices, 3 * samples
    moments[1, WEIGHTS], moments[1, ACTIVATIONS] = 50, samples
    return moments


def law(*points: tuple[int, int]) -> Law:
    return Law.of({point: sizes(*point) for point in points})


def test_other_samples_and_devices_follow_and_the_fullest_moment_may_be_another() -> None:
    found = law((2, 2), (2, 4), (4, 2))
    for devices in (1, 2, 8, 64):
        for samples in (1, 3, 100):
            expected = sizes(devices, samples)
            fullest = expected[expected.sum(axis=1).argmax()]
            most = found.most(devices, samples)
            assert [most[part] for part in PARTS] == pytest.approx(fullest.tolist())


def test_without_a_third_step_nothing_is_divided() -> None:
    found = law((2, 2), (2, 4))
    assert found.most(64, 100) == found.most(2, 100)


def test_the_most_samples_are_those_with_which_it_still_fits() -> None:
    found = law((2, 2), (2, 4), (4, 2))
    # 10 + 80 / 8 + 3 s <= 350 for s <= 110; of one device 90 + 3 s <= 89 for none.
    assert (found.most_samples(8, 350.0), found.most_samples(8, 349.9), found.most_samples(1, 89.0)) == (
        110,
        109,
        0,
    )
    assert found.most_samples(8, 1e12) >= MOST_SAMPLES


def test_steps_with_other_moments_have_no_law() -> None:
    with pytest.raises(ConfigError, match="other things with other samples"):
        Law.of({(2, 2): sizes(2, 2), (2, 4): sizes(2, 4)[:1]})
