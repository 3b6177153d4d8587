"""A row without a baseline says what to add for one, and a sweep finds it beside its cells."""

from __future__ import annotations

import dataclasses
import os
import shlex
from typing import Any

import pytest
import yaml

from src.report import repeats, sweep, tables, views
from src.report import runs as study_runs
from src.report.missing_baseline import FLAGS, line_to_add
from src.report.runs import StudyRun
from src.run.status import Status
from tests.report.conftest import Study
from tests.support import config

FIT = {"baseline": {"loop": "fit"}}


def run_of(words: str, *, framework: str = "tensorflow", study: bool = True, **strategy: Any) -> StudyRun:
    declared = {"overrides": words, **({"configuration": "it"} if study else {})}
    return StudyRun(
        "it",
        Status.OK,
        None,
        declared,
        {"strategy": {"framework": framework, **strategy}},  # type: ignore[arg-type]
    )


def test_the_line_is_a_block_of_the_grid_that_composes() -> None:
    words = "'strategy=tf_mirrored' 'strategy.reduction=hierarchical' 'workers=2' 'model=cnn' 'dataset=mnist'"
    line = line_to_add(
        run_of(words + " 'batch=64' 'scaling=weak' 'batchnorm=sync' '+dataset.options.x=[1]'", **FIT)
    )
    assert line == (
        "- {strategy: tf_single, strategy.loop: fit, model: cnn, dataset: mnist, batch: 64, "
        "+dataset.options.x: '[1]'}"
    )
    (block,) = yaml.safe_load(line)
    assert config(*(f"{key}={value}" for key, value in block.items())).strategy["loop"] == "fit"


def test_of_a_sweep_it_is_a_command(tmp_path: Any) -> None:
    words = shlex.join(
        ["strategy=ddp", "dataset.data_dir=my images", "tracking.backend=none", "-m", "batch=64"]
    )
    run = run_of(words, framework="torch", study=False)
    assert line_to_add(run) == "python -m src.train strategy=single 'dataset.data_dir=my images' batch=64"
    own = dataclasses.replace(run, declared={**run.declared, FLAGS: "--config-dir mine/conf"})
    assert str(line_to_add(own)).startswith("python -m src.train --config-dir mine/conf strategy=single ")


def test_the_run_that_it_adds_is_beside_the_sweeps(tmp_path: Any) -> None:
    run = run_of("strategy=ddp out=a/${seed}", framework="torch", study=False)
    line = line_to_add(dataclasses.replace(run, config={**run.config, "out": "a/0"}))
    assert line is not None and line.startswith("python -m src.train strategy=single out=a/single-")


def test_of_devices_of_different_speeds_there_is_none() -> None:
    run = run_of("strategy=ddp", framework="torch")
    slowed = {**run.config, "hardware": {"name": "local", "speeds": [1, 0.5]}}
    assert line_to_add(run) is not None and line_to_add(dataclasses.replace(run, config=slowed)) is None


def test_runs_that_were_read_alone_have_none() -> None:
    assert line_to_add(dataclasses.replace(run_of(""), declared={})) is None


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_a_study_names_the_line_unless_the_run_is_there_and_failed(empty_study: Study, status: str) -> None:
    both = {"framework": "tensorflow", "samples_per_second": 500.0}
    empty_study.run("custom", "tf_single", status=status, **both)
    empty_study.run("w2", "tf_mirrored", options=FIT, workers=2, **both)
    for cell in empty_study.cells.values():
        cell["configuration"] = "it"
    runs = study_runs.load(empty_study.cells, empty_study.directory / "runs")
    made = {"scaling": tables.scaling(runs), "accuracy": tables.accuracy(runs)}
    rows = tables.merged(runs, made, study_runs.labels(runs))
    notes = views.view("scaling", rows).notes
    assert ("For a speed-up, add to the study's grid:" in notes) is (status == "ok")
    assert any(note.startswith("- {strategy: tf_single, strategy.loop: fit") for note in notes) is (
        status == "ok"
    )
    assert repeats.summarise(rows)


def test_a_sweep_has_its_baseline_beside_it(empty_study: Study) -> None:
    """In directories of one name, and of a name with a blank."""
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=1800.0)
    empty_study.run("it is", "ddp", workers=2, seed=1, samples_per_second=1500.0)
    cells = [empty_study.directory / "runs" / name for name in ("ddp", "it is")]
    words = [["strategy=ddp"], ["strategy=ddp", "seed=1"]]
    alone, _ = sweep.sweep_result(cells, words)
    assert "For a speed-up, run this, and the sweep once more:" in alone.notes
    assert "python -m src.train strategy=single" in alone.notes
    empty_study.run("one", samples_per_second=1000.0)
    empty_study.run("two", "ddp", workers=2, samples_per_second=1.0)
    shown, _ = sweep.sweep_result(cells, words)
    speedups = [row[shown.headings.index("speed-up")] for _, row in shown.rows]
    assert len(speedups) == 2 and [text.split()[0].rstrip("*†") for text in speedups] == ["1.80", "1.50"]
    assert "speed-up over single" in shown.title


def test_no_neighbour_stands_for_a_cell_of_its_configuration(empty_study: Study) -> None:
    """Nor does what is being written, or an older one: the speed-ups were 100 and 200."""
    for name, rate in (("one", 1000.0), ("a", 10.0), ("z", 10.0), ("one.partial", 10.0)):
        empty_study.run(name, samples_per_second=rate)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=2000.0)
    folder = empty_study.directory / "runs"
    for shown in (["one", "ddp"], ["ddp"]):
        if shown == ["ddp"]:
            # The newest of a configuration counts.
            later = (folder / "z/metrics.json").stat().st_mtime + 5
            os.utime(folder / "one/metrics.json", (later, later))
        seen, _ = sweep.sweep_result([folder / name for name in shown], [[] for _ in shown])
        speedups = [row[seen.headings.index("speed-up")] for _, row in seen.rows]
        assert [text.rstrip("*†") for text in speedups] == ["1.00", "2.00"][-len(shown) :]


def test_directories_of_one_name_stay_rows_of_their_own(empty_study: Study) -> None:
    cells = []
    for place in ("a/run", "b/run", "c/run-2"):
        empty_study.run(place, samples_per_second=1000.0, seed=len(cells))
        cells.append(empty_study.directory / "runs" / place)
    assert len(sweep.sweep_result(cells, [[], [], []])[0].rows) == 3


def test_a_seed_of_0_is_told_from_others(empty_study: Study) -> None:
    """It was taken for none, and two runs stood under `seed 1`."""
    for seed in (0, 1):
        empty_study.run(f"s{seed}", seed=seed, samples_per_second=1000.0)
    shown, _ = sweep.sweep_result([empty_study.directory / "runs" / f"s{seed}" for seed in (0, 1)], [[], []])
    assert "seed" not in shown.title
    assert [row[shown.headings.index("seed")] for _, row in shown.rows] == ["0", "1"]
