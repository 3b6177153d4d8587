"""Every column of the tables that is worked out rather than copied, on numbers worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from src.report import repeats, tables, views
from src.report import runs as study_runs
from src.report import study as studies
from src.report.runs import Row, StudyRun
from src.report.views import show
from tests.report.conftest import LOSSES, Study


def load(study: Study) -> list[StudyRun]:
    return study_runs.load(study.cells, study.directory / "runs")


def by_cell(rows: list[Row]) -> dict[str, Row]:
    return {row["cell"]: row for row in rows}


@pytest.fixture
def scaled(study: Study) -> dict[str, Row]:
    return by_cell(tables.scaling(load(study)))


@pytest.mark.parametrize(
    ("cell", "speedup", "efficiency"),
    [
        ("single-b128", 1.0, 1.0),
        ("ddp-w1", 0.9, 0.9),  # 900 / 1000
        ("ddp-w2", 1.8, 0.9),  # 1800 / 1000; / 2
        ("ddp-weak", 2.0, 1.0),  # 2000 / 1000: the single run of a worker's batch, 128, not of 256
        ("pipeline-w2", 1.2, 0.6),  # against one micro-batch, the best that one device does
        ("tf-w2", 1.5, 0.75),  # 750 / 500: TensorFlow's own single
    ],
)
def test_speedup_is_over_the_frameworks_own_single_run(
    scaled: dict[str, Row], cell: str, speedup: float, efficiency: float
) -> None:
    assert scaled[cell]["speedup"] == pytest.approx(speedup)
    assert scaled[cell]["scaling_efficiency"] == pytest.approx(efficiency)


def test_own_baseline_is_the_strategy_at_one_worker(scaled: dict[str, Row]) -> None:
    assert scaled["ddp-w2"]["speedup_own"] == pytest.approx(2.0)  # 1800 / 900
    assert scaled["ddp-w2"]["efficiency_own"] == pytest.approx(1.0)
    assert scaled["pipeline-w2"]["speedup_own"] is None


def test_train_time_efficiency_is_t1_over_n_tn(scaled: dict[str, Row]) -> None:
    assert scaled["ddp-w2"]["train_time_efficiency"] == pytest.approx(60 / (2 * 35))
    # Paper 1's figure: a weak batch, 60 / (2 * 43.08) = 0.6963.
    assert scaled["ddp-weak"]["train_time_efficiency"] == pytest.approx(0.6963, abs=1e-4)


def test_train_times_of_unequal_work_are_not_compared(study: Study) -> None:
    study.run("short", "ddp", workers=2, status="time_limit", samples_per_second=1700.0, train_seconds=20.0)
    row = by_cell(tables.scaling(load(study)))["short"]
    assert row["speedup"] == pytest.approx(1.7)
    assert row["train_time_efficiency"] is None


def test_seeds_are_paired_and_averaged_when_there_is_no_pair(study: Study) -> None:
    run = next(run for run in load(study) if run.cell == "ddp-w2")
    study.run("second", samples_per_second=1200.0)
    for cell, seed in (("second", 1), ("third", 2)):
        folder = study.directory / "runs" / cell
        if cell == "third":
            study.run(cell, "ddp", workers=2, samples_per_second=2200.0)
        for file in ("config.yaml", "metrics.json"):
            text = (folder / file).read_text()
            (folder / file).write_text(
                text.replace("seed: 0", f"seed: {seed}").replace('"seed": 0', f'"seed": {seed}')
            )
    rows = by_cell(tables.scaling(load(study)))
    assert rows[run.cell]["speedup"] == pytest.approx(1.8)  # its own seed's 1000
    assert rows["third"]["speedup"] == pytest.approx(2.0)  # 2200 over the mean of 1000 and 1200


def test_runs_on_a_shared_device_have_no_ratios(scaled: dict[str, Row]) -> None:
    row = scaled["ddp-w4-shared"]
    assert row["shared_device"] is True and row["samples_per_second"] == 1600
    assert all(
        row.get(key) is None for key in ("speedup", "scaling_efficiency", "speedup_own", "efficiency_own")
    )


def test_runs_on_a_shared_device_show_no_speed(empty_study: Study) -> None:
    empty_study.run("alone", samples_per_second=1000.0)
    empty_study.run(
        "shared", "ddp", workers=4, samples_per_second=1600.0, state_bytes=2**20, shared_device=True
    )
    rows = repeats.summarise(studies.merged_rows({}, load(empty_study)))
    shown = {name: views.view(name, rows) for name in ("scaling", "utilization")}
    place = shown["scaling"].headings.index("samples/s")
    assert [cells[place] for _, cells in shown["scaling"].rows] == ["1,000", "-"]
    assert [values[place] for values in shown["scaling"].values] == [1000, None]
    # What a rank holds is told.
    assert shown["utilization"].rows[1][1][shown["utilization"].headings.index("state")] == "1 MiB"


def test_a_mesh_is_as_many_stages_and_shares_a_batch_as_its_axes_say(empty_study: Study) -> None:
    supports = {"shares_batch": True, "axis": "mesh"}
    seen = {"environment": {"batch_statistics": True}}
    empty_study.run("alone", microbatches=8, **seen)
    for name, axes in {
        "stages": {"pipeline": 2, "data": 2, "shard": 2},
        "shards": {"pipeline": 1, "data": 4, "shard": 2},
    }.items():
        options = {"supports": supports, "schedule": "gpipe", **axes}
        count = 16 // (axes["data"] * axes["shard"] * 2)
        empty_study.run(name, "hybrid", workers=8, microbatches=count, options=options, **seen)
    by_name = by_cell(tables.scaling(load(empty_study)))
    # (2 - 1) / (2 + 2 - 1); without stages there is no bubble.
    assert by_name["stages"]["bubble_ideal"] == pytest.approx(1 / 3)
    assert by_name["shards"]["bubble_ideal"] is None
    # Statistics over each of 4 workers' two micro-batches, or of 8 workers' single one, are those of 8.
    assert [row["parity"] for row in tables.accuracy(load(empty_study))] == ["reference", "holds", "holds"]


def test_probes_that_differ_flag_the_ratio(scaled: dict[str, Row]) -> None:
    assert scaled["pipeline-w2"]["probe_flag"] is True  # 12 against 10: 17 % of the larger
    assert scaled["ddp-w2"]["probe_flag"] is False


def test_the_ideal_bubble_stands_beside_the_measured_one(scaled: dict[str, Row]) -> None:
    row = scaled["pipeline-w2"]
    assert (row["bubble_fraction"], row["bubble_ideal"]) == (
        0.27,
        pytest.approx(0.2),
    )  # (2 - 1) / (4 + 2 - 1)
    assert scaled["ddp-w2"]["bubble_ideal"] is None


def test_statuses_stand_in_place(scaled: dict[str, Row]) -> None:
    statuses = {cell: scaled[cell]["status"] for cell in ("big", "crashed", "odd<b>name", "torn")}
    assert statuses == {
        "big": "out_of_memory",
        "crashed": "failed",
        "odd<b>name": "missing",
        "torn": "failed",
    }


def test_parity_column(study: Study) -> None:
    study.run("bf16", "ddp", workers=2, precision="bf16")
    study.run("lonely", "ddp", workers=2, batch=512)
    study.run("brief", "ddp", workers=2, losses=LOSSES[:9])
    rows = by_cell(tables.accuracy(load(study)))
    assert {cell: rows[cell]["parity"] for cell in rows if rows[cell]["status"] == "ok"} == {
        **dict.fromkeys(("single-b128", "single-b256", "single-m4", "tf-single"), "reference"),
        **dict.fromkeys(("ddp-w1", "ddp-w2", "ddp-weak", "tf-w2"), "holds"),
        **dict.fromkeys(("lonely", "brief", "ddp-w4-shared"), "no reference") | {"ddp-w4-shared": "holds"},
        "pipeline-w2": "BROKEN",
        "hogwild-w2": "asynchronous",
        "bf16": "not compared: bf16",
    }
    assert rows["ddp-w2"]["parity_gap"] == pytest.approx(5e-5 / 1.40)  # largest where the loss is smallest
    assert rows["pipeline-w2"]["parity_gap"] == pytest.approx(0.1 / 1.40)  # the tenth loss, 1.50 against 1.40


def test_local_statistics_compare_with_as_many_micro_batches(empty_study: Study) -> None:
    normalised = {"name": "resnet18", "batchnorm": True}
    other = [loss + 0.1 for loss in LOSSES]
    empty_study.run("single", model=normalised, losses=other)
    empty_study.run("ddp", "ddp", model=normalised, workers=2)
    assert tables.accuracy(load(empty_study))[1]["parity"] == "local statistics"
    empty_study.run("single-m2", model=normalised, microbatches=2)
    assert tables.accuracy(load(empty_study))[1]["parity"] == "holds"


def test_a_gap_under_dropout_is_not_called_broken(empty_study: Study) -> None:
    dropped = {"name": "mlp", "dropout": 0.2}
    empty_study.run("single", model=dropped)
    empty_study.run("ddp", "ddp", model=dropped, workers=2, losses=[loss + 0.1 for loss in LOSSES])
    assert tables.accuracy(load(empty_study))[1]["parity"] == "not compared: dropout"


def test_a_gap_of_a_model_that_draws_is_called_by_that(empty_study: Study) -> None:
    dropped = {"name": "bayes_mlp", "draws": "random weights"}
    empty_study.run("single", model=dropped)
    empty_study.run("ddp", "ddp", model=dropped, workers=2, losses=[loss + 0.1 for loss in LOSSES])
    assert tables.accuracy(load(empty_study))[1]["parity"] == "not compared: random weights"


SEEN = {
    "random numbers": {"draws_random_numbers": True},
    "each rank's own buffers": {"moves_buffers": ["codes"]},
}


@pytest.mark.parametrize("reason", SEEN)
def test_a_gap_is_called_by_what_was_seen_of_the_model(empty_study: Study, reason: str) -> None:
    own, other = {"name": "custom"}, [loss + 0.1 for loss in LOSSES]
    empty_study.run("single", model=own)
    empty_study.run("ddp", "ddp", model=own, workers=2, losses=other, environment=SEEN[reason])
    assert tables.accuracy(load(empty_study))[1]["parity"] == f"not compared: {reason}"


def test_buffers_are_no_reason_where_no_rank_has_its_own(empty_study: Study) -> None:
    own, other = {"name": "custom"}, [loss + 0.1 for loss in LOSSES]
    empty_study.run("single", model=own)
    seen = {"moves_buffers": ["codes"]}
    empty_study.run("cut", "pipeline", model=own, workers=2, losses=other, environment=seen)
    assert tables.accuracy(load(empty_study))[1]["parity"] == "BROKEN"


def test_a_model_that_computes_over_the_batch_compares_with_as_many_micro_batches(empty_study: Study) -> None:
    own, seen = {"name": "custom"}, {"computes_over_batch": True}
    empty_study.run("single", model=own, losses=[loss + 0.1 for loss in LOSSES], environment=seen)
    empty_study.run("ddp", "ddp", model=own, workers=2, environment=seen)
    assert tables.accuracy(load(empty_study))[1]["parity"] == "local statistics"
    empty_study.run("single-m2", model=own, microbatches=2, environment=seen)
    assert tables.accuracy(load(empty_study))[1]["parity"] == "holds"


def test_utilization_says_what_it_is(study: Study) -> None:
    rows = by_cell(tables.utilization(load(study)))
    assert rows["ddp-w2"]["utilization_label"] == "occupancy, spin included"
    assert rows["ddp-w2"]["utilization_mean"] == 0.97
    assert rows["odd<b>name"]["utilization_label"] is None


def test_a_run_that_waits_for_its_input_is_marked(empty_study: Study) -> None:
    empty_study.run("single", input_wait_fraction=0.02)
    empty_study.run("fed-slowly", input_wait_fraction=0.4)
    empty_study.run("unknown", input_wait_fraction=None)
    loaded = load(empty_study)
    expected = {"single": "compute", "fed-slowly": "input", "unknown": None}
    for rows in (tables.utilization(loaded), tables.scaling(loaded)):
        assert {row["cell"]: row["bound"] for row in rows} == expected


def test_labels_name_the_options_that_vary(study: Study) -> None:
    for partition in ("time", "size"):
        study.run(
            f"cut-{partition}", "pipeline", model={"name": "mlp"}, options={"partition": partition}, workers=2
        )
    for cell, epochs in (("stopped", 0.2), ("whole", 2.0)):
        study.run(cell, "ddp", model={"name": "mlp"}, workers=2, status="time_limit", epochs=epochs)
    labels = study_runs.labels(load(study))
    assert labels["cut-time"] == "pipeline [partition=time]"
    assert labels["pipeline-w2"] == "pipeline"
    assert labels["stopped"] == labels["whole"] == "ddp"  # how far they came is a result, not an option
    assert labels["single-m4"] == "single [microbatches=4]"
    assert labels["single-b128"] == "single"
    assert labels["ddp-w2"] == labels["odd<b>name"] == "ddp"  # max_minutes differs, and says nothing


def test_labels_name_what_updates_differ_by(study: Study) -> None:
    plain = {"schedule": "constant", "clip_norm": None, "name": "sgd"}
    for cell, optimizer in (
        ("plain", {}),
        ("falling", {"schedule": "cosine"}),
        ("clipped", {"clip_norm": 1.0}),
        ("decayed", {"name": "adamw"}),
    ):
        study.run(
            cell,
            "pipeline",
            model={"name": "cut"},
            options={"schedule": "1f1b"},
            workers=2,
            optimizer={**plain, **optimizer},
        )
    labels = study_runs.labels(load(study))
    # A pipeline has a schedule, too, and a name is everything's.
    assert labels["falling"] == "pipeline [optimizer.name=sgd, optimizer.schedule=cosine]"
    assert labels["clipped"] == ("pipeline [clip_norm=1.0, optimizer.name=sgd, optimizer.schedule=constant]")
    assert "optimizer.name=adamw" in labels["decayed"]


def test_a_key_that_only_describes_a_strategy_makes_no_label_longer(empty_study: Study) -> None:
    described = {"allowed": {"loop": ["custom", "fit"]}, "baseline": {"loop": "fit"}}
    for loop in ("custom", "fit"):
        empty_study.run(loop, "tf_single", framework="tensorflow", options={**described, "loop": loop})
    labels = study_runs.labels(load(empty_study))
    assert labels == {"custom": "tf_single [loop=custom]", "fit": "tf_single [loop=fit]"}


def test_labels_leave_to_the_hardwares_name_what_it_tells(empty_study: Study) -> None:
    for cell, hardware in (
        ("here", {"links": None}),
        ("lan", {"name": "lan", "links": {"rate_mbit": 1000}}),
        ("vpn", {"name": "vpn", "links": {"rate_mbit": 20}}),
    ):
        empty_study.run(cell, "ddp", workers=2, hardware=hardware)
    assert set(study_runs.labels(load(empty_study)).values()) == {"ddp"}
    empty_study.run("slower", "ddp", workers=2, hardware={"name": "vpn", "links": {"rate_mbit": 5}})
    labels = study_runs.labels(load(empty_study))
    assert (labels["vpn"], labels["slower"]) == ("ddp [rate_mbit=20]", "ddp [rate_mbit=5]")


def test_the_last_error_is_found_in_the_logs(study: Study) -> None:
    errors = {run.cell: run.error for run in load(study)}
    assert errors["crashed"] == "RuntimeError: <script>alert(1)</script>"
    assert "metrics.json" in str(errors["torn"])
    assert errors["single-b128"] is None


def test_logs_that_a_rerun_removes_meanwhile_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank-0.log").symlink_to("removed")
    (tmp_path / "logs/rank-1.log").write_text("ValueError: here\n")
    assert study_runs.last_error(tmp_path) == "ValueError: here"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "seconds", "-"),
        (0.0641, "seconds", "64.1 ms"),
        (0.9999, "seconds", "1,000 ms"),
        (61.04, "seconds", "61 s"),
        (1023 * 1024, "bytes", "1,023 KiB"),
        (3 * 2**20, "bytes", "3 MiB"),
        (2500.0, "joules", "2.5 kJ"),
        (1804.4, "rate", "1,804"),
        (0.899, "percent", "90%"),
        (0.94125, "accuracy", "94.12%"),
        (float("nan"), "loss", "nan"),
    ],
)
def test_values_have_units(value: float | None, kind: str, text: str) -> None:
    assert show(value, kind) == text


def test_a_resumed_run_is_not_held_against_the_first_steps_of_single(empty_study: Study) -> None:
    empty_study.run("single", losses=LOSSES)
    folder = empty_study.run("ddp", "ddp", workers=2, losses=LOSSES)
    rows = "".join(f"0,2,{step},0.1,64,{loss},\n" for step, loss in enumerate(LOSSES, start=41))
    (folder / "steps.csv").write_text(f"rank,epoch,step,seconds,samples,loss,staleness\n{rows}")
    row = tables.accuracy(load(empty_study))[1]
    assert (row.get("parity_gap"), row["parity"]) == (None, "no reference")
