"""Live bytes are added up by part; a picture of them has the fullest moment."""

from __future__ import annotations

from src.measure.live_bytes import PARTS, facts
from src.measure.live_step import LiveBytes


def test_bytes_are_added_up_and_the_fullest_moment_is_found() -> None:
    found = LiveBytes.of(
        [(5.0, "weights", 8), (5.5, "activations", 4), (6.0, "activations", -4), (7.0, "other", 1)]
    )
    assert found.sizes.sum(axis=1).tolist() == [8, 12, 8, 9]
    assert found.seconds.tolist() == [0.0, 0.5, 1.0, 2.0]
    assert found.most() == dict(zip(PARTS, (8, 0, 0, 4, 0, 0), strict=True))


def test_fewer_moments_still_have_the_fullest_one() -> None:
    changes = [(moment / 1000, "other", 3 if moment % 2 else -3) for moment in range(1, 1000)]
    changes[600] = (changes[600][0], "weights", 50)
    found = LiveBytes.of(changes)
    thin = found.thinned(20)
    assert len(thin.seconds) <= 20 and thin.most() == found.most()
    assert found.thinned(5000) is found


def test_a_runs_figures_are_those_of_the_fullest_rank() -> None:
    nothing = dict.fromkeys(PARTS, 0)
    ranks = {
        0: {"measured": nothing | {"weights": 5}, "predicted": nothing | {"weights": 6}},
        1: {"measured": nothing | {"other": 9}, "predicted": None},
    }
    assert facts(ranks) == {"live_peak_bytes": 9, "live_predicted_bytes": None}
    assert facts({0: ranks[0]}) == {"live_peak_bytes": 5, "live_predicted_bytes": 6}
    assert facts({}) == {}
