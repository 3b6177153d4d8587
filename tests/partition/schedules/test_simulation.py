"""A simulated step is the one that formulas and tables worked by hand give."""

from __future__ import annotations

import time

import numpy as np
import pytest

from src.config.schedules import SCHEDULES, Placement
from src.measure.arithmetic import ideal_bubble, ideal_step_seconds
from src.measure.timeline import bubble_fraction
from src.partition.saved_tensors import in_flight
from src.partition.schedules import simulation
from src.partition.schedules.actions import Action, Kind
from src.partition.schedules.simulation import Costs, Simulated, simulate
from src.partition.schedules.tables import table
from src.report import activity


def simulated(name: str, ranks: int, virtual: int, microbatches: int, **costs: object) -> Simulated:
    """A schedule whose passes take a second, and backward ones two, divided by the stages of a rank."""
    ones = np.full(ranks * virtual, 1 / virtual)
    given = {"forward": ones, "input_backward": ones, "weight_backward": ones} | costs
    return simulate(table(name, ranks, virtual, microbatches), SCHEDULES[name].placement, Costs(**given))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("microbatches", [8, 16, 64])
@pytest.mark.parametrize(
    ("name", "virtual"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3)]
)
def test_bubbles_are_the_closed_forms(name: str, virtual: int, ranks: int, microbatches: int) -> None:
    found = simulated(name, ranks, virtual, microbatches)
    assert found.bubble_fraction == pytest.approx(ideal_bubble(name, ranks, microbatches, virtual), abs=1e-12)
    ideal = simulation.ideal_bubble(name, ranks, virtual, microbatches)
    assert ideal == pytest.approx(float(found.bubble_fraction), abs=1e-12)


def test_a_looped_breadth_first_bubble_is_that_of_interleaved_stages() -> None:
    # Lamy-Poirier 2022, section 4: the same bubble, in another order.
    found = simulated("looped_bfs", 4, 2, 8)
    assert found.bubble_fraction == pytest.approx(ideal_bubble("interleaved", 4, 8, 2), abs=1e-12)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 16)])
def test_zero_bubbles(ranks: int, microbatches: int) -> None:
    # Qi 2023, section 2: ZB-H1 leaves (p - 1)(F + I - W) of 1F1B's (p - 1)(F + I + W) idle.
    found = simulated("zero_bubble", ranks, 1, microbatches)
    assert found.step_seconds == pytest.approx(3 * microbatches + ranks - 1)
    # Section 6: none where all passes take equally long, but for the first and the last pass's way
    # through the ranks, which is not a bubble of any rank's own span.
    own = simulated("zbv", ranks, 2, microbatches)
    for start, end in zip(own.start, own.end, strict=True):
        assert (end - start).sum() == pytest.approx(end[-1] - start[0])


def test_unequal_stages_have_the_formula_s_step() -> None:
    taken = np.array([3.0, 1.0, 2.0])
    costs = {
        "forward": taken / 3,
        "input_backward": taken / 3,
        "weight_backward": taken / 3,
        "optimizer": 0.5,
    }
    assert simulated("gpipe", 3, 1, 6, **costs).step_seconds == pytest.approx(
        ideal_step_seconds(list(taken), 6, 0.5)
    )


def test_a_step_worked_by_hand() -> None:
    # Two stages of 1 + 2 and 2 + 3 seconds, two micro-batches; a message takes 0.5 of its link and 0.25 more.
    #   rank 0 | F0 0-1, F1 1-2, .., B0 7.5-9.5, B1 12.5-14.5
    #   rank 1 | F0 1.75-3.75, B0 3.75-6.75, F1 6.75-8.75, B1 8.75-11.75
    found = simulated(
        "1f1b",
        2,
        1,
        2,
        forward=np.array([1.0, 2.0]),
        input_backward=np.array([1.5, 2.0]),
        weight_backward=np.array([0.5, 1.0]),
        sent=0.5,
        sent_back=0.5,
        latency=0.25,
        optimizer=1.0,
        saved=np.array([10.0, 20.0]),
    )
    assert found.start[0].tolist() == [0, 1, 7.5, 12.5]
    assert found.end[1].tolist() == [3.75, 6.75, 8.75, 11.75]
    assert found.updated.tolist() == [15.5, 12.75]
    assert found.held_most.tolist() == [20, 20]
    busy = 1 + 1 + 2 + 2 + 2 + 2 + 3 + 3 + 2 * 1
    assert found.bubble_fraction == pytest.approx(1 - busy / (2 * 15.5))
    assert bubble_fraction(found.timelines()) == pytest.approx(float(found.bubble_fraction))
    assert found.timelines()[1][:2] == [(0, "wait", 0, 0.0, 1.75), (0, "forward", 0, 1.75, 3.75)]


def test_a_report_draws_all_activities() -> None:
    assert set(simulation.ACTIVITIES.values()) | {"wait", "optimizer"} <= activity.ACTIVITIES.keys()


def test_a_link_carries_one_message_after_the_other() -> None:
    found = simulated("gpipe", 2, 1, 3, sent=4.0)
    assert found.start[1][:3].tolist() == [5, 9, 13]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_what_is_held_is_the_formula_s(name: str) -> None:
    found = simulated(name, 4, 1, 8, saved=1.0, saved_for_weights=1.0)
    assert found.held_most.tolist() == [2 * in_flight(table(name, 4, 1, 8)[rank])[rank] for rank in range(4)]


def test_a_v_holds_as_much_on_each_rank_as_1f1b_on_its_first() -> None:
    # Qi 2023, section 6: p micro-batches' activations of a p-th of the model each, on every rank.
    found = simulated("zbv", 4, 2, 16, saved=0.5, saved_for_weights=0.0)
    assert found.held_most.max() <= 4


def test_parts_of_a_backward_pass_free_their_own() -> None:
    order = (
        (Action(0, Kind.FORWARD, 0), Action(0, Kind.INPUT_BACKWARD, 0), Action(0, Kind.WEIGHT_BACKWARD, 0)),
    )
    ones = np.ones(1)
    costs = Costs(forward=ones, input_backward=ones, weight_backward=ones, saved=5.0, saved_for_weights=2.0)
    assert simulate(order, Placement.LOOP, costs).held[0].tolist() == [7, 7, 2]


def test_configurations_are_simulated_at_once() -> None:
    draw = np.random.default_rng(0)
    parts = {
        name: draw.uniform(0.5, 2.0, (3, 2, 8)) for name in ("forward", "input_backward", "weight_backward")
    }
    links = {"sent": draw.uniform(0, 1, (3, 1, 7)), "latency": draw.uniform(0, 1, 2)}
    for name in ("interleaved", "zero_bubble", "zbv", "dualpipe_v"):
        together = simulated(name, 4, 2, 8, **parts, **links)
        for place in np.ndindex(3, 2):
            one = {key: values[place] for key, values in parts.items()}
            alone = simulated(
                name, 4, 2, 8, **one, sent=links["sent"][place[0], 0], latency=links["latency"][place[1]]
            )
            assert together.step_seconds[place] == alone.step_seconds
            assert together.timelines(place) == alone.timelines()


def test_passes_that_wait_for_each_other_are_named() -> None:
    order = ((Action(0, Kind.BACKWARD, 0), Action(0, Kind.FORWARD, 0)), (Action(1, Kind.FORWARD, 0),))
    ones = np.ones(2)
    with pytest.raises(ValueError, match="wait for each other: 0B0, 1F0"):
        simulate(order, Placement.LOOP, Costs(forward=ones, input_backward=ones, weight_backward=ones))


def test_a_thousand_configurations_take_seconds() -> None:
    costs = np.random.default_rng(0).uniform(0.5, 2.0, (1000, 16))
    began = time.process_time()
    found = simulated("1f1b", 16, 1, 64, forward=costs, input_backward=costs, weight_backward=costs)
    assert found.step_seconds.shape == (1000,)
    assert time.process_time() - began < 10
