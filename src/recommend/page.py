"""Write an answer as a page: what to choose, and rates over numbers of devices, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from src.recommend.words import number
from src.report import canvas, palette, svg
from src.report.canvas import Drawing
from src.report.page import code
from src.run.tables import write_text

TEMPLATE = "answer.html.j2"
# With more devices axes are logarithmic.
LINEAR = 8
# By how much of a device, or of a power of two of them, curves stand side by side.
ASIDE = 0.06


@dataclass(frozen=True)
class Shown:
    """A way on a page.

    Attributes:
        strategy: its name, by which ways are joined to a curve.
        name: what tells it from others.
        devices: how many it has.
        rate: samples of a second, predicted or measured.
        low, high: between which that lies, in 80 of 100 cases.
        predicted: what is predicted where runs have measured the rate; `None` where that isn't known.
        measured: whether runs have measured the rate.
        of_prediction: whether the interval is that of what is predicted, though the rate was measured.
        burdens: further cells of its row, by heading.
    """

    strategy: str
    name: str
    devices: int
    rate: float
    low: float
    high: float
    predicted: float | None = None
    measured: bool = False
    of_prediction: bool = False
    burdens: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of a page: the answer for a batch.

    Attributes:
        title: what is trained, on what, for which aim.
        sentences: the answer.
        command: what to type; empty where nothing can be chosen.
        chosen: the name of the choice.
        ways: all of them, the best first.
    """

    title: str
    sentences: Sequence[str]
    command: str
    chosen: str
    ways: Sequence[Shown]


def write(path: Path, sections: Sequence[Section], reasons: Sequence[str]) -> None:
    """Write a page that loads nothing from anywhere.

    Args:
        path: of the file.
        sections: an answer each.
        reasons: why some ways aren't predicted.
    """
    folders = [Path(__file__).parent, Path(svg.__file__).parent]
    environment = Environment(
        loader=FileSystemLoader(folders), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"code": code, "number": number}
    template = environment.get_template(TEMPLATE)
    inliner = svg.Inliner()
    shown = [(section, *_drawn(section, inliner)) for section in sections]
    content = template.render(
        sections=shown,
        reasons=reasons,
        colours={theme: palette.css(theme) for theme in ("light", "dark")},
        figure_styles=inliner.css(),
    )
    write_text(path, content)


def curves(ways: Sequence[Shown]) -> dict[str, list[Shown]]:
    """Return each strategy's fastest way on each number of devices, in order of these."""
    found: dict[str, dict[int, Shown]] = {}
    for way in ways:
        best = found.setdefault(way.strategy, {})
        if way.devices not in best or best[way.devices].rate < way.rate:
            best[way.devices] = way
    return {strategy: [best[count] for count in sorted(best)] for strategy, best in found.items()}


def _drawn(section: Section, inliner: svg.Inliner) -> tuple[str, list[str]]:
    """Return the picture of an answer, empty without ways, and the headings of its table."""
    if not section.ways:
        return "", []
    drawing = Drawing()
    axis = drawing.panel("each strategy's fastest way", 3.4)
    known = curves(section.ways)
    looks = canvas.looks(known)
    counts = sorted({way.devices for way in section.ways})
    wide = counts[-1] > LINEAR
    single = min(section.ways, key=lambda way: (way.devices, -way.rate))
    if single.devices == 1 and counts[-1] > 1:
        ideal = [single.rate * count for count in counts]
        axis.plot(counts, ideal, color=canvas.SOFT, linestyle="--", linewidth=1, label="ideal")
    for place, (strategy, ways) in enumerate(known.items()):
        # What would lie on one another stands side by side.
        aside = (place - (len(known) - 1) / 2) * ASIDE
        xs = [way.devices * 2**aside if wide else way.devices + aside for way in ways]
        look, ends = looks[strategy], ([way.low for way in ways], [way.high for way in ways])
        axis.vlines(xs, *ends, color=look.color, alpha=0.3, linewidth=4)
        predicted = [way.predicted if way.measured else way.rate for way in ways]
        pairs = [(x, y, way) for x, y, way in zip(xs, predicted, ways, strict=True) if y is not None]
        style = {"linestyle": look.dash, **look.marked()}
        if pairs:
            places, rates = [x for x, _, _ in pairs], [y for _, y, _ in pairs]
            (line,) = axis.plot(places, rates, label=strategy, **style)
            drawing.mark(line, [{"way": way.name, "samples/s": y} for _, y, way in pairs])
        measured = [(x, way) for x, way in zip(xs, ways, strict=True) if way.measured]
        if measured:
            style = {"markerfacecolor": "none", "color": look.color, "markersize": 9, "linestyle": ""}
            rates = [way.rate for _, way in measured]
            (dots,) = axis.plot([x for x, _ in measured], rates, "o", label=f"{strategy}, measured", **style)
            drawing.mark(dots, [{"way": way.name, "measured samples/s": way.rate} for _, way in measured])
    if wide:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
    else:
        axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: number(value))
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set(xlabel="devices", ylabel="samples/s")
    canvas.legend(axis)
    (figure,) = drawing.panels.values()
    headings = [heading for heading, _ in section.ways[0].burdens]
    return inliner.inline(figure, f"{section.title}: samples/s over devices"), headings
