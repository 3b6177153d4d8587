"""The stage as it is run: what it writes, prints and answers, with every kind of run in the study."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from src import aggregate
from src.report import console, findings, views
from tests.report.conftest import BAD, Study
from tests.support import holder

ROOT = Path(__file__).parents[2]


def run(study: Study, *more: str) -> int:
    return aggregate.main(["--params", str(study.params), "--study-dir", str(study.directory), *more])


def test_a_failed_cell_never_stops_the_tables_of_the_others(
    study: Study, capsys: pytest.CaptureFixture
) -> None:
    assert run(study) == 1
    tables = study.directory / "tables"
    for name in ("scaling", "accuracy", "utilization"):
        rows = list(csv.DictReader((tables / f"{name}.csv").open()))
        assert [row["cell"] for row in rows] == list(study.cells)
    assert (tables / "overview.png").read_bytes()[:4] == b"\x89PNG"
    printed = capsys.readouterr().out
    assert "dvc repro -f -s train@crashed" in printed
    assert "dvc repro -f -s 'train@odd<b>name'" in printed
    assert "RuntimeError: <script>" in printed
    assert "make retry" in printed
    assert max(map(len, printed.splitlines())) <= console.WIDTH


def test_out_of_memory_is_a_result_and_exits_zero(study: Study) -> None:
    for cell in BAD:
        del study.cells[cell]
    study.declare("single-b128")
    assert run(study) == 0
    metrics = json.loads((study.directory / "tables" / "metrics.json").read_text())
    assert metrics["big"]["status"] == "out_of_memory"
    assert metrics["big"]["samples_per_second"] is None


def test_failed_prints_only_the_names_to_run_again(study: Study, capsys: pytest.CaptureFixture) -> None:
    assert run(study, "--failed") == 0
    assert capsys.readouterr().out.splitlines() == list(BAD)
    assert not (study.directory / "tables").exists()


def test_metrics_are_nested_by_configuration_and_valid_json(study: Study) -> None:
    study.run("nan", batch=64, status="diverged", loss=float("nan"))
    run(study)
    metrics = json.loads(
        (study.directory / "tables" / "metrics.json").read_text(), parse_constant=pytest.fail
    )
    assert metrics["ddp-w2"]["scaling_efficiency"] == pytest.approx(0.9)
    assert metrics["nan"] | {"status": "diverged", "loss": None} == metrics["nan"]
    assert metrics["odd<b>name"]["status"] == "missing"


def test_params_without_a_study_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "params.yaml").write_text("seed: 1\n")
    assert aggregate.main(["--params", str(tmp_path / "params.yaml")]) == 2
    assert "no study" in capsys.readouterr().err


def test_long_names_and_all_columns_still_fit_a_line(
    empty_study: Study, capsys: pytest.CaptureFixture
) -> None:
    # Another task's score stands in the place of the accuracy.
    words = ("label", "status", "parity", "strategy", "metric")
    figures = {key: 12345.678 for key in views.KINDS if key not in words}
    for model in ("resnet101_with_a_stem", "mobilenet_v2"):
        empty_study.run(model, "tf_parameter_server", model={"name": model}, workers=2, scaling="weak")
        folder = empty_study.directory / "runs" / model
        metrics = json.loads((folder / "metrics.json").read_text())
        text = ("model", "dataset", "scaling", "workers", "batch", "seed")
        metrics |= {key: value for key, value in figures.items() if key not in text}
        (folder / "metrics.json").write_text(json.dumps(metrics))
    run(empty_study)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= console.WIDTH
    assert "…" not in printed
    # Whatever else is spared.
    assert len(re.findall(r"  status *$", printed, re.MULTILINE)) == 3 and "speed-up" in printed


def test_a_study_in_which_nothing_ran_still_makes_its_page(empty_study: Study) -> None:
    empty_study.declare("absent", strategy="single", model="cnn", dataset="mnist")
    assert run(empty_study) == 1
    assert "No run has figures" in (empty_study.directory / "report.html").read_text()


def test_as_typed_without_a_terminal(study: Study) -> None:
    command = [
        sys.executable,
        "-m",
        "src.aggregate",
        "--params",
        study.params,
        "--study-dir",
        study.directory,
    ]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 1, completed.stderr
    assert "\x1b" not in completed.stdout
    line = next(line for line in completed.stdout.splitlines() if line.startswith("ddp") and "1,800" in line)
    assert "1.80" in line and "90%" in line


class Loads(HTMLParser):
    """Every address that a browser would follow by itself, and every tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data")]


HOLDS = """
import sys
from pathlib import Path
from src.machine.file_locks import alone

with alone(Path(sys.argv[1]), ""):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_of_two_aggregations_of_a_study_one_waits_for_the_other(
    study: Study, capsys: pytest.CaptureFixture, until: Callable[..., float]
) -> None:
    tables, said = study.directory / "tables", []

    def waits() -> bool:
        said.append(capsys.readouterr().err)
        return f"waiting for pid {other.pid}" in "".join(said)

    beside = threading.Thread(target=run, args=(study,))
    with holder("-c", HOLDS, str(tables)) as other:
        beside.start()
        until(waits, 60, "it waits")
        assert not tables.exists()
    beside.join(60)
    assert (tables / "metrics.json").exists()


def test_the_page_loads_nothing_and_escapes_names(study: Study) -> None:
    run(study)
    html = (study.directory / "report.html").read_text()
    loads = Loads(html)
    assert all(address.startswith(("data:text/csv;", "#")) for address in loads.addresses)
    assert not {"img", "link", "iframe"} & set(loads.tags)
    assert loads.tags.count("script") == 1
    assert not re.search(r"url\(|@import", html)
    assert "odd&lt;b&gt;name" in html and "&lt;script&gt;alert(1)" in html
    assert loads.tags.count("svg") == html.count('role="img"') > 10
    for words in (
        "Throughput",
        "Speed-up",
        "while training",
        "loss over time",
        "Utilisation over time",
        "out_of_memory",
        "BROKEN",
    ):
        assert words in html


def test_the_page_says_what_the_papers_say_beside_our_figures(study: Study) -> None:
    study.published = [
        {"paper": 1, "where": "text", "strategy": "ddp", "model": "cnn", "dataset": "mnist", "workers": 2}
        | {"hardware": "2 GPUs", "metric": "train_time_efficiency", "value": 0.6963, "unit": "fraction"}
    ]
    study.findings = [{"paper": 5, "where": "Fig. 3", "claim": "Two devices are slower."}]
    study.findings[0] |= {"rule": "trend", "metric": "train_seconds", "over": "workers", "expect": "rises"}
    study.findings[0] |= {"select": {"strategy": ["single", "ddp"], "batch": 128, "scaling": "strong"}}
    study.run("extra", batch=32)
    run(study)
    html = (study.directory / "report.html").read_text()
    assert "0.6963 fraction" in html
    # 60 / (2 * 35) and, weak, 60 / (2 * 43.08): paper 1's way of counting.
    assert "70% to 86% (2 configurations)" in html
    assert 'class="contradicted">contradicted' in html


def test_a_papers_weak_scaled_figure_stands_beside_our_weak_runs_alone(study: Study) -> None:
    entry = {"paper": 1, "where": "text", "strategy": "ddp", "workers": 2, "metric": "train_time_efficiency"}
    study.published = [entry | {"hardware": "2 GPUs", "scaling": "weak", "value": "69.63 %"}]
    study.declare("single-b128")
    run(study)
    html = (study.directory / "report.html").read_text()
    assert "<td>ddp, workers 2, weak</td>" in html
    assert "<td>69.63 %</td><td>70%</td>" in html


def test_more_than_three_batches_are_drawn_against_the_batch(empty_study: Study) -> None:
    for batch in (32, 64, 128, 256):
        rates = {"samples_per_second": 1000.0, "seconds_per_epoch": 60.0, "loss": 0.3, "accuracy": 0.9}
        empty_study.run(f"b{batch}", batch=batch, **rates)
    assert run(empty_study) == 0
    assert "Against the batch" in (empty_study.directory / "report.html").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "study").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_finding_of_a_study_file_can_be_evaluated(path: Path) -> None:
    study = yaml.safe_load(path.read_text())
    assert OmegaConf.create(study).name == path.stem
    for claim in study.get("findings") or []:
        assert claim["paper"] and claim["where"] and claim["claim"]
        metric = claim.get("metric", "loss")
        rows = [
            {"status": "ok", "strategy": s, "model": m, "workers": w, "batch": b, metric: 1.0}
            for s, w in (("single", 1), ("ddp", 2))
            for m in ("cnn", "resnet18")
            for b in (384, 512, 640)
        ]
        numbers = findings.check(claim, rows).numbers
        assert "no rule is called" not in numbers and "cannot be evaluated" not in numbers
