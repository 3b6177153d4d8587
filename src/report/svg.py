"""Make matplotlib's SVG a part of a page, with the page's colours and fonts, and marks that say numbers."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from matplotlib.figure import Figure

from src.report import palette

LINK = "{http://www.w3.org/1999/xlink}href"
NUMBERS = ("d", "x", "y", "x1", "x2", "y1", "y2", "transform", "viewBox", "points")
# These are what an element has anyway; the joins are said once for all figures.
DEFAULTS = {"stroke-linecap": "butt", "stroke-linejoin": "miter", "fill-rule": "nonzero", "opacity": "1"}


class Inliner:
    """Turns the figures of one page into elements of it; they share one list of styles.

    Attributes:
        styles: the declarations of each class, by its name.
    """

    def __init__(self) -> None:
        self.styles: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._count = 0

    def inline(self, figure: Figure, label: str) -> str:
        """Return a figure as an `<svg>` element that is called `label`.

        A mark whose gid is a JSON list of texts shows these on hover: one for all of it, or one for each of
        its parts, as dots of a line.
        """
        buffer = io.BytesIO()
        figure.patch.set_visible(False)
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        self._count += 1
        root = ElementTree.fromstring(buffer.getvalue())
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        _drop(root, {"metadata", "style", "clipPath"})
        _say_numbers(root)
        self._point_to_own(root, f"g{self._count}-")
        for element in root.iter():
            self._restyle(element)
        _flatten(root)
        box = " ".join(f"{float(number):.4g}" for number in root.attrib["viewBox"].split())
        root.attrib = {"viewBox": box, "role": "img", "aria-label": label}
        return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")

    def css(self) -> str:
        """Return the rules of all styles."""
        return "\n".join(f"svg .{name} {{ {style} }}" for name, style in self.styles.items())

    def _restyle(self, element: Element) -> None:
        """Shorten numbers, and put the style into a class whose colours are the page's."""
        for name in NUMBERS:
            if name in element.attrib:
                element.set(name, _shortened(element.attrib[name], 1))
        if element.attrib.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        element.attrib.pop("clip-path", None)
        style = "; ".join(f"{key}: {value}" for key, value in _declarations(element.attrib.pop("style", "")))
        if style:
            name = self._names.setdefault(style, f"s{len(self._names)}")
            self.styles[name] = style
            element.set("class", name)

    def _point_to_own(self, root: Element, prefix: str) -> None:
        """Give ids that are used a name that no other figure of the page has, and remove the others."""
        for element in root.iter():
            if LINK in element.attrib:
                element.set("href", element.attrib.pop(LINK))
        used = {element.attrib["href"][1:] for element in root.iter() if "href" in element.attrib}
        short = {name: f"{prefix}{place}" for place, name in enumerate(sorted(used))}
        for element in root.iter():
            if (name := element.attrib.pop("id", None)) in short:
                element.set("id", short[name])
            if "href" in element.attrib:
                element.set("href", f"#{short[element.attrib['href'][1:]]}")


def _drop(element: Element, tags: set[str]) -> None:
    for child in list(element):
        if child.tag in tags or (child.tag == "defs" and all(each.tag in tags for each in child)):
            element.remove(child)
        else:
            _drop(child, tags)


def _say_numbers(root: Element) -> None:
    """Give each mark whose id is a list of texts a `<title>`, or one to each of its parts."""
    for group in list(root.iter("g")):
        name = group.attrib.get("id", "")
        if not name.startswith("["):
            continue
        texts = json.loads(name)
        for part, text in zip(*_parts(group, texts), strict=True):
            title = Element("title")
            title.text = text
            part.insert(0, title)


def _parts(group: Element, texts: list[str]) -> tuple[list[Element], list[str]]:
    """Return what shows the texts: as many dots or else outlines, or the whole group with all of them."""
    defined = {id(each) for defs in group.iter("defs") for each in defs.iter()}
    for tag in ("use", "path"):
        parts = [part for part in group.iter(tag) if id(part) not in defined]
        if len(parts) == len(texts):
            return parts, texts
    return [group], ["; ".join(texts)]


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    """Yield what a style says that isn't said elsewhere, with the page's colours."""
    for declaration in filter(None, map(str.strip, style.split(";"))):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        # The page's fonts take the place of the one with which text was measured.
        if key != "font-family" and DEFAULTS.get(key) != value:
            yield key, palette.variable(value) or _shortened(value)


def _shortened(text: str, digits: int = 2) -> str:
    """Round the numbers in a text to so many digits after the point, and drop what spaces can be spared."""
    rounded = re.sub(r"-?\d+\.\d+(e-\d+)?", lambda number: f"{round(float(number[0]), digits):g}", text)
    return re.sub(r"\s+", " ", re.sub(r"\s*([A-Za-z])\s+(?=-?\d)", r"\1", rounded)).strip()


def _flatten(element: Element) -> None:
    """Replace groups that say nothing by what they hold, and empty ones by nothing."""
    if element.tag == "text":
        return
    children: list[Element] = []
    for child in list(element):
        _flatten(child)
        child.tail = None
        if child.tag == "g" and not child.attrib:
            children += list(child)
        elif child.tag not in ("g", "defs") or len(child):
            children.append(child)
    if element.tag != "title":
        element.text = None
    element[:] = children


def file_name(title: str) -> str:
    """Return a title as the name of a file: letters, digits and hyphens."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")
