"""What the figures show, read back from their axes."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes

from src.report import canvas, figures, page
from src.report import runs as study_runs
from src.report.study import merged_rows
from tests.report.conftest import Study

Drawn = tuple[list[canvas.Point], dict[str, canvas.Look]]


@pytest.fixture
def drawn(study: Study) -> Drawn:
    """What the figures of the small study are drawn from."""
    runs = study_runs.load(study.cells, study.directory / "runs")
    return page.picture(runs, merged_rows({}, runs))


def axes(drawing: canvas.Drawing | None) -> dict[str, Axes]:
    """The axes of each panel by its title."""
    assert drawing is not None
    return {title: figure.axes[0] for title, figure in drawing.panels.items()}


def first(drawing: canvas.Drawing | None) -> Axes:
    return next(iter(axes(drawing).values()))


def lines(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The named lines of an axis: their xs and ys."""
    named = {line.get_label(): line for line in axis.lines if not str(line.get_label()).startswith("_")}
    return {name: (list(line.get_xdata()), list(line.get_ydata())) for name, line in named.items()}


def test_strong_and_weak_runs_and_other_batches_have_a_bar_and_a_name_each(drawn: Drawn) -> None:
    axis = first(figures.bars(*drawn, "samples_per_second", "samples/s"))
    labels = [text.get_text() for text in axis.get_yticklabels()]
    widths = dict(zip(labels, (bar.get_width() for bar in axis.patches), strict=True))
    wanted = {
        "ddp, 2 w, batch 128": 1800.0,
        "ddp, 2 w, weak, batch 128": 2000.0,
        "single, 1 w, batch 256": 1100.0,
    }
    assert {name: widths[name] for name in wanted} == wanted


def test_hardware_of_another_name_has_a_panel_of_its_own(empty_study: Study) -> None:
    for name, rate in (("lan", 900.0), ("vpn", 90.0)):
        for strategy in ("ddp", "mpi"):
            more = {"workers": 2, "hardware": {"name": name}, "samples_per_second": rate}
            empty_study.run(f"{strategy}-{name}", strategy, **more)
    runs = study_runs.load(empty_study.cells, empty_study.directory / "runs")
    points, look = page.picture(runs, merged_rows({}, runs))
    panels = axes(figures.bars(points, look, "samples_per_second", "samples/s"))
    shown = {title: [bar.get_width() for bar in axis.patches] for title, axis in panels.items()}
    named = "torch: cnn on mnist (original), "
    assert shown == {f"{named}lan": [900.0] * 2, f"{named}vpn": [90.0] * 2}


def test_a_single_bar_has_no_panel(empty_study: Study) -> None:
    for number in (1, 2, 3):
        again = {"configuration": "single", "repetition": number}
        known = {"samples_per_second": 900.0, "seconds_per_epoch": 9.0, "accuracy": 0.9}
        empty_study.run(f"single-{number}", declared=again, **known)
    html = empty_study.page()
    for title in ("Throughput", "Time of an epoch", "What speed costs", "Parity"):
        assert f"<h3>{title}</h3>" not in html


def test_the_time_of_an_epoch_is_shown_where_it_was_measured(empty_study: Study) -> None:
    empty_study.run("single", seconds_per_epoch=30.0)
    empty_study.run("ddp", "ddp", workers=2, seconds_per_epoch=20.0)
    assert "<h3>Time of an epoch</h3>" in empty_study.page()
    (empty_study.directory / "runs" / "single" / "metrics.json").unlink()
    assert "<h3>Time of an epoch</h3>" not in empty_study.page()


def test_both_speedups_begin_at_one_worker_beside_the_ideal_line(drawn: Drawn) -> None:
    by_label = lines(first(figures.speedups(*drawn)))
    assert by_label["ideal"] == ([1, 2], [1, 2])
    assert by_label["ddp"] == ([1, 2], pytest.approx([0.9, 1.8]))
    assert by_label["ddp, weak"] == ([1, 2], pytest.approx([0.9, 2.0]))


@pytest.mark.parametrize(("over", "xs"), [("epoch", [1, 2]), ("train_seconds", [30, 60])])
def test_learning_is_drawn_at_equal_epochs_and_at_equal_times(
    drawn: Drawn, over: str, xs: list[float]
) -> None:
    # epochs.csv has the seconds since the last evaluation, 30 and 30.
    accuracy, loss = list(axes(figures.curves(*drawn, over)).values())[:2]
    assert lines(accuracy)["ddp, 2 w, weak"] == (xs, [0.9, 0.94])
    assert lines(loss)["ddp, 2 w"] == (xs, [0.4, 0.25])


def test_frameworks_share_a_panel_over_epochs_and_never_over_time(drawn: Drawn) -> None:
    assert "tf_single, 1 w" in lines(first(figures.curves(*drawn, "epoch")))
    panels = axes(figures.curves(*drawn, "train_seconds"))
    torch_axis, tensorflow_axis = (axis for title, axis in panels.items() if title.endswith("accuracy"))
    assert "tf_single, 1 w" not in lines(torch_axis)
    assert "tf_single, 1 w" in lines(tensorflow_axis)


@pytest.mark.parametrize("count", [2, 9, canvas.LINES])
def test_lines_are_named_below_the_panel_and_the_panel_keeps_its_room(count: int) -> None:
    axis = canvas.Drawing().panel("a panel")
    for number in range(count):
        axis.plot([0, 1], [0, number], label=f"a strategy with settings {number}")
    canvas.legend(axis)
    figure = axis.get_figure()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == count
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert box.y1 <= axis.get_tightbbox().y0
    assert box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert axis.get_position().height * figure.get_figheight() > 1.8


def test_a_crowd_is_drawn_in_part_and_the_caption_says_so(empty_study: Study) -> None:
    for batch in range(canvas.BARS + 3):
        empty_study.run(f"b{batch}", batch=batch + 1, samples_per_second=100.0 + batch)
    assert f"{canvas.BARS} of {canvas.BARS + 3} bars are drawn, taken evenly from all." in empty_study.page()
