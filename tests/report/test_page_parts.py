"""What the page says in words: its verdicts, what was left out, how to repeat it."""

from __future__ import annotations

import csv
import io
import re
from html import unescape
from typing import Any
from urllib.parse import unquote

from src.report import page, repeats, tables
from src.report import runs as study_runs
from src.report.commands import commands
from src.report.left_out import left_out
from src.report.runs import Row, labels
from src.report.study import merged_rows
from src.report.verdict.prose import Sentence
from src.report.verdict.verdicts import Verdict
from tests.report.conftest import Study


def summed(study: Study) -> list[Row]:
    runs = study_runs.load(study.cells, study.directory / "runs")
    known = {"scaling": tables.scaling(runs), "utilization": tables.utilization(runs)}
    return repeats.summarise(tables.merged(runs, known, labels(runs)))


def repeat(study: Study, cell: str, rates: list[float], strategy: str, **more: Any) -> None:
    for number, rate in enumerate(rates, 1):
        declared = {"repetition": number, "configuration": cell}
        name = cell if number == 1 else f"{cell}-r{number}"
        study.run(name, strategy, declared=declared, samples_per_second=rate, **more)


def test_each_reason_for_leaving_out_names_its_configurations(study: Study) -> None:
    study.run("slow", batch=64, samples_per_second=9.0, cpu_wait_fraction=0.2, input_wait_fraction=0.3)
    found = dict(left_out(summed(study)))
    assert found["Out of memory"] == "single, 1 w, batch 8192"
    assert found["Workers shared a device: no ratios"] == "ddp, 4 w, batch 128"
    (disturbed,) = (names for reason, names in found.items() if reason.startswith("Disturbed"))
    assert disturbed == "single, 1 w, batch 64 (median 20%)"
    assert "single, 1 w, batch 64" in found["Bound by input: says what the input delivers"]


def test_the_commands_repeat_the_study_at_its_commit(empty_study: Study) -> None:
    seen = {"git_commit": "c0ffee-dirty"}
    empty_study.run("single", environment=seen)
    empty_study.run("ddp", "ddp", workers=2, environment=seen)
    runs = study_runs.load(empty_study.cells, empty_study.directory / "runs")
    found = commands({"name": "small", "repeat": 3}, runs)
    assert found.whole == ["git checkout c0ffee", "make install", "make study NAME=small REPEAT=3"]
    assert found.uncommitted
    ran = "python -m src.train strategy=ddp model=cnn dataset=mnist workers=2"
    assert found.cells[1] == ("ddp", ran)
    assert ran in empty_study.page()


def test_a_charts_csv_has_the_numbers_drawn(study: Study) -> None:
    address = re.search(r'download="throughput.csv" href="data:text/csv;charset=utf-8,([^"]*)"', study.page())
    assert address
    rows = list(csv.DictReader(io.StringIO(unquote(unescape(address[1])))))
    drawn = {row["run"]: float(row["training samples/s"]) for row in rows}
    assert {cell: drawn[cell] for cell in ("ddp-w2", "pipeline-w2", "tf-w2")} == {
        "ddp-w2": 1800.0,
        "pipeline-w2": 1200.0,
        "tf-w2": 750.0,
    }


def test_a_tables_cell_has_the_number_that_its_text_rounds(study: Study) -> None:
    html = study.page()
    assert 'data-value="0.064">64 ms<' in html
    assert 'data-value="3.1457e+06">3 MiB<' in html
    assert '<th scope="row">ddp</th>' in html


def test_the_verdict_stands_on_top_and_names_its_runs(study: Study) -> None:
    said = (Sentence("It pays.", ("ddp-w2", "single-b128")), Sentence("A & B tie."))
    runs = study_runs.load(study.cells, study.directory / "runs")
    rows = merged_rows({}, runs)
    html = page.render({"name": "small"}, runs, rows, [Verdict("Buy <two>", "memory", "ddp", said, ())])
    assert "<h3>Buy &lt;two&gt;: ddp <span" in html and "by memory" in html
    assert '<li title="ddp-w2, single-b128">It pays.</li>' in html and "A &amp; B tie." in html
    assert html.index('id="verdict"') < html.index('id="failed"') < html.index('id="figures"')
    assert 'id="verdict"' not in page.render({"name": "small"}, runs, rows)


def test_verdicts_by_other_aims_stand_below(empty_study: Study) -> None:
    repeat(empty_study, "single", [100.0, 101.0, 99.0], "single", memory_peak_bytes=2**30)
    repeat(empty_study, "pipeline", [80.0, 81.0, 79.0], "pipeline", workers=2, memory_peak_bytes=2**29)
    html = empty_study.page()
    table = html.partition('data-name="other-aims"')[2].partition("</table>")[0]
    assert '<th scope="row">memory</th><td>cnn on mnist</td><td>pipeline on 2 devices</td>' in table
    # No run has an energy counter, or a target.
    assert "energy" not in table and "time to accuracy" not in table


def test_capacity_has_a_speed_up_and_no_accuracy(empty_study: Study) -> None:
    known = {"accuracy": 0.9, "train_seconds": 60.0}
    empty_study.run("single", samples_per_second=100.0, **known)
    empty_study.run("ddp", "ddp", workers=2, samples_per_second=150.0, **known)
    more = {"workers": 2, "scaling": "weak", "parity": "no common model", "options": {"capacity": True}}
    empty_study.run("both", "capacity", samples_per_second=190.0, **more, **known)
    html = empty_study.page()
    assert "measured capacity" in html.partition("<h3>Speed-up</h3>")[2].partition("</figure>")[0]
    accuracy = html.partition('<table data-name="accuracy"')[2].partition("</table>")[0]
    assert '<th scope="row">ddp</th>' in accuracy and '<th scope="row">capacity</th>' not in accuracy
