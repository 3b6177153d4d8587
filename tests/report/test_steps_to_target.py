"""Steps to a target over batches, from made-up runs whose law is known."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from src import aggregate
from src.report import steps_to_target
from src.report import study as studies
from src.report.steps_to_target import Curve, curves
from tests.report.conftest import Study

EVERY = 10


def trained(
    study: Study, model: str, batch: int, rate: float, steps: float | None, seed: int = 0, **more: Any
) -> None:
    """A run with a target, evaluated every ten steps."""
    rule = more.pop("scale_lr", "none")
    cell = f"{model}-b{batch}-lr{rate}-{rule}-s{seed}"
    optimizer = {"lr": rate, "scale_lr": rule, "schedule": "constant"}
    folder = study.run(
        cell, batch=batch, seed=seed, model={"name": model}, optimizer=optimizer, accuracy=0.9, score=0.9,
        steps_to_target=steps, seconds_to_target=steps, train_seconds=steps or 900.0, **more,
    )  # fmt: skip
    config = folder / "config.yaml"
    config.write_text(config.read_text() + f"target_accuracy: 0.9\nevaluate_every: {EVERY}\n")
    with (folder / "epochs.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["epoch", "accuracy", "step"])
        table.writerows([0.0, 0.5, step] for step in range(EVERY, int(steps or 900) + 1, EVERY))


def found(study: Study) -> list[Curve]:
    whole = studies.read(study.params)
    return curves(studies.load(whole, study.directory))


def a_network(study: Study, model: str, critical: float) -> None:
    """100 (1 + critical / B) steps with the best rate of each batch, and half as many again with others."""
    study.written = False
    for batch, best in ((32, 0.01), (128, 0.02), (512, 0.08), (2048, 0.16)):
        steps = 10 * round(10 * (1 + critical / batch))
        for seed in range(3):
            trained(study, model, batch, best, steps + EVERY * (seed - 1), seed)
        for rate in (best / 2, best * 2):
            trained(study, model, batch, rate, 1.5 * steps)
    study.write_params()


@pytest.fixture
def networks(empty_study: Study) -> Study:
    a_network(empty_study, "cnn", 512)
    a_network(empty_study, "resnet18", 64)
    return empty_study


def test_the_best_rate_of_each_batch_is_taken_and_the_law_found(networks: Study) -> None:
    cnn, resnet18 = found(networks)
    assert cnn.name == "cnn on mnist to 0.9"
    assert {batch: each.rate for batch, each in cnn.best.items()} == {
        32: 0.01,
        128: 0.02,
        512: 0.08,
        2048: 0.16,
    }
    assert all(len(each.runs) == 3 for each in cnn.best.values())
    assert cnn.fit is not None and len(cnn.fit.runs) == 12
    assert cnn.fit.critical_batch == pytest.approx(512, rel=0.15)
    # It was reached in one of the ten steps before.
    assert {run.every for run in cnn.fit.runs} == {EVERY}
    assert resnet18.fit is not None and resnet18.fit.critical_batch == pytest.approx(64, rel=0.3)


def test_networks_that_differ_do_not_share_their_curve(networks: Study) -> None:
    said = steps_to_target.sentences(found(networks))
    shared = next(each for each in said if "times that of" in each)
    assert shared.startswith("The critical batch of cnn on mnist to 0.9 is ")
    assert shared.endswith("they don't share their curve.")


def test_networks_with_one_law_may_share_it(empty_study: Study) -> None:
    a_network(empty_study, "cnn", 256)
    a_network(empty_study, "resnet18", 256)
    said = steps_to_target.sentences(found(empty_study))
    assert sum(each.endswith("they may share their curve.") for each in said) == 1


def test_a_scaled_rate_is_held_against_the_best_one(networks: Study) -> None:
    rows = {(row["model"], row["batch"]): row for row in steps_to_target.rows(_runs(networks))}
    # Of 0.02 at 128: times 4 at 512 is 0.08, the best one; the root is 0.04, of half as many steps again.
    row = rows["cnn", 512]
    assert row["steps_linear"] == row["steps"] == 200
    assert row["steps_sqrt"] == pytest.approx(1.5 * row["steps"])
    assert row["steps_none"] is None
    assert row["rates"] == 3 and (row["steps_low"], row["steps_high"]) == (190, 210)
    said = next(
        each
        for each in steps_to_target.sentences(found(networks))
        if each.startswith("cnn on mnist to 0.9, steps with")
    )
    assert "sqrt batch 32: 1.00, batch 512: " in said and "linear batch 32: " in said


def test_a_root_that_is_no_round_number_is_found_all_the_same(empty_study: Study) -> None:
    a_network(empty_study, "cnn", 512)
    trained(empty_study, "cnn", 256, 0.02, 210, scale_lr="sqrt")
    rows = {row["batch"]: row for row in steps_to_target.rows(_runs(empty_study))}
    assert rows[256]["steps_sqrt"] == 210 and rows[256]["steps_linear"] is None


def test_a_resumed_run_and_one_without_a_target_tell_nothing(empty_study: Study) -> None:
    a_network(empty_study, "cnn", 512)
    for name, line in (("resumed", "resume: a.pt"), ("plain", "target_accuracy: null")):
        trained(empty_study, "cnn", 64, 0.01, 1, seed=7 if name == "plain" else 8)
        folder = empty_study.directory / "runs" / f"cnn-b64-lr0.01-none-s{7 if name == 'plain' else 8}"
        text = (folder / "config.yaml").read_text()
        text = text.replace("target_accuracy: 0.9", line) if name == "plain" else f"{text}{line}\n"
        (folder / "config.yaml").write_text(text)
    (curve,) = found(empty_study)
    assert 64 not in curve.best


def test_what_was_not_reached_is_said_and_no_part_of_the_fit(empty_study: Study) -> None:
    a_network(empty_study, "cnn", 512)
    for seed in range(3):
        trained(empty_study, "cnn", 8192, 0.16, None, seed)
    (curve,) = found(empty_study)
    assert curve.best[8192].median is None and curve.fit is not None
    assert 8192 not in {run.batch for run in curve.fit.runs}
    assert "(without batch 8192: not all runs reached it)" in steps_to_target.sentences([curve])[0]


def test_a_rate_that_was_tried_with_one_seed_alone_is_not_taken_for_the_best(empty_study: Study) -> None:
    a_network(empty_study, "cnn", 512)
    trained(empty_study, "cnn", 128, 0.03, 10)
    (curve,) = found(empty_study)
    assert curve.best[128].rate == 0.02


def test_a_repetition_is_no_further_seed(empty_study: Study) -> None:
    a_network(empty_study, "cnn", 512)
    for scale_lr in ("sqrt", "linear"):
        trained(empty_study, "cnn", 128, 0.02, 60, scale_lr=scale_lr)
    (curve,) = found(empty_study)
    assert len(curve.best[128].runs) == 3


def test_runs_of_one_batch_are_no_curve(empty_study: Study) -> None:
    trained(empty_study, "cnn", 128, 0.02, 100)
    assert found(empty_study) == [] and steps_to_target.view(_runs(empty_study)) == []


def test_trainings_that_differ_otherwise_have_curves_of_their_own(empty_study: Study) -> None:
    for momentum in (0.0, 0.9):
        for batch in (32, 128):
            trained(empty_study, "cnn", batch, 0.02 + momentum, 100)
            config = (
                empty_study.directory / "runs" / f"cnn-b{batch}-lr{0.02 + momentum}-none-s0" / "config.yaml"
            )
            content = yaml.safe_load(config.read_text())
            content["optimizer"]["momentum"] = momentum
            config.write_text(yaml.safe_dump(content))
    assert [curve.name for curve in found(empty_study)] == [
        "cnn on mnist to 0.9, momentum=0.0",
        "cnn on mnist to 0.9, momentum=0.9",
    ]


def test_the_study_has_a_table_a_picture_and_a_file_of_it(networks: Study) -> None:
    assert aggregate.main(["--params", str(networks.params), "--study-dir", str(networks.directory)]) == 0
    with (networks.directory / "tables" / "steps_to_target.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and float(rows[0]["samples"]) == float(rows[0]["steps"]) * 32
    page = (networks.directory / "report.html").read_text()
    assert "they don&#39;t share their curve" in page and "Steps to accuracy over batches" in page


def _runs(study: Study) -> list[Any]:
    return studies.load(studies.read(study.params), Path(study.directory))
