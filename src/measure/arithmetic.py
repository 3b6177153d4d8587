"""Compute every published figure: all formulas are here, each tested on numbers worked by hand.

Times are seconds, rates samples per second, memory and traffic bytes. A figure that cannot be
computed from what was measured is `None`, never a guess.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

# Fewer steps than these give no rate, unless they take long: then as many as the second number, over so many
# seconds.
MIN_TIMED_STEPS, MIN_SLOW_STEPS, SLOW_SECONDS = 50, 10, 60.0
# The losses of the first steps are compared, and their relative gap may be as large as this, or as this many
# times what rounding alone does to the reference; where that is above the last bound, nothing can be said.
PARITY_STEPS = 10
PARITY_BOUND = 1e-4
ROUNDING_GAPS = 3
UNSTABLE_BOUND = 1e-2
# Probes of one machine differ by no more than this share of the faster one.
PROBE_BOUND = 0.10
# A run whose rank was kept from its cores for more than this share of the window was disturbed.
DISTURBED = 0.05
# A run whose ranks waited for their next batch for more than this share of the window is bound by its input.
INPUT_BOUND = 0.10
DISTURBANCES = ("cpu_wait_fraction", "steal_fraction")


def ring_bytes(kind: str, ranks: int, size: float) -> float:
    """Return the bytes that a rank sends for an exchange of `size` bytes of its own by a ring of ranks.

    An all-gather passes on each part but one. An all-reduce is a reduce-scatter and an all-gather of its
    results (Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations).
    """
    others = ranks - 1
    shares = {"all_gather": others, "reduce_scatter": others / ranks, "all_reduce": 2 * others / ranks}
    return size * shares.get(kind, 1)


def samples_per_second(samples: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Return a rank's samples per second: the samples of its timed steps over their wall time.

    `None` where these aren't enough: a shorter window says nothing.
    """
    if not enough(seconds) or sum(seconds) <= 0:
        return None
    return sum(samples) / sum(seconds)


def enough(seconds: Sequence[float]) -> bool:
    """Return whether timed steps are so many, or take so long, that their rate says something."""
    return len(seconds) >= MIN_TIMED_STEPS or (
        len(seconds) >= MIN_SLOW_STEPS and sum(seconds) >= SLOW_SECONDS
    )


def few_steps(timed: float | None) -> bool | None:
    """Return whether a rate is of so few timed steps that it is marked; `None` where that isn't known."""
    return None if timed is None else timed < MIN_TIMED_STEPS


def job_rate(rates: Sequence[float], viewers: int = 1) -> float:
    """Return the job's samples/s from its ranks' samples/s, where `viewers` ranks see each sample.

    It is their sum where ranks share the batch, and their mean where all hold parts of the model: they see
    every sample, and their clocks differ slightly.
    """
    return sum(rates) / viewers


def own_pace_rate(workers: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """Return the job's samples/s where workers step at their own pace: all samples over the longest time.

    Each worker is (samples of its steps, seconds of its steps); one that was lost has fewer steps.
    `None` unless one worker has enough of them.
    """
    if not any(enough(seconds) for _, seconds in workers):
        return None
    return sum(sum(samples) for samples, _ in workers) / max(sum(seconds) for _, seconds in workers)


def spread(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return first quartile, median and third quartile (inclusive method); `None`s without values."""
    if not values:
        return None, None, None
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, median(values), third


def speedup(rate: float | None, baseline: float | None) -> float | None:
    """Return S(N): the throughput of N workers over that of the baseline, `None` if either is unknown."""
    if rate is None or not baseline:
        return None
    return rate / baseline


def scaling_efficiency(speedup: float | None, workers: int) -> float | None:
    """Return S(N) / N, the speed-up over the number of workers."""
    return None if speedup is None else speedup / workers


def train_time_efficiency(single: float | None, workers: int, several: float | None) -> float | None:
    """Return T1 / (N * TN) from training times; with a weak-scaled batch this is paper 1's 69.63 %."""
    if single is None or not several:
        return None
    return single / (workers * several)


def training_cost(device_hour: float, devices: int, seconds: float | None) -> float | None:
    """Return what training costs: the price of a device for an hour, times devices, times hours."""
    return None if seconds is None else device_hour * devices * seconds / 3600


def capacity(alone: float, together: Sequence[float]) -> float:
    """Return C(N): the summed rate of N independent `single` runs over the rate of one that runs alone."""
    return sum(together) / alone


def parity_gap(losses: Sequence[float], reference: Sequence[float]) -> float | None:
    """Return the largest |a - b| / max(1, |b|) over the first `PARITY_STEPS` losses of two runs.

    It is `None` if either run has fewer losses, and infinite if a loss is NaN.
    """
    pairs = list(zip(losses[:PARITY_STEPS], reference[:PARITY_STEPS], strict=False))
    if len(pairs) < PARITY_STEPS:
        return None
    gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in pairs]
    return math.inf if any(math.isnan(gap) for gap in gaps) else max(gaps)


def parity_holds(gap: float, rounding_gap: float | None) -> bool | None:
    """Return whether a parity gap is no larger than rounding explains, `None` for an unstable reference.

    It is where the gap is at most `PARITY_BOUND` or `ROUNDING_GAPS` times `rounding_gap`, the gap of the
    reference to itself from weights changed by one last digit. The reference is unstable where that is above
    `UNSTABLE_BOUND`.
    """
    own = rounding_gap or 0.0
    if own > UNSTABLE_BOUND or math.isnan(own):
        return None
    return gap <= max(PARITY_BOUND, ROUNDING_GAPS * own)


def probes_differ(first: float | None, second: float | None) -> bool:
    """Return whether two known probe rates differ by more than `PROBE_BOUND` of the larger one."""
    if not first or not second:
        return False
    return abs(first - second) / max(first, second) > PROBE_BOUND


def probe_changed(pairs: Sequence[tuple[float | None, float | None]]) -> bool | None:
    """Return whether the probe of any rank, (before, after) its training, has changed by the bound.

    `None` where a probe is missing and no other one has changed, or where there is no rank.
    """
    if any(probes_differ(before, after) for before, after in pairs):
        return True
    return None if not pairs or any(None in pair for pair in pairs) else False


def disturbed(metrics: Mapping[str, Any]) -> bool | None:
    """Return whether others kept a run from its cores for more than `DISTURBED` of its window.

    `metrics` has `cpu_wait_fraction` and `steal_fraction`; `None` where either is unknown, and the other
    isn't above the bound.
    """
    fractions = [metrics.get(key) for key in DISTURBANCES]
    if any(fraction is not None and fraction > DISTURBED for fraction in fractions):
        return True
    return None if None in fractions else False


def bound(input_wait_fraction: float | None) -> str | None:
    """Return what bounds a run's speed: `input` above `INPUT_BOUND`, else `compute`; `None` if unknown."""
    if input_wait_fraction is None:
        return None
    return "input" if input_wait_fraction > INPUT_BOUND else "compute"


def occupancy(cpu_seconds: float, wall: float, cores: int) -> float | None:
    """Return a process's CPU seconds over wall seconds and cores; waits that spin count as use."""
    return None if wall <= 0 else cpu_seconds / (wall * cores)


def product(*factors: float | None) -> float | None:
    """Return the product of factors, `None` if one of them is unknown."""
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def fraction(part: float | None, whole: float | None) -> float | None:
    """Return part / whole, both in the same unit; `None` when either is missing or the whole is 0."""
    if part is None or not whole:
        return None
    return part / whole


def ideal_bubble(schedule: str, stages: int, microbatches: int, virtual: int = 1) -> float:
    """Return the idle share that a pipeline schedule has by itself, with stages of equal time.

    For `gpipe`, `1f1b` and `interleaved` (`virtual` stages a worker, no fewer micro-batches than workers) see
    Narayanan 2021, section 2.2, whose share b of the ideal time is b / (1 + b) of the whole; under
    `model_split` one stage works at a time, and `pipedream`'s pipeline stays full.

    Raises:
        ValueError: for a schedule without a known formula.
    """
    if schedule == "model_split":
        return (stages - 1) / stages
    if schedule == "pipedream":
        return 0.0
    if schedule in ("gpipe", "1f1b"):
        virtual = 1
    elif schedule != "interleaved":
        raise ValueError(f"no ideal bubble is known for schedule {schedule!r}")
    return (stages - 1) / (virtual * microbatches + stages - 1)


def ideal_step_seconds(stage_seconds: Sequence[float], microbatches: int, optimizer: float) -> float:
    """Return the seconds of a pipeline's step without waits: (m - 1) * max t + sum t + optimizer.

    Args:
        stage_seconds: t, the seconds of each stage per micro-batch, forward and backward.
        microbatches: m.
        optimizer: seconds of the slowest optimizer step.
    """
    return (microbatches - 1) * max(stage_seconds) + sum(stage_seconds) + optimizer


def model_flops_utilization(
    flops_per_sample: float | None, rate: float | None, devices: int, peak: float | None
) -> float | None:
    """Return flops_per_sample * rate / (devices * peak), with the peak of one device in FLOP/s."""
    if flops_per_sample is None or rate is None or not peak:
        return None
    return flops_per_sample * rate / (devices * peak)


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; `None` without values."""
    return sum(values) / len(values) if values else None


def interpolate(curve: Sequence[tuple[float, float]], x: float) -> float | None:
    """Return the value at `x` of a curve of straight lines between points with rising x; `None` outside."""
    place = bisect_left(curve, x, key=lambda point: point[0])
    if place == len(curve) or (place == 0 and curve[0][0] != x):
        return None
    (right, high), (left, low) = curve[place], curve[max(place - 1, 0)]
    return high if right == x else low + (high - low) * (x - left) / (right - left)


def energy(watts: float | None, seconds: float | None) -> float | None:
    """Return the joules of a mean power over the seconds of the timed window, pauses left out."""
    return None if watts is None or seconds is None else watts * seconds


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of two equally long sequences, in [-1, 1]; `None` where one of them is constant.

    (concordant - discordant pairs) / sqrt(pairs untied in the first * pairs untied in the second).
    """
    # Imported here: ranks and the parent import this module, and scipy costs half a second.
    from scipy.stats import kendalltau

    tau = float(kendalltau(first, second).statistic)
    return None if math.isnan(tau) else tau
