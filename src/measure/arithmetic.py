"""Every formula behind a published figure, in one place; each is tested on numbers worked by hand.

Times are seconds, rates samples per second, memory and traffic bytes. A figure that cannot be
computed from what was measured is `None`, never a guess.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import median, quantiles

MIN_TIMED_STEPS = 50
PARITY_STEPS = 10
PARITY_BOUND = 1e-4
PROBE_BOUND = 0.10


def samples_per_second(samples: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Throughput of the whole job: samples of the timed steps over their wall time.

    `None` with fewer than `MIN_TIMED_STEPS` timed steps: a shorter window says nothing.
    """
    if len(seconds) < MIN_TIMED_STEPS or sum(seconds) <= 0:
        return None
    return sum(samples) / sum(seconds)


def job_rate(rates: Sequence[float], shared: bool) -> float:
    """The job's samples/s from its ranks': their sum where they share the batch, else one of them.

    Ranks that hold parts of the model all see every sample; their clocks differ by a trifle, so the mean.
    """
    return sum(rates) if shared else sum(rates) / len(rates)


def turns_rate(workers: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """The job's samples/s where workers take turns as they can: all samples over the longest time.

    Each worker is (samples of its steps, seconds of its steps); one that was lost has less of both.
    `None` unless one of them has `MIN_TIMED_STEPS`.
    """
    steps = max((len(seconds) for _, seconds in workers), default=0)
    if steps < MIN_TIMED_STEPS:
        return None
    return sum(sum(samples) for samples, _ in workers) / max(sum(seconds) for _, seconds in workers)


def spread(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """First quartile, median and third quartile (inclusive method); `None`s without values."""
    if not values:
        return None, None, None
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, median(values), third


def speedup(rate: float | None, baseline: float | None) -> float | None:
    """S(N): throughput of N workers over the baseline's."""
    if rate is None or not baseline:
        return None
    return rate / baseline


def scaling_efficiency(speedup: float | None, workers: int) -> float | None:
    """S(N) / N."""
    return None if speedup is None else speedup / workers


def train_time_efficiency(single: float | None, workers: int, several: float | None) -> float | None:
    """T1 / (N * TN) from training times; with a weak-scaled batch this is paper 1's 69.63 %."""
    if single is None or not several:
        return None
    return single / (workers * several)


def capacity(alone: float, together: Sequence[float]) -> float:
    """C(N): N independent `single` runs' summed rate over the rate of one that runs alone."""
    return sum(together) / alone


def parity_gap(losses: Sequence[float], reference: Sequence[float]) -> float | None:
    """Largest |a - b| / max(1, |b|) over the first `PARITY_STEPS` losses; `None` if either is shorter."""
    pairs = list(zip(losses[:PARITY_STEPS], reference[:PARITY_STEPS], strict=False))
    if len(pairs) < PARITY_STEPS:
        return None
    gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in pairs]
    return math.inf if any(math.isnan(gap) for gap in gaps) else max(gaps)


def parity_holds(gap: float | None) -> bool | None:
    """Whether a parity gap is within `PARITY_BOUND`."""
    return None if gap is None else gap <= PARITY_BOUND


def probes_differ(first: float | None, second: float | None) -> bool:
    """Whether two probe rates differ by more than `PROBE_BOUND` of the larger one."""
    if not first or not second:
        return False
    return abs(first - second) / max(first, second) > PROBE_BOUND


def occupancy(cpu_seconds: float, wall: float, cores: int) -> float | None:
    """CPU device utilisation: process CPU seconds over wall time and cores; waits that spin count."""
    return None if wall <= 0 else cpu_seconds / (wall * cores)


def fraction(part: float | None, whole: float | None) -> float | None:
    """Part of a whole, both in the same unit; `None` when either is missing or the whole is 0."""
    if part is None or not whole:
        return None
    return part / whole


def ideal_bubble(schedule: str, stages: int, microbatches: int, virtual: int = 1) -> float:
    """The schedule's own idle share (GPipe and 1F1B; interleaved: Narayanan 2021, section 2.2).

    Raises:
        ValueError: for a schedule without a known formula.
    """
    if schedule == "model_split":
        return (stages - 1) / stages
    if schedule in ("gpipe", "1f1b"):
        virtual = 1
    elif schedule != "interleaved":
        raise ValueError(f"no ideal bubble is known for schedule {schedule!r}")
    return (stages - 1) / (virtual * microbatches + stages - 1)


def ideal_step_seconds(stage_seconds: Sequence[float], microbatches: int, optimizer: float) -> float:
    """(m - 1) * max t + sum t + slowest optimizer step; t is a stage's time per micro-batch."""
    return (microbatches - 1) * max(stage_seconds) + sum(stage_seconds) + optimizer


def model_flops_utilization(
    flops_per_sample: float | None, rate: float | None, devices: int, peak: float | None
) -> float | None:
    """flops_per_sample * rate / (devices * peak), with the peak of one device in FLOP/s."""
    if flops_per_sample is None or rate is None or not peak:
        return None
    return flops_per_sample * rate / (devices * peak)


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean; `None` without values."""
    return sum(values) / len(values) if values else None


def interpolate(curve: Sequence[tuple[float, float]], x: float) -> float | None:
    """The value at `x` of a curve that runs straight between its points, which rise in x; `None` outside."""
    place = bisect_left(curve, x, key=lambda point: point[0])
    if place == len(curve) or (place == 0 and curve[0][0] != x):
        return None
    (right, high), (left, low) = curve[place], curve[max(place - 1, 0)]
    return high if right == x else low + (high - low) * (x - left) / (right - left)


def energy(watts: float | None, seconds: float | None) -> float | None:
    """Joules of mean power over the timed window, whose pauses (evaluation, tracking) don't count."""
    return None if watts is None or seconds is None else watts * seconds


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two equally long sequences, in [-1, 1]; `None` where one of them is constant.

    (concordant - discordant pairs) / sqrt(pairs untied in the first * pairs untied in the second).
    """
    pairs = list(zip(first, second, strict=True))
    signs = [
        ((a[0] > b[0]) - (a[0] < b[0]), (a[1] > b[1]) - (a[1] < b[1]))
        for i, a in enumerate(pairs)
        for b in pairs[i + 1 :]
    ]
    untied = sum(x != 0 for x, _ in signs) * sum(y != 0 for _, y in signs)
    return sum(x * y for x, y in signs) / math.sqrt(untied) if untied else None
