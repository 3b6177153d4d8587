"""What may stand in one ratio: mixed baselines, mixed hardware, mixed software, mixed frameworks."""

from __future__ import annotations

from typing import Any

import pytest

from src.report import comparison, page, repeats, tables
from src.report import runs as study_runs
from src.report.findings import check
from src.report.runs import Row
from tests.report.conftest import LOSSES, Study

RATE = "samples_per_second"
SLOW = {"speeds": [0.25]}


def rows_of(study: Study, named: dict[str, Any] | None = None) -> list[Row]:
    """The merged rows of a study's runs, in its order."""
    runs = study_runs.load(study.cells, study.directory / "runs")
    made = {"scaling": tables.scaling(runs, named), "accuracy": tables.accuracy(runs)}
    return tables.merged(runs, made, study_runs.labels(runs))


def by_cell(study: Study, named: dict[str, Any] | None = None) -> dict[str, Row]:
    return {row["cell"]: row for row in rows_of(study, named)}


def test_a_baseline_is_one_configuration_and_never_a_mean_of_variants(empty_study: Study) -> None:
    """Averaged, `custom` and `fit` had speed-ups of 0.68 and 1.32 over themselves."""
    for loop, rate in (("custom", 500.0), ("fit", 970.0)):
        empty_study.run(
            loop, "tf_single", framework="tensorflow", options={"loop": loop}, samples_per_second=rate
        )
    both = {"framework": "tensorflow", "workers": 2, RATE: 1000.0}
    empty_study.run("mirrored", "tf_mirrored", options={"baseline": {"loop": "fit"}}, **both)
    empty_study.run("own-loop", "tf_custom", **both)
    rows = by_cell(empty_study)
    assert {cell: (row["speedup"], row["over"]) for cell, row in rows.items()} == {
        "custom": (1.0, "tf_single [loop=custom]"),
        "fit": (pytest.approx(1.94), "tf_single [loop=custom]"),
        "mirrored": (pytest.approx(1000 / 970), "tf_single [loop=fit]"),
        "own-loop": (2.0, "tf_single [loop=custom]"),
    }


def test_a_strategy_without_its_declared_baseline_has_no_ratio(empty_study: Study) -> None:
    empty_study.run("custom", "tf_single", framework="tensorflow", samples_per_second=500.0)
    declared = {"baseline": {"loop": "fit"}}
    empty_study.run("w2", "tf_mirrored", framework="tensorflow", options=declared, samples_per_second=700.0)
    row = by_cell(empty_study)["w2"]
    assert (row["speedup"], row["baseline_note"]) == (None, "no single loop=fit of the same work")


def test_a_slowed_device_is_no_part_of_a_baseline(empty_study: Study) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    empty_study.run("quarter", hardware=SLOW, samples_per_second=250.0)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1800.0)
    rows = by_cell(empty_study)
    assert rows["ddp"]["speedup"] == pytest.approx(1.8)  # not over 625, the mean of both
    assert (rows["quarter"]["speedup"], rows["quarter"]["baseline"]) == (1.0, "quarter")


def test_a_study_may_name_its_baseline_across_hardware_and_a_note_says_so(empty_study: Study) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    empty_study.run("quarter", hardware=SLOW, samples_per_second=250.0)
    two = {"speeds": [1, 0.25]}
    empty_study.run("ddp", "ddp", workers=2, hardware=two, samples_per_second=1200.0)
    alone = by_cell(empty_study)["ddp"]
    assert alone["speedup"] is None and "speeds (1, 0.25) against None" in alone["baseline_note"]
    named = by_cell(empty_study, {"strategy": "single", "hardware.speeds": None})
    assert {cell: named[cell]["speedup"] for cell in named} == {"single": 1.0, "quarter": 0.25, "ddp": 1.2}
    assert named["single"]["baseline_note"] == ""
    assert named["ddp"]["baseline_note"] == "speeds (1, 0.25) against None"


def test_another_gpu_has_no_ratio_without_a_word(empty_study: Study) -> None:
    """An H100 over a T4 printed 9.0 without a mark."""
    for cell, name, rate in (("old", "T4", 100.0), ("new", "H100", 900.0)):
        workers = 1 if cell == "old" else 2
        empty_study.run(
            cell,
            "single" if cell == "old" else "ddp",
            **{"workers": workers, RATE: rate, "hardware": {"device": "gpu"}},
            environment={"gpus": [name], "driver": "570.1"},
        )
    row = by_cell(empty_study)["new"]
    assert (row["speedup"], row["baseline_note"]) == (None, "names H100 against T4")


@pytest.mark.parametrize(
    ("changed", "speedup"),
    [
        # What the baseline doesn't depend on, the strategy's own file, may change.
        ({"files": {"src/worker.py": "f00", "src/strategies/ddp.py": "new"}}, 1.8),
        ({"files": {"src/worker.py": "new"}}, None),
        ({"files": {"src/worker.py": "f00"}, "libraries": {"python": "3.14.0"}}, None),
        ({}, None),
    ],
)
def test_other_software_has_no_ratio_where_both_depend_on_it(
    empty_study: Study, changed: dict[str, Any], speedup: float | None
) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1800.0, environment={"software": changed})
    row = by_cell(empty_study)["ddp"]
    assert row["speedup"] == speedup
    assert ("other software" in row["baseline_note"]) is (speedup is None)
    assert row["parity"] == ("no reference" if speedup is None else "holds")


def test_commit_and_host_are_shown_and_not_compared(empty_study: Study) -> None:
    empty_study.run("single", samples_per_second=1000.0, environment={"git_commit": "a", "hostname": "one"})
    empty_study.run(
        "ddp", "ddp", samples_per_second=900.0, environment={"git_commit": "b", "hostname": "two"}
    )
    assert by_cell(empty_study)["ddp"]["speedup"] == 0.9


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 256},
        {"precision": "bf16"},
        {"model": {"name": "cnn", "dropout": 0.5}},
        {"data_source": "generated"},
    ],
)
def test_other_work_has_no_ratio(empty_study: Study, other: dict[str, Any]) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1800.0, **other)
    assert by_cell(empty_study)["ddp"]["speedup"] is None


def test_variants_of_single_are_held_against_the_plain_one(empty_study: Study) -> None:
    off = [loss + 0.1 for loss in LOSSES]
    near = [loss + 2e-5 for loss in LOSSES]
    tensorflow: dict[str, Any] = {"framework": "tensorflow"}
    empty_study.run("plain", "tf_single", **tensorflow)
    empty_study.run("fit", "tf_single", options={"loop": "fit"}, losses=off, **tensorflow)
    empty_study.run("w2", "tf_mirrored", workers=2, losses=near, **tensorflow)
    rows = by_cell(empty_study)
    assert [rows[cell]["parity"] for cell in rows] == ["reference", "BROKEN", "holds"]
    # `w2` is not as near to `fit`: the best of several references doesn't count.
    assert rows["w2"]["parity_reference"] == "plain"


def test_parity_is_the_worst_over_repetitions(empty_study: Study) -> None:
    for number in (1, 2, 3):
        declared = {"repetition": number, "configuration": "single"}
        empty_study.run(f"single-{number}", declared=declared)
        gap = 0.1 if number == 2 else 0.0
        losses = [loss + gap for loss in LOSSES]
        declared["configuration"] = "ddp"
        empty_study.run(f"ddp-{number}", "ddp", workers=2, losses=losses, declared=declared)
    summed = {row["cell"]: row for row in repeats.summarise(rows_of(empty_study))}
    assert summed["ddp"]["parity"] == "BROKEN"
    assert summed["ddp"]["parity_gap"] == pytest.approx(0.1 / 1.4)


@pytest.mark.parametrize(
    ("rounding", "gap", "word"),
    [
        (None, 5e-4, "BROKEN"),
        (2e-4, 5e-4, "holds"),
        (1e-4, 5e-4, "BROKEN"),
        (0.02, 5e-4, "unstable"),
    ],
)
def test_parity_allows_for_the_references_own_rounding(
    empty_study: Study, rounding: float | None, gap: float, word: str
) -> None:
    empty_study.run("single", rounding_gap=rounding, losses=[1.0] * 10)
    empty_study.run("ddp", "ddp", workers=2, losses=[1.0] * 9 + [1.0 + gap])
    rows = by_cell(empty_study)
    assert (rows["ddp"]["parity"], rows["ddp"]["rounding_gap"]) == (word, rounding)
    assert (rows["single"]["parity"], rows["single"]["rounding_gap"]) == ("reference", rounding)


@pytest.mark.parametrize("key", ["lr", "momentum"])
def test_another_rate_has_a_speed_up_but_no_parity(empty_study: Study, key: str) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    folder = empty_study.run("ddp", "ddp", workers=2, samples_per_second=1800.0)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace(f"{key}: 0.0", f"{key}: 0.1"))
    row = by_cell(empty_study)["ddp"]
    assert (row["speedup"], row["parity"]) == (1.8, "no reference")


def test_a_papers_figure_stands_beside_each_framework_and_strategy(empty_study: Study) -> None:
    """`14 s to 17.6 s (3 runs)` were `single`, `ddp` and `tf_single`."""
    empty_study.run("a", seconds_per_epoch=14.0)
    empty_study.run("b", "ddp", seconds_per_epoch=15.0)
    empty_study.run("c", "tf_single", framework="tensorflow", seconds_per_epoch=17.6)
    entry = {"metric": "seconds_per_epoch", "workers": 1, "value": "3.65 s"}
    summed = repeats.summarise(rows_of(empty_study))
    (row,) = page.published([entry], summed)
    assert row["here"] == "single 14 s; ddp 15 s; tf_single 17.6 s"
    (row,) = page.published([{**entry, "framework": "tensorflow"}], summed)
    assert row["here"] == "17.6 s"
    empty_study.run(
        "d", "tf_single", framework="tensorflow", hardware={"name": "vpn"}, seconds_per_epoch=90.0
    )
    entry |= {"framework": "tensorflow", "hardware": "two PCs"}
    summed = repeats.summarise(rows_of(empty_study))
    for name, here in (("vpn", "90 s"), ("local", "17.6 s")):
        (row,) = page.published([{**entry, "hardware.name": name}], summed)
        assert row["here"] == here


CLAIM = {"rule": "ratio", "metric": RATE, "of": {"workers": 2}, "to": {"workers": 1}, "expect": "higher"}


def test_a_finding_doesnt_average_over_strategies_or_compare_frameworks(empty_study: Study) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1800.0)
    assert check(CLAIM, rows_of(empty_study)).word == "confirmed"
    empty_study.run("pipeline", "pipeline", workers=2, samples_per_second=400.0)
    verdict = check(CLAIM, rows_of(empty_study))
    assert (verdict.word, "different strategy, label" in verdict.numbers) == ("undecided", True)
    chosen = {**CLAIM, "select": {"strategy": ["single", "ddp"]}}
    assert check(chosen, rows_of(empty_study)).word == "confirmed"
    empty_study.run("tf", "tf_single", framework="tensorflow", samples_per_second=100.0)
    across = {**CLAIM, "of": {"strategy": "ddp"}, "to": {"strategy": "tf_single"}}
    assert "don't compare" in check(across, rows_of(empty_study)).numbers


def test_a_finding_compares_other_hardware_only_where_it_names_it(empty_study: Study) -> None:
    empty_study.run("single", samples_per_second=1000.0)
    empty_study.run("ddp", "ddp", workers=2, hardware={"speeds": [1, 0.25]}, samples_per_second=1200.0)
    verdict = check(CLAIM, rows_of(empty_study))
    assert (verdict.word, "speeds" in verdict.numbers) == ("undecided", True)
    chosen = {**CLAIM, "of": {"workers": 2, "hardware.speeds": [[1, 0.25]]}}
    assert check(chosen, rows_of(empty_study)).word == "confirmed"


def test_links_are_told_by_their_hardwares_name(empty_study: Study) -> None:
    for cell, rate in (("lan", 1000), ("vpn", 20)):
        place = {"name": cell, "links": {"rate_mbit": rate}}
        empty_study.run(f"ddp-{cell}", "ddp", workers=2, hardware=place, accuracy=0.9)
    runs = {run.cell: run for run in study_runs.load(empty_study.cells, empty_study.directory / "runs")}
    assert comparison.differences(runs["ddp-lan"], runs["ddp-vpn"]) == ["links lan against vpn"]
