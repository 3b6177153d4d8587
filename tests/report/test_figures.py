"""What the figures show, read back from their axes."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes

from src.report import canvas, figures, page
from src.report import runs as study_runs
from src.report.study import merged_rows
from tests.report.conftest import Study

Drawn = tuple[list[canvas.Point], dict[str, canvas.Look]]


@pytest.fixture
def drawn(study: Study) -> Iterator[Drawn]:
    """What the figures of the small study are drawn from."""
    runs = study_runs.load(study.cells, study.directory / "runs")
    yield page.picture(runs, merged_rows({}, runs))
    plt.close("all")


def lines(axis: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The named lines of an axis: their xs and ys."""
    named = {line.get_label(): line for line in axis.lines if not str(line.get_label()).startswith("_")}
    return {name: (list(line.get_xdata()), list(line.get_ydata())) for name, line in named.items()}


def test_strong_and_weak_runs_have_a_bar_and_a_name_each(drawn: Drawn) -> None:
    figure = figures.bars(*drawn, "samples_per_second", "samples/s")
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert {"ddp, 1 w", "ddp, 2 w", "ddp, 2 w, weak"} <= set(labels)
    widths = dict(zip(labels, (bar.get_width() for bar in figure.axes[0].patches), strict=True))
    assert (widths["ddp, 2 w"], widths["ddp, 2 w, weak"]) == (1800.0, 2000.0)


def test_hardware_of_another_name_has_a_panel_of_its_own(empty_study: Study) -> None:
    for name, rate in (("lan", 900.0), ("vpn", 90.0)):
        empty_study.run(name, "ddp", workers=2, hardware={"name": name}, samples_per_second=rate)
    runs = study_runs.load(empty_study.cells, empty_study.directory / "runs")
    points, look = page.picture(runs, merged_rows({}, runs))
    figure = figures.bars(points, look, "samples_per_second", "samples/s")
    shown = {axis.get_title(loc="right"): [bar.get_width() for bar in axis.patches] for axis in figure.axes}
    plt.close(figure)
    named = "torch: cnn on mnist (original), "
    assert shown == {f"{named}lan": [900.0], f"{named}vpn": [90.0]}


def test_the_time_of_an_epoch_is_shown_where_it_was_measured(empty_study: Study) -> None:
    empty_study.run("single", seconds_per_epoch=30.0)
    assert "<h3>Time of an epoch</h3>" in empty_study.page()
    empty_study.run("short", batch=64)
    (empty_study.directory / "runs" / "single" / "metrics.json").unlink()
    assert "<h3>Time of an epoch</h3>" not in empty_study.page()


def test_both_speedups_begin_at_one_worker_beside_the_ideal_line(drawn: Drawn) -> None:
    by_label = lines(figures.speedups(*drawn).axes[0])
    assert by_label["ideal"] == ([1, 2], [1, 2])
    assert by_label["ddp"] == ([1, 2], pytest.approx([0.9, 1.8]))
    assert by_label["ddp, weak"] == ([1, 2], pytest.approx([0.9, 2.0]))


@pytest.mark.parametrize(("over", "xs"), [("epoch", [1, 2]), ("train_seconds", [30, 60])])
def test_learning_is_drawn_at_equal_epochs_and_at_equal_times(
    drawn: Drawn, over: str, xs: list[float]
) -> None:
    # epochs.csv has the seconds since the last evaluation, 30 and 30.
    accuracy, loss = figures.curves(*drawn, over).axes[:2]
    assert lines(accuracy)["ddp, 2 w, weak"] == (xs, [0.9, 0.94])
    assert lines(loss)["ddp, 2 w"] == (xs, [0.4, 0.25])


def test_frameworks_share_a_panel_over_epochs_and_never_over_time(drawn: Drawn) -> None:
    assert "tf_single, 1 w" in lines(figures.curves(*drawn, "epoch").axes[0])
    torch_axes, tensorflow_axes = figures.curves(*drawn, "train_seconds").axes[::2]
    assert "tf_single, 1 w" not in lines(torch_axes)
    assert "tf_single, 1 w" in lines(tensorflow_axes)


@pytest.mark.parametrize("count", [canvas.CROWD, canvas.CROWD + 1])
@pytest.mark.parametrize("beside", [True, False])
def test_a_crowd_of_lines_is_named_beside_the_figure_and_not_over_it(count: int, beside: bool) -> None:
    figure, axes = canvas.grid(1, 2, (6, 3))
    for axis in axes:
        for number in range(count):
            axis.plot([0, 1], [0, number], label=f"a strategy with settings {number}")
    canvas.legend(figure, axes, beside=beside)
    crowded = count > canvas.CROWD
    assert [axis.get_legend() is None for axis in axes] == [crowded] * 2
    assert [len(legend.get_texts()) for legend in figure.legends] == [count] * (crowded and beside)
    figure.draw_without_rendering()
    for legend in figure.legends:
        # Nothing is drawn where the names are, and they have room.
        box = legend.get_window_extent()
        assert box.x0 >= max(axis.get_tightbbox().x1 for axis in axes)
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= 0
    assert all(axis.get_position().width * figure.get_figwidth() > 1.5 for axis in axes)
    plt.close(figure)
