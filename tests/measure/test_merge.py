"""From two ranks' records, small enough to work by hand, to metrics.json."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from src.config import Config
from src.measure.contention import RankReading, Reading
from src.measure.merge import merge
from src.measure.metrics import KEYS
from src.measure.summary import summarize
from src.run.tables import EPOCH_FIELDS, STEP_FIELDS
from tests.support import config

STEPS = 52  # two of warm-up, fifty timed
WORDS = ("strategy=ddp", "workers=2", "batch=8", "hardware.warmup_steps=2")


class Written:
    """A run's folder, as its ranks leave it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ranks").mkdir()

    def rank(self, rank: int, steps: Sequence[Sequence[object]], **record: Any) -> None:
        """`steps` are rows of `STEP_FIELDS`; without a `status` the rank left no record."""
        place = self.folder / "ranks" / str(rank)
        place.mkdir()
        with (place / "steps.csv").open("w", newline="") as file:
            csv.writer(file).writerows([STEP_FIELDS, *steps])
        if record:
            (place / "record.json").write_text(json.dumps(record))

    def epochs(self, *values: Sequence[object]) -> None:
        with (self.folder / "ranks" / "0" / "epochs.csv").open("w", newline="") as file:
            # The first metric is the accuracy.
            rows = [(*row, row[5], row[3], "{}", "{}") for row in values]
            csv.writer(file).writerows([EPOCH_FIELDS, *rows])

    def merge(
        self,
        chosen: Config | None = None,
        status: str = "ok",
        trace: Sequence[dict[str, Any]] = (),
        **further: Any,
    ) -> dict[str, Any]:
        returned = merge(
            chosen or config(*WORDS),
            self.folder,
            status=status,
            total_seconds=30.0,
            trace=list(trace),
            run_id="abc",
            **{"environment": {"versions": {}}, **further},
        )

        def refuse(name: str) -> None:
            raise AssertionError(f"metrics.json holds {name}, which is no JSON")

        read = json.loads((self.folder / "metrics.json").read_text(), parse_constant=refuse)
        assert list(read) == list(KEYS) == list(returned)
        return read

    def steps(self) -> list[dict[str, str]]:
        with (self.folder / "steps.csv").open(newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture
def run(tmp_path: Path) -> Written:
    return Written(tmp_path)


def steps(seconds: float, samples: int, loss: float | str, count: int = STEPS) -> list[list[object]]:
    # A warm-up step takes ten times as long.
    return [[1, step, seconds * (10 if step <= 2 else 1), samples, loss, ""] for step in range(1, count + 1)]


def trace(
    moment: float, rank: int, utilization: float | None, memory: int | None, watts: float | None
) -> Any:
    return {
        **{"time": moment, "rank": rank, "device": f"cpu{rank}", "utilization": utilization},
        **{"memory_bytes": memory, "power_watts": watts, "network_sent_bytes": 0},
        "network_received_bytes": 0,
    }


OK = {"status": "ok", "off_clock": [], "window": [100, 110]}


def test_throughput_times_and_losses_of_two_ranks(run: Written) -> None:
    run.rank(0, steps(0.2, 4, 2.0), **OK, steps_per_epoch=26, startup_seconds=3.0)
    run.rank(1, steps(0.25, 4, 1.0), **OK, steps_per_epoch=26, startup_seconds=4.0)
    run.epochs([1, 6, 1.5, 0.5, 1.4, 0.6, 1, 30], [2, 6, 1.2, 0.7, 1.1, 0.8, 1, 60])
    metrics = run.merge()
    # 50 x 4 samples in 10 s, and in 12.5 s: 20 + 16.
    assert metrics["samples_per_second"] == pytest.approx(36)
    # The slower rank's: 2 x 2.5 + 50 x 0.25, over 52 / 26 = 2 epochs.
    assert metrics["train_seconds"] == pytest.approx(17.5)
    assert (metrics["epochs"], metrics["seconds_per_epoch"]) == (2, pytest.approx(8.75))
    assert metrics["step_seconds_median"] == pytest.approx(0.2)
    assert (metrics["startup_seconds"], metrics["total_seconds"]) == (4, 30)
    assert (metrics["loss"], metrics["accuracy"], metrics["train_accuracy"]) == (1.1, 0.8, 0.7)
    assert (metrics["workers"], metrics["batch"], metrics["mlflow_run_id"]) == (2, 8, "abc")
    assert not (run.folder / "ranks").exists()


def test_tokens_a_second_are_those_of_samples_that_have_tokens(run: Written) -> None:
    for rank, seconds in ((0, 0.2), (1, 0.25)):
        run.rank(rank, steps(seconds, 4, 2.0), **OK, tokens_per_sample=128)
    metrics = run.merge()
    assert metrics["tokens_per_second"] == pytest.approx(36 * 128)
    assert "36 samples/s (4,608 tokens/s), trained" in summarize(metrics)


def test_images_have_no_tokens(run: Written) -> None:
    run.rank(0, steps(0.2, 8, 2.0), **OK, tokens_per_sample=None)
    run.rank(1, steps(0.2, 8, 2.0), **OK, tokens_per_sample=None)
    metrics = run.merge()
    assert metrics["samples_per_second"] is not None and metrics["tokens_per_second"] is None
    assert "tokens" not in summarize(metrics)


def test_the_global_loss_is_weighted_by_samples_in_every_ranks_row(run: Written) -> None:
    run.rank(0, [[1, 1, 0.1, 6, 2.0, ""], [1, 2, 0.1, 6, 1.0, ""]], **OK)
    run.rank(1, [[1, 1, 0.1, 2, 4.0, ""]], **OK)
    run.merge()
    # (6 x 2 + 2 x 4) / 8 = 2.5; rank 1 never completed the second step: there stands rank 0's own.
    losses = [(row["rank"], row["step"], float(row["loss"])) for row in run.steps()]
    assert losses == [("0", "1", 2.5), ("0", "2", 1.0), ("1", "1", 2.5)]


def test_fewer_than_fifty_timed_steps_on_any_rank_give_no_throughput(run: Written) -> None:
    run.rank(0, steps(0.2, 4, 2.0), **OK)
    run.rank(1, steps(0.2, 4, 2.0, count=STEPS - 1), **OK)
    metrics = run.merge()
    assert metrics["samples_per_second"] is None
    assert metrics["step_seconds_median"] == pytest.approx(0.2)


def test_busy_and_input_fractions(run: Written) -> None:
    measured = {"window_seconds": 10, "payload_bytes": 100}
    run.rank(0, steps(0.2, 4, 2.0), **OK, **measured, input_seconds=1, busy_seconds=7)
    run.rank(1, steps(0.2, 4, 2.0), **OK, **measured, input_seconds=3, busy_seconds=7)
    metrics = run.merge()
    assert metrics["busy_fraction"] == pytest.approx(14 / 20)
    assert metrics["input_wait_fraction"] == pytest.approx(4 / 20)
    assert metrics["payload_bytes"] == 200


def test_busy_is_unknown_where_one_rank_cannot_tell_its_waits(run: Written) -> None:
    run.rank(0, [], **OK, window_seconds=10, input_seconds=1, busy_seconds=7)
    run.rank(1, [], **OK, window_seconds=10, input_seconds=1, busy_seconds=None)
    metrics = run.merge()
    assert metrics["busy_fraction"] is None
    assert metrics["input_wait_fraction"] == pytest.approx(0.1)


def test_the_trace_counts_inside_the_window_and_on_the_clock_alone(run: Written) -> None:
    timed = {"off_clock": [[104, 106]], "window_seconds": 6}
    run.rank(0, [], **{**OK, **timed}, memory_level_bytes=100, memory_peak_bytes=900)
    run.rank(1, [], **OK, memory_level_bytes=200, memory_peak_bytes=700)
    rows = [
        trace(99, 0, 0.1, 10_000, 500.0),  # before the window
        trace(101, 0, 0.8, 300, 10.0),
        trace(103, 0, 1.0, 500, 50.0),
        trace(105, 0, 0.0, 10_000, 500.0),  # during an evaluation
        trace(101, 1, 0.6, 350, 20.0),
        trace(105, 1, 0.6, 350, None),  # rank 1 had no evaluation
        trace(111, 1, 0.1, 10_000, None),  # after it
        trace(105, 2, 0.1, 10_000, None),  # a rank without a record
    ]
    metrics = run.merge(trace=rows)
    assert metrics["utilization_mean"] == pytest.approx((0.8 + 1.0 + 0.6 + 0.6) / 4)
    assert metrics["utilization_max"] == 1.0
    # Above each rank's level: (200 + 400) / 2 and 150; the largest device's.
    assert (metrics["memory_mean_bytes"], metrics["memory_peak_bytes"]) == (300, 900)
    # 10 + 20 W at one moment and 50 W at another; over the window's 6 s on the clock.
    assert (metrics["power_mean_watts"], metrics["energy_joules"]) == (40, 240)


def test_a_moment_without_the_power_of_one_device_tells_nothing_of_both(run: Written) -> None:
    for rank in (0, 1):
        run.rank(rank, [], **OK, window_seconds=10, memory_level_bytes=0)
    rows = [
        trace(101, 0, 0.5, 100, 100.0),
        trace(101, 1, 0.5, 100, 250.0),
        trace(102, 0, 0.5, 100, 100.0),
        trace(102, 1, None, None, None),
        trace(103, 0, 0.5, 300, 120.0),
        trace(103, 1, 0.5, 100, 250.0),
    ]
    metrics = run.merge(trace=rows)
    assert metrics["power_mean_watts"] == (350 + 370) / 2
    assert metrics["memory_mean_bytes"] == pytest.approx(500 / 3)


def test_half_a_line_of_a_killed_rank_is_dropped(run: Written) -> None:
    run.rank(0, steps(0.2, 4, 2.0, count=3))
    with (run.folder / "ranks" / "0" / "steps.csv").open("a") as file:
        file.write("1,4,0.2")
    metrics = run.merge(status="failed")
    assert [row["step"] for row in run.steps()] == ["1", "2", "3"]
    assert metrics["status"] == "failed"
    assert metrics["train_seconds"] == pytest.approx(4.2)
    assert metrics["utilization_mean"] is metrics["busy_fraction"] is metrics["startup_seconds"] is None


@pytest.mark.parametrize("end", ["1,4,0.2,4,2", "1,4,0.200000000,4,", "1,4,0.2,4,2.5"])
def test_a_line_cut_inside_a_number_is_dropped_too(run: Written, end: str) -> None:
    run.rank(0, steps(0.2, 4, 2.0, count=3))
    with (run.folder / "ranks" / "0" / "steps.csv").open("a") as file:
        file.write(end)
    run.merge(status="failed")
    assert [row["step"] for row in run.steps()] == ["1", "2", "3"]


def test_a_run_that_died_before_it_recorded_has_nulls(run: Written) -> None:
    metrics = run.merge(status="failed")
    assert metrics["status"] == "failed"
    assert (
        metrics["samples_per_second"]
        is metrics["loss"]
        is metrics["epochs"]
        is metrics["train_seconds"]
        is None
    )
    assert run.steps() == []


def test_losses_that_are_no_numbers_become_null_and_the_rank_says_diverged(run: Written) -> None:
    run.rank(0, steps(0.2, 4, "nan"), **{**OK, "status": "diverged"})
    run.rank(1, steps(0.2, 4, "inf"), **{**OK, "status": "diverged"})
    run.epochs([1, 6, "inf", 0.1, "nan", 0.1, 1, 30])
    metrics = run.merge()
    assert (metrics["status"], metrics["loss"], metrics["accuracy"]) == ("diverged", None, 0.1)


def test_the_parents_failure_stands_above_a_ranks_own_result(run: Written) -> None:
    run.rank(0, [], **{**OK, "status": "time_limit"})
    assert run.merge(status="out_of_memory")["status"] == "out_of_memory"


def test_staleness_is_averaged_over_timed_updates_and_losses_stay_each_ranks_own(run: Written) -> None:
    synchronous = config(*WORDS)
    stale = replace(synchronous, strategy={**synchronous.strategy, "parity": "asynchronous"})
    run.rank(0, [[1, 1, 0.1, 4, 2.0, 9], [1, 2, 0.1, 4, 2.0, 9], [1, 3, 0.1, 4, 2.0, 1]], **OK)
    # A resumed worker's warm-up begins at a step of its own.
    run.rank(1, [[1, n, 0.1, 4, 1.0, 9 if n < 9 else 4] for n in (7, 8, 9)], **OK)
    assert run.merge(stale)["staleness_mean"] == 2.5
    assert [row["loss"] for row in run.steps()] == ["2.0"] * 3 + ["1.0"] * 3


def test_costs_come_from_rank_0_and_scale_with_the_microbatch(run: Written) -> None:
    cost = {"flops_per_sample": 1e6, "peak_flops": 9e6, "saved_tensor_bytes_per_sample": 10.4}
    run.rank(0, steps(0.2, 4, 2.0), **OK, **cost, parameters=7, probe_before=1.0, probe_after=2.0)
    run.rank(1, steps(0.25, 4, 2.0), **OK, probe_before=3.0, probe_after=4.0)
    metrics = run.merge(config(*WORDS, "microbatches=2"))
    # 1e6 x 36 over two devices of 9e6.
    assert metrics["model_flops_utilization"] == pytest.approx(2.0)
    # 8 samples over 2 workers and 2 micro-batches: 2 at a time.
    assert (metrics["saved_tensors_bytes"], metrics["parameters"]) == (21, 7)
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["probes"] == {"before": [1.0, 3.0], "after": [2.0, 4.0]}


def test_saved_tensors_are_those_of_the_device_that_holds_most(run: Written) -> None:
    # Of unequal parts, 3 and 5 samples in two micro-batches, the largest micro-batch has 3.
    cost = {"saved_tensor_bytes_per_sample": 10.0, "saved_tensor_bytes_fixed": 100.0}
    run.rank(0, steps(0.2, 3, 2.0), **OK, **cost)
    run.rank(1, steps(0.2, 5, 2.0), **OK, **cost)
    assert run.merge(config(*WORDS, "microbatches=2"))["saved_tensors_bytes"] == 130


def test_saved_tensors_of_stages_are_the_largest_stages(run: Written) -> None:
    run.rank(0, steps(0.2, 8, 2.0), **OK, saved_tensors_bytes=300)
    run.rank(1, steps(0.2, 8, 2.0), **OK, saved_tensors_bytes=700)
    assert run.merge(config("strategy=pipeline", *WORDS[1:]))["saved_tensors_bytes"] == 700


def test_a_runs_seconds_are_told_by_part(run: Written) -> None:
    durations = {
        "import_seconds": 3.0,
        "startup_seconds": 5.0,
    }
    run.rank(0, steps(0.2, 4, 2.0), **{**OK, **durations, "off_clock": [[100, 102], [110, 111]]})
    # The slowest rank is waited for.
    run.rank(1, steps(0.25, 4, 1.0), **{**OK, "import_seconds": 3.5, "startup_seconds": 5.5})
    run.merge(environment={"seconds": {"parent": 1.5}})
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["rounding_losses"] is None
    assert environment["seconds"] == pytest.approx(
        {
            "parent": 1.5,
            "imports": 2.0,
            "setup": 2.0,
            # The two of warm-up take ten times as long.
            "first_step": 2.0,
            "further_steps": 2.0 + 0.2 * (STEPS - 2),
            "evaluation": 3.0,
        }
    )


def test_a_reference_tells_what_rounding_does_to_it(run: Written) -> None:
    losses = [2.0] * 9 + [None]
    told = {"rounding_gap": 0.25, "rounding_losses": losses, "rounding_seconds": 3.0}
    durations = {"import_seconds": 3.0, "startup_seconds": 5.0}
    run.rank(0, steps(0.2, 4, 2.0), **OK, **durations, **told)
    assert run.merge()["rounding_gap"] == 0.25
    environment = json.loads((run.folder / "environment.json").read_text())
    assert (environment["rounding_losses"], environment["seconds"]["rounding"]) == (losses, 3.0)


def test_helpers_cpu_seconds_are_those_of_the_timed_window(run: Written) -> None:
    run.rank(0, [], **{**OK, "window": [100, 110]})
    used = [(99.0, 1.0), (101.0, 1.5), (105.0, 2.0), (109.0, 4.0), (111.0, 9.0)]
    metrics = run.merge(helper_seconds=used, restarts=2)
    assert metrics["helper_cpu_seconds"] == 2.5
    assert metrics["restarts"] == 2


def test_asynchronous_workers_share_an_epoch_as_they_can(run: Written) -> None:
    chosen = config("strategy=tf_parameter_server", "workers=2", "batch=8", "hardware.warmup_steps=0")
    each = chosen.worker_batch
    rows = {
        0: [(1, n, 0.1, each, 2.0, 1) for n in range(1, 61)],
        1: [(1, n, 0.1, each, 2.0, 0) for n in range(1, 21)],
    }
    run.rank(0, rows[0], **OK, steps_per_epoch=80)
    run.rank(1, rows[1], **OK)
    metrics = run.merge(chosen)
    # 80 shares of 4 are 40 batches of 8, and 80 of them are an epoch.
    assert metrics["epochs"] == 0.5
    assert metrics["samples_per_second"] == pytest.approx(80 * 4 / 6)
    assert metrics["staleness_mean"] == pytest.approx(60 / 80)


def test_what_disturbed_the_run_stands_in_metrics_and_environment(run: Written) -> None:
    run.rank(0, [], **OK, probe_before=100.0, probe_after=80.0)
    run.rank(1, [], **OK, probe_before=100.0, probe_after=None)
    counters = [
        # moment, then of each rank: seconds waited, cores busy, of these the run's own, stolen
        (100.0, [(0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)]),
        (110.0, [(4.0, 10.0, 10.0, 0.0), (3.0, 10.0, 8.0, 0.5)]),
    ]
    readings = [
        Reading(moment, {rank: RankReading(rank, w, 0, b, o, s, 1) for rank, (w, b, o, s) in enumerate(each)})
        for moment, each in counters
    ]
    metrics = run.merge(readings=readings)
    assert (metrics["cpu_wait_fraction"], metrics["steal_fraction"]) == (pytest.approx(0.2), 0.05)
    environment = json.loads((run.folder / "environment.json").read_text())
    assert [each["cpu_wait_fraction"] for each in environment["contention"]["ranks"]] == [
        0,
        pytest.approx(0.2),
    ]
    assert environment["probe_changed"] is True


def test_a_run_without_samples_says_nothing_of_what_disturbed_it(run: Written) -> None:
    run.rank(0, [], **OK, probe_before=100.0)
    metrics = run.merge()
    assert metrics["cpu_wait_fraction"] is metrics["steal_fraction"] is None
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["contention"] == {"ranks": [], "page_ins": None}
    assert environment["probe_changed"] is None
