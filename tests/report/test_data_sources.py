"""Original and generated data never meet in a ratio, a shown table or a picture, and all say which."""

from __future__ import annotations

import csv
import re

import pytest

from src.report import activity, canvas, figures, findings, page, repeats, tables, tradeoffs, views
from src.report import runs as study_runs
from src.report.runs import Row, StudyRun, labels
from src.report.study import merged_rows
from src.report.verdict.objective import Objective
from src.report.verdict.verdicts import verdicts
from tests.report.conftest import Study

SOURCES = ("original", "generated")
# There are no links.
SHOWN = [name for name in views.VIEWS if name not in (views.NETWORK, views.SWEEP)]

EXCHANGES = "rank,axis,kind,ranks,exchanges,bytes,ring_bytes\n0,data,all_reduce,2,1,1024,1024\n"


@pytest.fixture
def mixed(empty_study: Study) -> Study:
    """`single` and `ddp` on both kinds of data, which are equal in all else; `ddp` alone on 4 generated."""
    for factor, source in enumerate(SOURCES, 1):
        declared = {"data_source": source}
        for strategy, workers, rate in (("single", 1, 1000.0), ("ddp", 2, 1800.0)):
            made = empty_study.run(
                f"{strategy}-{source}",
                strategy,
                **{"workers": workers, "declared": declared, "data_source": source},
                **{"samples_per_second": factor * rate, "seconds_per_epoch": 60 / factor},
                **{"accuracy": 0.4 * factor, "loss": 0.5, "train_seconds": 60.0, "staleness_mean": 0.0},
            )
            (made / "exchange.csv").write_text(EXCHANGES)
    empty_study.run(
        "ddp-4", "ddp", workers=4, data_source="generated", samples_per_second=9000.0, accuracy=0.8
    )
    return empty_study


def loaded(study: Study) -> list[StudyRun]:
    return study_runs.load(study.cells, study.directory / "runs")


def rows_of(study: Study) -> list[Row]:
    runs = loaded(study)
    scaled = {"scaling": tables.scaling(runs), "accuracy": tables.accuracy(runs)}
    return tables.merged(runs, scaled, labels(runs))


def test_ratios_stand_on_data_of_the_same_source(mixed: Study) -> None:
    rows = {row["cell"]: row for row in rows_of(mixed)}
    for source in SOURCES:
        row = rows[f"ddp-{source}"]
        assert (row["baseline"], row["speedup"]) == (f"single-{source}", 1.8)
        assert row["parity_reference"] == f"single-{source}"
    assert rows["ddp-4"]["baseline"] == "single-generated"


def test_without_a_baseline_of_its_source_a_run_has_no_ratio(mixed: Study) -> None:
    del mixed.cells["single-generated"]
    rows = {row["cell"]: row for row in rows_of(mixed)}
    assert [rows[cell]["speedup"] for cell in ("ddp-original", "ddp-generated", "ddp-4")] == [1.8, None, None]
    assert rows["ddp-generated"]["parity"] == "no reference"


@pytest.mark.parametrize(
    "claim",
    [
        {"rule": "ratio", "of": {"strategy": "ddp"}, "to": {"strategy": "single"}, "expect": "higher"},
        {"rule": "ratio", "of": {"workers": 4}, "to": {"cell": "single-original"}, "expect": "higher"},
        {"rule": "trend", "over": "workers", "select": {"strategy": "ddp"}, "expect": "rises"},
        {"rule": "order", "order": ["single", "ddp"], "expect": "rises"},
        {"rule": "level", "value": 0.5, "expect": "above"},
        {
            "rule": "curves",
            "over": "epoch",
            "of": {"cell": "ddp-original"},
            "to": {"cell": "single-generated"},
            "expect": "same",
        },
    ],
)
def test_no_finding_compares_them(claim: dict[str, object], mixed: Study) -> None:
    rows = rows_of(mixed)
    verdict = findings.check({"metric": "accuracy", **claim}, rows)
    assert verdict.word == findings.UNDECIDED
    assert "generated and original data don't compare; name one by data_source" in verdict.numbers
    apart = findings.check({"metric": "accuracy", **claim, "select": {"data_source": "generated"}}, rows)
    assert "don't compare" not in apart.numbers


def test_shown_tables_hold_one_source_and_name_it(mixed: Study) -> None:
    shown = views.views(repeats.summarise(rows_of(mixed)))
    assert len(shown) == 2 * len(SHOWN)
    for view, source in zip(shown, SOURCES * len(SHOWN), strict=True):
        assert f"source {source}" in view.title
        assert len(view.rows) == (2 if source == "original" else 3)


def test_a_run_that_left_nothing_stands_in_the_table_of_its_source(mixed: Study) -> None:
    mixed.declare("gone", strategy="ddp", model="cnn", dataset="mnist", data_source="generated")
    mixed.declare("unknown", strategy="ddp", model="cnn", dataset="mnist")
    counts = [len(view.rows) for view in views.views(repeats.summarise(rows_of(mixed)))]
    assert counts == [3, 4] * len(SHOWN)


def test_every_file_of_tables_has_the_source_of_each_row(mixed: Study) -> None:
    mixed.page()
    for path in (mixed.directory / "tables").glob("*.csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        assert {row["data_source"] for row in rows} == set(SOURCES), path
    assert '"data_source": "generated"' in (mixed.directory / "tables/metrics.json").read_text()


def test_every_panel_names_the_source_and_none_has_both(mixed: Study) -> None:
    runs = loaded(mixed)
    points, look = page.picture(runs, merged_rows({}, runs))
    drawn = (
        figures.bars(points, look, "samples_per_second", "samples/s"),
        figures.speedups(points, look),
        figures.curves(points, look, "epoch"),
        figures.curves(points, look, "train_seconds"),
        tradeoffs.tradeoffs(points, look),
        activity.traces(points, look),
    )
    for drawing in drawn:
        assert drawing
        for title in drawing.panels:
            assert len(re.findall(r"original|generated", title)) == 1, title
        assert {source for source in SOURCES if any(source in title for title in drawing.panels)} == set(
            SOURCES
        )
    overview = figures.overview(points, look)
    assert overview.get_suptitle() == "torch: cnn on mnist (generated)"


def test_a_papers_figure_stands_beside_ours_of_generated_data_only_in_words(mixed: Study) -> None:
    entry = {"strategy": "single", "metric": "accuracy", "value": 0.9}
    (shown,) = page.published([entry], repeats.summarise(rows_of(mixed)))
    assert shown["here"] == "single 40.00%; single 80.00% (generated data)"


def test_generated_data_have_a_verdict_of_their_own(mixed: Study) -> None:
    found = verdicts(rows_of(mixed), Objective(), {"name": "small"})
    assert [verdict.subject for verdict in found] == ["cnn on mnist", "cnn on mnist (generated)"]


def test_labels_tell_options_and_not_the_source(mixed: Study) -> None:
    assert set(labels(loaded(mixed)).values()) == {"single", "ddp"}
    assert canvas.data({"dataset": "cifar10", "data_source": "generated"}) == "cifar10 (generated)"
