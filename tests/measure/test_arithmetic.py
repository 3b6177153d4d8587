"""Every formula of `src/measure/arithmetic.py` on numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from src.measure import arithmetic


def test_ranks_that_share_the_batch_add_up_and_stages_do_not() -> None:
    assert arithmetic.job_rate([100.0, 110.0]) == 210
    # Both stages see every sample.
    assert arithmetic.job_rate([100.0, 110.0], viewers=2) == 105


def test_throughput_is_all_samples_over_all_time() -> None:
    # 50 steps of 64 samples: 3200. 25 steps take 0.1 s and 25 take 0.3 s: 2.5 + 7.5 = 10 s. 3200 / 10 = 320.
    # (The mean of the steps' own rates, 640 and 213, would say 427.)
    assert arithmetic.samples_per_second([64] * 50, [0.1] * 25 + [0.3] * 25) == pytest.approx(320)


def test_fewer_than_fifty_timed_steps_give_no_throughput() -> None:
    assert arithmetic.samples_per_second([64] * 49, [0.1] * 49) is None
    assert arithmetic.samples_per_second([64] * 50, [0.0] * 50) is None
    # Ten of six seconds are a minute.
    assert arithmetic.samples_per_second([60] * 10, [6.0] * 10) == pytest.approx(10)
    assert arithmetic.samples_per_second([60] * 10, [5.9] * 10) is None
    assert arithmetic.samples_per_second([60] * 9, [60.0] * 9) is None
    assert [arithmetic.few_steps(steps) for steps in (None, 49, 50)] == [None, True, False]


def test_workers_that_take_turns_count_over_the_longest_time() -> None:
    # 60 steps of 32 in 12 s, and 20 of 32 in 3 s before it was lost: 80 * 32 / 12. (Their own rates, 160 and
    # 213.3, would add up to 373.)
    lasting, lost = ([32] * 60, [0.2] * 60), ([32] * 20, [0.15] * 20)
    assert arithmetic.own_pace_rate([lasting, lost]) == pytest.approx(2560 / 12)
    assert arithmetic.own_pace_rate([lost]) is None
    assert arithmetic.own_pace_rate([]) is None


def test_what_a_ring_of_four_ranks_sends() -> None:
    # Three times on: another rank's part each time, which of a whole tensor is a quarter.
    assert arithmetic.ring_bytes("all_gather", 4, 100) == 300
    assert arithmetic.ring_bytes("reduce_scatter", 4, 400) == 300
    assert arithmetic.ring_bytes("all_reduce", 4, 400) == 600
    assert arithmetic.ring_bytes("point_to_point", 4, 400) == 400
    assert arithmetic.ring_bytes("all_reduce", 1, 400) == 0


def test_spread() -> None:
    # Sorted 1 2 3 4 10; inclusive quartiles stand at ranks 1 + 4/4 = 2 and 1 + 3*4/4 = 4: 2 and 4. Median 3.
    assert arithmetic.spread([10, 1, 4, 2, 3]) == (2, 3, 4)
    # Of 1 and 2: a quarter, a half and three quarters of the way.
    assert arithmetic.spread([1, 2]) == (1.25, 1.5, 1.75)
    assert arithmetic.spread([7.0]) == (7.0, 7.0, 7.0)
    assert arithmetic.spread([]) == (None, None, None)


def test_speedup_and_scaling_efficiency() -> None:
    # 1800 against 1000 samples/s: 1.8 times; over 2 workers 0.9 each.
    assert arithmetic.speedup(1800, 1000) == 1.8
    assert arithmetic.scaling_efficiency(1.8, 2) == 0.9
    assert arithmetic.speedup(None, 1000) is arithmetic.speedup(1800, None) is None
    assert arithmetic.speedup(1800, 0) is None
    assert arithmetic.scaling_efficiency(None, 2) is None


def test_train_time_efficiency_is_paper_1s_figure() -> None:
    # Paper 1: 109.47 s on one GPU, 78.61 s on two: 109.47 / (2 * 78.61) = 109.47 / 157.22 = 0.6963.
    assert arithmetic.train_time_efficiency(109.47, 2, 78.61) == pytest.approx(0.6963, abs=5e-5)
    assert arithmetic.train_time_efficiency(None, 2, 78.61) is None
    assert arithmetic.train_time_efficiency(109.47, 2, None) is None


def test_capacity() -> None:
    # Two at once give 900 + 700 = 1600 where one alone gives 1000: the machine holds 1.6 devices.
    assert arithmetic.capacity(1000, [900, 700]) == 1.6


def test_parity_gap_is_relative_above_one_and_absolute_below() -> None:
    reference = [2.0] * 5 + [0.5] * 5
    # |2.1 - 2.0| / 2.0 = 0.05 beats |0.54 - 0.5| / 1 = 0.04.
    losses = [2.1, *[2.0] * 4, 0.54, *[0.5] * 4]
    assert arithmetic.parity_gap(losses, reference) == pytest.approx(0.05)


def test_parity_looks_at_the_first_ten_losses_alone() -> None:
    same = [1.0] * 10
    assert arithmetic.parity_gap([*same, 5.0], [*same, 1.0]) == 0
    assert arithmetic.parity_gap(same[:9], same) is None
    assert arithmetic.parity_gap([math.nan, *same[1:]], same) == math.inf


@pytest.mark.parametrize(
    ("gap", "rounding", "holds"),
    [
        *[(1e-4, None, True), (1.01e-4, None, False), (math.inf, None, False), (1.01e-4, 3e-5, False)],
        # Three times what rounding alone does: 3 * 1e-3.
        *[(3e-3, 1e-3, True), (3.01e-3, 1e-3, False)],
        # Above 1e-2 nothing can be said, however small the gap.
        *[(0.03, 1e-2, True), (0.0, 1.01e-2, None), (0.0, math.nan, None)],
    ],
)
def test_parity_bound(gap: float, rounding: float | None, holds: bool | None) -> None:
    assert arithmetic.parity_holds(gap, rounding) is holds


@pytest.mark.parametrize(
    ("waited", "stolen", "disturbed"),
    [(0.05, 0.0, False), (0.051, 0.0, True), (None, 0.06, True), (0.01, None, None), (None, None, None)],
)
def test_a_run_is_disturbed_above_a_twentieth_of_its_time(
    waited: float | None, stolen: float | None, disturbed: bool | None
) -> None:
    fractions = {"cpu_wait_fraction": waited, "steal_fraction": stolen}
    assert arithmetic.disturbed(fractions) is disturbed


def test_probes_differ_by_more_than_a_tenth_of_the_larger() -> None:
    # (10 - 9.1) / 10 = 0.09; (10 - 8.9) / 10 = 0.11, whichever comes first.
    assert not arithmetic.probes_differ(10, 9.1)
    assert arithmetic.probes_differ(10, 8.9)
    assert arithmetic.probes_differ(8.9, 10)
    assert not arithmetic.probes_differ(None, 10)


@pytest.mark.parametrize(
    ("waited", "bound"), [(0.0, "compute"), (0.1, "compute"), (0.101, "input"), (0.9, "input"), (None, None)]
)
def test_a_run_is_bound_by_input_above_a_tenth_of_its_time(waited: float | None, bound: str | None) -> None:
    assert arithmetic.bound(waited) == bound


def test_occupancy() -> None:
    # 15 CPU seconds in 10 s on 2 cores: 15 / 20.
    assert arithmetic.occupancy(15, 10, 2) == 0.75
    assert arithmetic.occupancy(15, 0, 2) is None


def test_fraction() -> None:
    assert arithmetic.fraction(3, 4) == 0.75
    assert arithmetic.fraction(0, 4) == 0
    assert arithmetic.fraction(None, 4) is arithmetic.fraction(3, None) is arithmetic.fraction(3, 0) is None


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "virtual", "idle"),
    [
        ("gpipe", 2, 4, 1, 1 / 5),  # (2 - 1) / (4 + 2 - 1)
        ("1f1b", 4, 8, 1, 3 / 11),  # (4 - 1) / (8 + 4 - 1)
        ("gpipe", 4, 8, 2, 3 / 11),  # virtual stages do not help where they are not interleaved
        ("interleaved", 4, 8, 2, 3 / 19),  # (4 - 1) / (2 * 8 + 4 - 1)
        ("model_split", 2, 1, 1, 1 / 2),  # one of two works at a time
        ("gpipe", 1, 4, 1, 0),
        ("pipedream", 4, 1, 1, 0),
    ],
)
def test_ideal_bubble(schedule: str, stages: int, microbatches: int, virtual: int, idle: float) -> None:
    assert arithmetic.ideal_bubble(schedule, stages, microbatches, virtual) == pytest.approx(idle)


def test_ideal_bubble_of_an_unknown_schedule() -> None:
    with pytest.raises(ValueError, match="zigzag"):
        arithmetic.ideal_bubble("zigzag", 2, 4)


def test_ideal_step_seconds() -> None:
    # Stages of 2 and 3 s, 4 micro-batches: 3 more rounds of the slower one, 9; one way, 5; update 0.5.
    assert arithmetic.ideal_step_seconds([2, 3], 4, 0.5) == 14.5


def test_model_flops_utilization() -> None:
    # 2 GFLOP a sample, 100 samples/s: 200 GFLOP/s, of 2 devices that could do 400 each.
    assert arithmetic.model_flops_utilization(2e9, 100, 2, 4e11) == 0.25
    assert arithmetic.model_flops_utilization(2e9, 100, 2, None) is None
    assert arithmetic.model_flops_utilization(None, 100, 2, 4e11) is None
    assert arithmetic.model_flops_utilization(2e9, None, 2, 4e11) is None


def test_mean() -> None:
    assert arithmetic.mean([1, 2, 6]) == 3
    assert arithmetic.mean([]) is None


def test_energy_is_mean_power_times_timed_seconds() -> None:
    # 20 W over 3 s of training: 60 J, however long the evaluation between took.
    assert arithmetic.energy(20, 3) == 60
    assert arithmetic.energy(None, 3) is None
    assert arithmetic.energy(20, None) is None


def test_kendall_tau() -> None:
    # Pairs of (1,1) (2,3) (3,2): two go up together, one against: (2 - 1) / 3.
    assert arithmetic.kendall_tau([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)
    assert arithmetic.kendall_tau([1, 2, 3], [5, 6, 9]) == 1
    assert arithmetic.kendall_tau([1, 2, 3], [9, 6, 5]) == -1
    # A tie in the second: 2 concordant pairs of 3, / sqrt(3 * 2).
    assert arithmetic.kendall_tau([1, 2, 3], [1, 1, 2]) == pytest.approx(2 / math.sqrt(6))
    assert arithmetic.kendall_tau([1, 2], [4, 4]) is None


@pytest.mark.parametrize(
    ("x", "value"), [(0.5, None), (1, 0.8), (1.5, 0.6), (2, 0.4), (3.5, 0.25), (4, 0.2), (4.1, None)]
)
def test_interpolate_runs_straight_between_points_and_knows_nothing_outside(
    x: float, value: float | None
) -> None:
    # From (2, 0.4) to (4, 0.2): three quarters of the way is 0.4 - 0.75 * 0.2.
    interpolated = arithmetic.interpolate([(1, 0.8), (2, 0.4), (4, 0.2)], x)
    assert interpolated == (None if value is None else pytest.approx(value))
    assert arithmetic.interpolate([], x) is None
