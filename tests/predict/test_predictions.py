"""Predictions of a table: calibrated, with intervals, written beside what was read."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from src.predict import __main__ as command
from src.predict.calibrate import Fit, fit
from src.predict.constants import Constants
from src.predict.predictions import Calibration
from src.predict.row import parse
from src.predict.step import Step

MODELS = {"one": (50.0, 2e9), "two": (20.0, 6e9), "three": (200.0, 3e8)}


def lines(noise: float = 0.02) -> list[dict[str, str]]:
    """A made-up cluster's steps: twice as much is exposed as is believed, images take three times as long."""
    truth = Fit(Constants().changed({"exposed": 0.5, "input_seconds": 2.2e-3}))
    generator = np.random.default_rng(0)
    found = []
    for model, (rate, size) in MODELS.items():
        for devices in (2, 4, 8):
            for given in ("real", "synthetic"):
                line = {
                    "id": f"{model}-{devices}-{given}", "device": "k80", "devices": str(devices),
                    "model": model, "one_device_samples_per_second": str(rate), "gradient_bytes": str(size),
                    "global_batch": str(32 * devices), "input": given, "exchange": "ring", "color": "red",
                }  # fmt: skip
                exact = truth.parts(Step(parse(line))).seconds
                found.append({**line, "seconds": str(exact * np.exp(noise * generator.standard_normal()))})
    return found


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_constants_are_found_again() -> None:
    found = fit([Step(parse(line)) for line in lines(0.0)]).constants
    assert found.exposed > 0.35
    # Half of the way, on a logarithmic scale: what was believed before weighs as well.
    assert found.input_seconds > 1.3e-3
    # Nothing here is a matrix product: what is believed of it stays.
    assert found.gemm_efficiency == pytest.approx(Constants().gemm_efficiency, rel=1e-6)


def test_one_wild_row_does_not_move_the_others() -> None:
    rows = lines(0.01)
    rows[3]["seconds"] = str(float(rows[3]["seconds"]) * 5)
    steps = [Step(parse(line)) for line in rows]
    found = fit(steps)
    gaps = [found.log_seconds(step) - np.log(step.row.seconds or 0) for step in steps]
    assert np.abs(np.delete(gaps, 3)).max() < 0.08


def test_an_interval_rests_on_rows_that_were_left_out_and_is_wider_for_what_was_not_measured() -> None:
    calibration = Calibration.of([Step(parse(line)) for line in lines()], seed=0)
    like = {key: text for key, text in lines()[0].items() if key != "seconds"}
    known = calibration.predict(Step(parse({**like, "global_batch": "96"})))
    model = calibration.predict(Step(parse({**like, "model": "another"})))
    machine = calibration.predict(Step(parse({**like, "device": "p100"})))
    assert known.low < known.parts.seconds < known.high and (known.note, known.basis) == ("", "calibrated")
    assert "of this model" in model.note and "on such a machine" in machine.note
    assert machine.basis == "measured"
    widths = [each.high / each.low for each in (known, model, machine)]
    assert widths == sorted(widths)
    wider = calibration.predict(Step(parse({**like, "global_batch": "96"})), level=0.9)
    assert wider.high >= known.high


def test_a_table_is_written_with_predictions_beside_what_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = lines()
    for row in rows[::3]:
        row["seconds"] = ""
    rows[0]["device"] = "nothing"
    read, written = table(tmp_path / "in.csv", rows), tmp_path / "out.csv"
    assert command.main(["--rows", str(read), "--out", str(written)]) == 0
    assert capsys.readouterr().out == f"{written}: 5 predicted, 12 calibrate, 1 neither\n"
    with written.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    assert all(row["color"] == "red" and row["exchanged_by"] == "ring" for row in found)
    assert found[0]["predicted_seconds"] == "" and found[0]["note"].startswith("device=nothing: nobody")
    assert found[1]["predicted_seconds"] == "" and found[1]["note"] == "calibrates, with 11 others"
    parts = ("compute", "exchange", "bubble", "other")
    for row in found[3::3]:
        seconds = float(row["predicted_seconds"])
        assert sum(float(row[key]) for key in parts) == pytest.approx(seconds, rel=1e-4)
        assert float(row["low"]) < seconds < float(row["high"])
    again = tmp_path / "again.csv"
    assert command.main(["--rows", str(read), "--out", str(again)]) == 0
    assert again.read_text() == written.read_text()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "is empty; its first line names the columns"),
        (
            "device,device_count,model,batch\n",
            r"lacks the columns devices \(there is device_count\), global_b",
        ),
        ("device,devices,model,global_batch,model\n", "has the column model twice"),
        ("device,devices,model,global_batch\nk80,1,m,1,2\n", "row 1 has 5 cells, and there are 4 columns"),
        ("device,devices,model,global_batch\nk80,1,m,1\n", "no row was predicted: model=m: needs one_dev"),
        ("device,devices,model,global_batch\n", "no row was predicted: there are no rows"),
    ],
)
def test_a_file_that_is_no_such_table_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    (tmp_path / "in.csv").write_text(text)
    status = command.main(["--rows", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")])
    error = capsys.readouterr().err
    assert status == (1 if "no row" in line else 2) and error.count("\n") == 1
    assert re.search(line, error), error


def test_a_file_that_is_not_there_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--rows", str(tmp_path / "none.csv"), "--out", str(tmp_path / "out.csv")]) == 2
    assert "none.csv: can't be read: No such file or directory" in capsys.readouterr().err
