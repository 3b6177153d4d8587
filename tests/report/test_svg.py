"""A figure in the page: its colours are the page's, its marks say numbers, and several don't collide."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from src.report import canvas, palette, svg
from src.report.canvas import Drawing


def drawing() -> Drawing:
    made = Drawing()
    axis = made.panel("a <panel>")
    (line,) = axis.plot([1, 2], [3.0, 4.0], "o-", color=palette.SERIES[0].light, label="ddp, 2 w")
    made.mark(line, [{"run": "ddp<1>", "workers": w, "speed-up": s} for w, s in ((1, 3.0), (2, 4.0))])
    (bar,) = axis.barh(0, 5.0, color=palette.SERIES[1].light)
    made.mark(bar, [{"run": "mpi", "samples/s": 1234.5678}])
    canvas.legend(axis)
    return made


def inlined(inliner: svg.Inliner) -> str:
    (figure,) = drawing().panels.values()
    return inliner.inline(figure, "Throughput of <all>")


def test_all_colours_are_the_pages() -> None:
    inliner = svg.Inliner()
    text = inlined(inliner) + inliner.css()
    assert {"var(--c1)", "var(--c2)", "var(--ink)", "var(--line)"} <= set(re.findall(r"var\(--\w+\)", text))
    assert not re.search(r"#[0-9a-f]{6}|rgb\(", text)


def test_each_mark_says_its_runs_numbers() -> None:
    titles = [each.text for each in ElementTree.fromstring(inlined(svg.Inliner())).iter("title")]
    assert sorted(map(str, titles)) == [
        "ddp<1>: workers 1, speed-up 3",
        "ddp<1>: workers 2, speed-up 4",
        "mpi: samples/s 1234.6",
    ]


def test_text_stays_text_in_the_fonts_of_the_page() -> None:
    inliner = svg.Inliner()
    root = ElementTree.fromstring(inlined(inliner))
    assert "ddp, 2 w" in [each.text for each in root.iter("text")]
    assert (root.get("role"), root.get("aria-label")) == ("img", "Throughput of <all>")
    assert "DejaVu" not in ElementTree.tostring(root, encoding="unicode") + inliner.css()


def test_ids_of_two_figures_differ_and_every_reference_is_met() -> None:
    inliner = svg.Inliner()
    first, second = (set(re.findall(r' id="([^"]*)"', text)) for text in (inlined(inliner), inlined(inliner)))
    assert first and not first & second
    inliner = svg.Inliner()
    text = inlined(inliner)
    assert set(re.findall(r'href="#([^"]*)"', text)) == set(re.findall(r' id="([^"]*)"', text))
    # A rule for all elements would be one of the whole page.
    assert all(line.startswith("svg .") for line in inliner.css().splitlines())


def test_the_same_figure_is_the_same_text() -> None:
    assert inlined(svg.Inliner()) == inlined(svg.Inliner())
