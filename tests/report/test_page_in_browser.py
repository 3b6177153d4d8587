"""The page as a browser has it: nothing asked for, nothing complained of, everything drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from src import aggregate
from tests.report.browser import Tab, axe_core, browse, serious
from tests.report.conftest import Study
from tests.report.many_runs import write_many

pytestmark = [pytest.mark.slow, pytest.mark.timed]
# What a reader would miss: a picture without extent, or one whose marks all have the page's colour.
UNDRAWN = """
[...document.querySelectorAll(".panel svg, details[open] img, figure > img")].filter((each) => {
  const box = each.getBoundingClientRect();
  const marks = [...each.querySelectorAll("path, use, text")].map((mark) => getComputedStyle(mark));
  const page = getComputedStyle(document.body).backgroundColor;
  const shows = (colour) => ![page, "none"].includes(colour);
  const seen = marks.some((style) => shows(style.fill) || shows(style.stroke));
  return box.width < 100 || box.height < 40 || (each.tagName === "svg" && !seen);
}).length
"""
# What sticks out of the window, tables aside, which scroll.
WIDER = """
document.documentElement.scrollWidth > innerWidth ? [...document.querySelectorAll("main *")].filter(
  (each) => !each.closest(".scroll, svg") && each.getBoundingClientRect().right > innerWidth + 1
).map((each) => each.outerHTML.slice(0, 200)) : []
"""
NARROW_NAMES = """
[...document.querySelectorAll("th[scope=row]")].filter((each) => each.clientWidth < 80).length
"""
# The cells of printed tables that lie outside of the sheet, or under each other.
CUT = """
[...document.querySelectorAll("table")].flatMap((table) => [...table.querySelectorAll("th, td")]).filter(
  (cell) => cell.getBoundingClientRect().right > innerWidth + 1 || cell.scrollWidth > cell.clientWidth + 1
).map((cell) => cell.closest("table").dataset.name + ": " + cell.textContent)
"""
SORTED = """
(() => {
  const table = document.querySelector("table[data-name=scaling]");
  const heads = [...table.tHead.rows[0].cells];
  const header = heads.find((each) => each.textContent === "samples/s");
  const column = () => [...table.tBodies[0].rows].map((row) => row.cells[header.cellIndex].textContent);
  const sorter = header.querySelector("button");
  sorter.click();
  const rising = [column(), header.getAttribute("aria-sort")];
  sorter.click();
  return [rising, [column(), header.getAttribute("aria-sort")]];
})()
"""
FILTERED = """
(() => {
  const table = document.querySelector("table[data-name=scaling]");
  const input = table.closest(".scroll").previousElementSibling.querySelector("input");
  input.value = "DDP 1,800";
  input.dispatchEvent(new Event("input"));
  return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
})()
"""
PLAIN = "{ textContent: '.scroll { background: var(--page) }' }"
# A download is the text of a blob, and the click on an anchor that names the file.
SAVED = """
(async () => {
  const names = [], blobs = [], address = URL.createObjectURL;
  URL.createObjectURL = (blob) => { blobs.push(blob.text()); return address(blob); };
  HTMLAnchorElement.prototype.click = function () { names.push(this.download); };
  const table = document.querySelector("table[data-name=scaling]").closest(".scroll").previousElementSibling;
  const figure = document.querySelector("figure:has(.panel)");
  for (const place of [figure, table]) place.querySelector("button").click();
  const texts = await Promise.all(blobs);
  return names.map((name, place) => [name, texts[place]]);
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study that has each kind of chart, repetitions and runs that failed."""
    made = Study(tmp_path_factory.mktemp("study"))
    write_many(made, 60, repetitions=3)
    made.run("ddp-1800", "ddp", workers=2, samples_per_second=1800.0)
    made.run("big", batch=8192, status="out_of_memory")
    made.declare("missing", strategy="ddp", model="cnn", dataset="mnist", workers=2)
    made.published = [
        {"paper": 1, "where": "text", "strategy": "ddp", "hardware": "GPU", "metric": "speedup"}
    ]
    made.findings = [{"paper": 5, "where": "Fig. 3", "claim": "Two are slower.", "rule": "trend"}]
    made.findings[0] |= {"metric": "train_seconds", "over": "workers", "expect": "rises"}
    made.declare("missing", strategy="ddp", model="cnn", dataset="mnist", workers=2)
    aggregate.main(["--params", str(made.params), "--study-dir", str(made.directory)])
    return made.directory / "report.html"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1600, 1400, 400])
def test_everything_is_drawn_nothing_is_asked_for_and_nothing_is_wrong(
    page: Path, width: int, theme: str
) -> None:
    async def visit(tab: Tab) -> None:
        await tab.look(width, theme=theme)
        await tab.open(page)
        assert await tab.run("document.querySelectorAll('.panel svg').length") > 40
        assert await tab.run(UNDRAWN) == 0
        assert await tab.run(WIDER) == []
        assert await tab.run(NARROW_NAMES) == 0
        assert tab.complaints() == []

    browse(visit)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_axe_finds_nothing_serious(page: Path, tmp_path: Path, width: int, theme: str) -> None:
    script = axe_core(tmp_path)

    async def visit(tab: Tab) -> None:
        await tab.look(width, theme=theme)
        await tab.open(page)
        await tab.run(script + "; 0")
        # Axe doesn't judge the contrast of text on a gradient, the shadow at a table's edge.
        await tab.run(f"document.head.append(Object.assign(document.createElement('style'), {PLAIN})), 0")
        assert serious(await tab.run("axe.run().then(JSON.stringify)")) == []

    browse(visit)


def test_a_printed_page_cuts_no_table_and_is_light(page: Path) -> None:
    async def visit(tab: Tab) -> None:
        # A4 across, less the margins, is 1039 CSS pixels wide.
        await tab.look(1039, theme="dark", media="print")
        await tab.open(page)
        assert await tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert await tab.run(CUT) == []
        assert (await tab.pdf()).startswith(b"%PDF")
        # What is folded away on a screen is open on paper.
        assert await tab.run("document.querySelectorAll('details:not([open])').length") == 0

    browse(visit)


def test_tables_sort_by_number_filter_by_words_and_are_saved(page: Path) -> None:
    async def visit(tab: Tab) -> None:
        await tab.open(page)
        rising, falling = await tab.run(SORTED)
        rates = [float(text.rstrip("†‡§*").replace(",", "")) for text in rising[0] if text != "-"]
        assert rates == sorted(rates) and len(set(rates)) > 3
        assert (rising[1], falling[1]) == ("ascending", "descending")
        # What wasn't measured is last in both orders.
        assert rising[0][-1] == falling[0][-1] == "-"
        assert float(falling[0][0].rstrip("†‡§*").replace(",", "")) == max(rates)
        assert await tab.run(FILTERED) == ["ddp"]
        (picture, svg), (table, csv) = await tab.run(SAVED)
        assert (
            picture.endswith(".svg")
            and svg.startswith("<svg")
            and 'xmlns="http://www.w3.org/2000/svg"' in svg
        )
        assert "var(" not in svg and "class=" not in svg and "rgb(" in svg
        assert table == "scaling.csv" and csv.startswith("strategy,")
        assert tab.complaints() == []

    browse(visit)


def test_five_hundred_runs_are_three_megabytes_and_seen_within_three_seconds(tmp_path: Path) -> None:
    made = Study(tmp_path)
    write_many(made, 500)
    aggregate.main(["--params", str(made.params), "--study-dir", str(made.directory)])
    page = made.directory / "report.html"
    assert page.stat().st_size <= 3_000_000

    async def visit(tab: Tab) -> float:
        await tab.open(page)
        paints = "performance.getEntriesByName('first-contentful-paint')"
        while not await tab.run(f"{paints}.length"):
            await tab.run("new Promise((done) => requestAnimationFrame(done))")
        return float(await tab.run(f"{paints}[0].startTime"))

    assert browse(visit) < 3000
