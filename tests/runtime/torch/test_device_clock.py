"""A recorder tells a GPU's time, not that of the host which runs ahead of it: on a GPU that is imagined."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from src.measure.recorder import Recorder
from src.measure.timeline import Timeline, bubble_fraction
from src.runtime.torch.device_clock import CUDAClock
from tests.support import config

STEPS, WARM_UP = 60, 2
# Of one step, in seconds: what the host takes to queue it, and the GPU to compute it.
QUEUEING, COMPUTING = 0.01, 0.1


class GPU:
    """A host's clock, and a GPU that does what is queued one after the other."""

    def __init__(self) -> None:
        self.host = 1000.0
        self.free = 0.0
        self.synchronised = 0

    def work(self, seconds: float) -> None:
        """The host queues work."""
        self.free = self.reached() + seconds

    def reached(self) -> float:
        """When the GPU comes to what is queued now."""
        return max(self.free, self.host)

    def synchronize(self, *_: object) -> None:
        self.synchronised += 1
        self.host = self.reached()

    def event(self, **_: object) -> Event:
        return Event(self)


class Event:
    """As torch.cuda.Event."""

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu
        self.at = float("nan")

    def record(self) -> None:
        self.at = self._gpu.reached()

    def elapsed_time(self, other: Event) -> float:
        assert self._gpu.host >= other.at, "the GPU hasn't come by yet, which CUDA answers with an error"
        return (other.at - self.at) * 1000


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> GPU:
    made = GPU()
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(time, "perf_counter", lambda: made.host)
    monkeypatch.setattr(time, "time", lambda: made.host + 5000)
    return made


@pytest.fixture
def recorder(gpu: GPU, tmp_path: Path) -> Recorder:
    chosen = config("strategy=single", f"hardware.warmup_steps={WARM_UP}")
    made = Recorder(chosen, 0, tmp_path / "0", started=gpu.host, probes=False)
    made.follow_device(CUDAClock(torch.device("cuda", 0)))
    # What is still queued before the first step is none of its time.
    gpu.work(7)
    made.start()
    return made


def step(gpu: GPU, recorder: Recorder) -> None:
    gpu.host += QUEUEING
    gpu.work(COMPUTING)
    recorder.step(0.5, 8, epoch=1)


def finished(recorder: Recorder) -> tuple[list[float], dict[str, Any]]:
    """The seconds of all steps, and the record."""
    recorder.finish("ok")
    with (recorder.folder / "steps.csv").open(newline="") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    return seconds, json.loads((recorder.folder / "record.json").read_text())


def test_a_step_takes_until_its_update_is_done_the_last_one_too(gpu: GPU, recorder: Recorder) -> None:
    for _ in range(STEPS):
        step(gpu, recorder)
    # The recorder writes twice a second by the host's clock, which runs on by a hundredth a step.
    assert gpu.synchronised < STEPS / 5
    seconds, record = finished(recorder)
    # At first, and after the recorder has waited for it, the GPU has nothing to do while the host queues.
    assert all(each == pytest.approx(COMPUTING) or each == pytest.approx(0.11) for each in seconds)
    assert sum(each > 0.105 for each in seconds) < STEPS / 10
    assert record["window_seconds"] == pytest.approx((STEPS - WARM_UP) * COMPUTING, rel=0.01)
    assert record["train_seconds"] == pytest.approx(gpu.free - 1007, rel=1e-6)
    # What sampled the hardware goes by the same moments.
    assert record["window"][1] == pytest.approx(gpu.free + 5000)


def test_input_that_is_prepared_while_the_gpu_computes_is_not_waited_for(
    gpu: GPU, recorder: Recorder
) -> None:
    for _ in range(STEPS):
        with recorder.waiting_for_input():
            gpu.host += COMPUTING / 2
            gpu.work(0.001)
        step(gpu, recorder)
    _, record = finished(recorder)
    # The copy to the GPU remains, and what the GPU idles after each time that the record is written.
    assert record["input_seconds"] < 0.15 * record["window_seconds"]
    assert record["busy_seconds"] == record["window_seconds"] - record["input_seconds"]


def test_input_that_comes_too_late_is_waited_for(gpu: GPU, recorder: Recorder) -> None:
    for _ in range(STEPS):
        with recorder.waiting_for_input():
            gpu.host += 3 * COMPUTING
            gpu.work(0.001)
        step(gpu, recorder)
    seconds, record = finished(recorder)
    assert seconds[10] == pytest.approx(3 * COMPUTING + 0.001, rel=0.2)
    # The GPU computes for a third of each step and idles for two.
    assert record["input_seconds"] / record["window_seconds"] == pytest.approx(2 / 3, abs=0.05)


def test_an_exchange_that_does_not_stop_the_host_is_waited_for_all_the_same(
    gpu: GPU, recorder: Recorder
) -> None:
    for _ in range(STEPS):
        with recorder.exchanging():
            # As NCCL's wait, which has the stream wait.
            gpu.work(0.03)
        step(gpu, recorder)
    _, record = finished(recorder)
    timed = STEPS - WARM_UP
    assert record["communication_seconds"] == pytest.approx(timed * 0.03, rel=0.02)
    assert record["busy_seconds"] == pytest.approx(timed * COMPUTING, rel=0.1)


def test_an_evaluation_and_its_exchanges_are_off_the_clock(gpu: GPU, recorder: Recorder) -> None:
    for number in range(STEPS):
        step(gpu, recorder)
        if number % 10 == 9:
            with recorder.off_clock(), recorder.exchanging():
                gpu.work(50)
    seconds, record = finished(recorder)
    assert max(seconds) < 2 * COMPUTING
    assert record["communication_seconds"] == 0
    assert [end - start for start, end in record["off_clock"]] == pytest.approx([50] * 6)


def test_a_stages_waits_are_those_of_its_gpu(gpu: GPU, recorder: Recorder) -> None:
    timeline = Timeline(first=WARM_UP, clock=recorder)
    for _ in range(STEPS):
        timeline.mark("wait", 0)
        gpu.work(0.05)
        timeline.mark("forward", 0)
        gpu.work(0.1)
        timeline.mark("optimizer")
        gpu.work(0.05)
        timeline.end_step()
        step(gpu, recorder)
    _, record = finished(recorder)
    assert record["communication_seconds"] == pytest.approx((STEPS - WARM_UP) * 0.05, rel=0.02)
    recorded = [end - start for _, activity, _, start, end in timeline.intervals if activity == "forward"]
    assert recorded == pytest.approx([0.1] * len(recorded))
    # Between a stage's steps, here, lies `step`; within one it idles before its forward pass alone.
    assert bubble_fraction({0: timeline.intervals}) == pytest.approx(0, abs=1e-6)
