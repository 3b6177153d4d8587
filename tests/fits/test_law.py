"""The law of what is live, on hand-made steps of two moments."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from src.config.mistakes import ConfigError
from src.measure.live_bytes import PARTS
from src.predict.law import MOST_SAMPLES, Law
from src.predict.looks import share_of

WEIGHTS, ACTIVATIONS = PARTS.index("weights"), PARTS.index("activations")


def sizes(devices: int, samples: int) -> np.ndarray:
    """Two moments: 10 bytes and a part of 80, with 3 a sample; and 50 bytes with one a sample."""
    moments = np.zeros((2, len(PARTS)))
    moments[0, WEIGHTS], moments[0, ACTIVATIONS] = 10 + 80 / devices, 3 * samples
    moments[1, WEIGHTS], moments[1, ACTIVATIONS] = 50, samples
    return moments


def law(*points: tuple[int, int]) -> Law:
    return Law.of({point: sizes(*point) for point in points}, lambda devices: 1 / devices)


def test_other_samples_and_devices_follow_and_the_fullest_moment_may_be_another() -> None:
    found = law((2, 2), (2, 4), (2, 8), (4, 2))
    for devices in (1, 2, 8, 64):
        for samples in (1, 3, 100):
            expected = sizes(devices, samples)
            fullest = expected[expected.sum(axis=1).argmax()]
            most = found.most(devices, samples)
            assert [most[part] for part in PARTS] == pytest.approx(fullest.tolist())


def test_without_a_third_step_nothing_is_divided() -> None:
    found = law((2, 2), (2, 4), (2, 8))
    assert found.most(64, 100) == found.most(2, 100)


def test_the_most_samples_are_those_with_which_it_still_fits() -> None:
    found = law((2, 2), (2, 4), (2, 8), (4, 2))
    # 10 + 80 / 8 + 3 s <= 350 for s <= 110; of one device 90 + 3 s <= 89 for none.
    assert (found.most_samples(8, 350.0), found.most_samples(8, 349.9), found.most_samples(1, 89.0)) == (
        110,
        109,
        0,
    )
    assert found.most_samples(8, 1e12) >= MOST_SAMPLES


def test_rows_that_do_not_divide_are_the_first_shards() -> None:
    model = nn.Linear(10, 7, bias=False)
    share = share_of(model)
    # ceil(7 / 4) = 2 rows of seven; on 64 devices the first one has a whole row.
    assert (share(1), share(4), share(64)) == (1.0, pytest.approx(2 / 7), pytest.approx(1 / 7))
    found = Law.of({point: sizes(*point) for point in ((2, 2), (2, 4), (2, 8), (4, 2))}, share)
    assert found.most(64, 100) == found.most(7, 100) != found.most(4, 100)


def test_steps_that_follow_no_law_have_none() -> None:
    with pytest.raises(ConfigError, match="other things with other samples"):
        Law.of({(2, 2): sizes(2, 2), (2, 4): sizes(2, 4)[:1], (2, 8): sizes(2, 8)}, float)
    squares = {(2, count): sizes(2, count**2) for count in (2, 4, 8)}
    with pytest.raises(ConfigError, match="doesn't go with the samples"):
        Law.of(squares, float)
