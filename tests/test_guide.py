"""Every figure in the guide stands on a page that the same sentence links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(((?:studies/)?\w+\.md)(?:#[\w-]*)?\)")
# Figures of two digits and more; of names, as ResNet-18 and P100, the numbers are none.
FIGURE = re.compile(r"(?<![\w.,/-])\d+(?:,\d{3})*(?:\.\d+)?(?!\w|\.\d)")


def statements() -> list[tuple[str, list[Path]]]:
    """Each bullet and row of the guide that links a study's page, without its links, with these pages."""
    text = (DOCS / "guide.md").read_text()
    found = []
    for line in text.splitlines():
        pages = [DOCS / each for each in LINK.findall(line) if each.startswith("studies/")]
        if pages and line.startswith(("- ", "| ", "**")):
            found.append((re.sub(r"\[`?\w+`?\]\([^)]*\)|`[^`]*`", "", line), pages))
    return found


def figures(text: str) -> list[str]:
    # What is worked out there and then stands behind a sign of equality.
    text = re.sub(r"\d[\d.]* / [\d.]+ = [\d.]+", "", text)
    return [each for each in FIGURE.findall(text) if len(re.sub(r"\D", "", each)) > 1]


@pytest.mark.parametrize(("text", "pages"), statements(), ids=lambda each: str(each)[:40])
def test_a_figure_stands_on_the_page_that_is_linked(text: str, pages: list[Path]) -> None:
    there = "\n".join(page.read_text() for page in pages)
    missing = [
        each for each in figures(text) if not re.search(rf"(?<![\d.,]){re.escape(each)}(?!\d|[.,]\d)", there)
    ]
    assert not missing, f"{missing}: {text}"


def test_nothing_is_left_to_be_written() -> None:
    assert not re.findall(r"@[A-Z]+@|TODO", (DOCS / "guide.md").read_text())


def test_figures_are_found() -> None:
    assert figures("ResNet-18 on P100 has 1.23 of 1,065 MiB, 2 / 1.58 = 1.27, with 3") == ["1.23", "1,065"]
    assert sum(len(figures(text)) for text, _ in statements()) > 60
