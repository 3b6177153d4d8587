"""Repetitions of a configuration: one row of medians, and intervals that say what may be called faster."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence

import pytest

from src import aggregate
from src.report import repeats
from src.report.findings import check
from src.report.runs import Row
from tests.report.conftest import Study
from tests.report.recompute import differences
from tests.report.test_comparison import CLAIM, RATE, by_cell, rows_of

# t(0.975) with 2 and with 4 degrees of freedom.
T2, T4 = 4.302653, 2.776445


def repeat(
    study: Study, name: str, rates: Sequence[float], strategy: str = "single", workers: int = 1
) -> None:
    """Write a run for each rate, named as a study names repetitions."""
    for number, rate in enumerate(rates, start=1):
        cell = name if number == 1 else f"{name}-r{number}"
        declared = {"repetition": number, "configuration": name}
        known = {RATE: rate, "train_seconds": 100 / rate, "accuracy": 0.9, "loss": 0.3}
        study.run(cell, strategy, workers=workers, declared=declared, **known)


def summed(study: Study) -> dict[str, Row]:
    return {row["cell"]: row for row in repeats.summarise(rows_of(study))}


def test_a_row_has_medians_and_the_interval_of_paired_ratios(empty_study: Study) -> None:
    base = [100.0, 200.0, 50.0]
    repeat(empty_study, "single", base)
    logs = [0.1, 0.2, 0.3]
    repeat(empty_study, "ddp", [b * math.exp(d) for b, d in zip(base, logs, strict=True)], "ddp", 2)
    row = summed(empty_study)["ddp"]
    assert row[RATE] == pytest.approx(100 * math.exp(0.1))  # of 110.5, 244.3 and 67.5
    assert row["speedup"] == pytest.approx(math.exp(0.2))  # the median of the three ratios
    # The log ratios' standard deviation is 0.1, their mean 0.2.
    half = T2 * 0.1 / math.sqrt(3)
    assert (row["speedup_low"], row["speedup_high"]) == pytest.approx(
        (math.exp(0.2 - half), math.exp(0.2 + half))
    )
    assert row["speedup_word"] == "as fast as measured"
    assert (row["repetitions"], row["runs"]) == (3, "ddp ddp-r2 ddp-r3")
    assert row["baseline"] == "single single-r2 single-r3"
    assert row["scaling_efficiency"] == pytest.approx(math.exp(0.2) / 2)


def test_the_noise_is_pooled_over_configurations_of_one_baseline(empty_study: Study) -> None:
    repeat(empty_study, "single", [1.0, 1.0, 1.0])
    repeat(empty_study, "noisy", [math.exp(d) for d in (0.9, 1.0, 1.1)], "ddp", 2)
    repeat(empty_study, "quiet", [math.exp(1.0)] * 3, "mpi", 2)
    row = summed(empty_study)["quiet"]
    # Residuals of `noisy` are -1/15, 0, 1/15 after its share of each block, of the others 1/30, 0, -1/30.
    variance = 2 * ((1 / 15) ** 2 + 2 * (1 / 30) ** 2) / 4
    half = T4 * math.sqrt(2 * variance / 3)
    assert row["speedup_low"] == pytest.approx(math.exp(1.0 - half))
    assert row["speedup_word"] == "faster"


def test_one_run_is_called_neither_faster_nor_slower(
    empty_study: Study, unpictured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    repeat(empty_study, "single", [100.0])
    repeat(empty_study, "ddp", [180.0], "ddp", 2)
    row = summed(empty_study)["ddp"]
    assert row["speedup"] == pytest.approx(1.8)
    assert row.get("speedup_low") is row.get("speedup_word") is None
    aggregate.main(["--params", str(empty_study.params), "--study-dir", str(empty_study.directory)])
    assert "Each figure is one run" in capsys.readouterr().out


def test_tables_show_what_the_runs_files_give(empty_study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    repeat(empty_study, "single", [100.0, 104.0, 97.0])
    repeat(empty_study, "ddp", [181.0, 190.0, 177.0], "ddp", 2)
    repeat(empty_study, "pipeline", [120.0, 118.0], "pipeline", 2)
    aggregate.main(["--params", str(empty_study.params), "--study-dir", str(empty_study.directory)])
    printed = capsys.readouterr().out
    assert differences(empty_study.directory, printed) == []
    # A run's file that changes under the tables is noticed.
    metrics = empty_study.directory / "runs" / "ddp" / "metrics.json"
    metrics.write_text(metrics.read_text().replace("181.0", "182.0"))
    assert any("ddp: speedup" in line for line in differences(empty_study.directory))


def test_a_failed_repetition_shows_and_the_others_count(empty_study: Study) -> None:
    repeat(empty_study, "single", [100.0, 100.0, 100.0])
    repeat(empty_study, "ddp", [180.0, 190.0], "ddp", 2)
    lost = {"repetition": 3, "configuration": "ddp"}
    empty_study.run("ddp-r3", "ddp", workers=2, status="failed", declared=lost)
    row = summed(empty_study)["ddp"]
    assert (row["status"], row["repetitions"], row["speedup"]) == ("failed", 2, pytest.approx(1.85))


@pytest.mark.parametrize(
    ("rates", "word"),
    # The tolerance of 5 % is for single runs: repetitions tell less from more, and more from the same.
    [([102.9, 103.0, 103.1], "confirmed"), ([80.0, 140.0, 110.0], "undecided")],
)
def test_a_finding_on_speed_goes_by_the_interval(empty_study: Study, rates: list[float], word: str) -> None:
    repeat(empty_study, "single", [100.0, 100.0, 100.0])
    repeat(empty_study, "ddp", rates, "ddp", 2)
    verdict = check(CLAIM, rows_of(empty_study))
    assert verdict.word == word
    assert " to " in verdict.numbers


def test_every_run_stands_in_a_table_with_its_place_in_the_order(
    empty_study: Study, unpictured: None
) -> None:
    for cell, started in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
        empty_study.run(cell, environment={"started": started, "git_commit": "f00"})
    aggregate.main(["--params", str(empty_study.params), "--study-dir", str(empty_study.directory)])
    rows = list(csv.DictReader((empty_study.directory / "tables" / "runs.csv").open()))
    assert [(row["cell"], row["order"], row["git_commit"]) for row in rows] == [
        ("a", "3", "f00"),
        ("b", "1", "f00"),
        ("c", "2", "f00"),
    ]


def test_a_disturbed_run_is_marked_wherever_it_is_used(
    empty_study: Study, unpictured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    empty_study.run("single", samples_per_second=1000.0, cpu_wait_fraction=0.3, steal_fraction=0.0)
    quiet = {"cpu_wait_fraction": 0.01, "steal_fraction": 0.0}
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1800.0, **quiet)
    rows = by_cell(empty_study)
    assert (rows["single"]["disturbed"], rows["ddp"]["disturbed"]) == (True, False)
    assert rows["ddp"]["ratio_disturbed"] is True  # as its baseline was
    assert "disturbed" in check(CLAIM, list(rows.values())).numbers
    aggregate.main(["--params", str(empty_study.params), "--study-dir", str(empty_study.directory)])
    printed = capsys.readouterr().out
    assert (
        "1,000†" in printed
        and "1,800 " in printed
        and "1.80†" in printed
        and "other processes took more than 5 %" in printed
    )


def test_a_missing_probe_and_one_that_changed_within_a_run_are_said(
    empty_study: Study, unpictured: None, capsys: pytest.CaptureFixture[str]
) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    empty_study.run("ddp", "ddp", samples_per_second=900.0, environment={"probe_changed": True})
    empty_study.run("mpi", "mpi", samples_per_second=900.0, environment={"probes": {}})
    rows = by_cell(empty_study)
    assert [rows[cell]["probe_flag"] for cell in rows] == [False, True, None]
    aggregate.main(["--params", str(empty_study.params), "--study-dir", str(empty_study.directory)])
    assert "Without a probe of the machine's speed: mpi." in capsys.readouterr().out
