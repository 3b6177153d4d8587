"""Choose the pictures that a page shows of what models see, and encode them small."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from src.report import canvas
from src.report.canvas import Point
from src.report.runs import Row
from src.report.views import KINDS, show
from src.run import files
from src.run.status import MEASURED

# Pictures that a page has at most.
PICTURES = 12
# Pixels of a picture's width at most, and bytes of its file, which are a third more in the page.
WIDTH, MOST_BYTES = 1600, 112_000
# Below so many bytes nothing is recognised; a page that is full without pictures has them all the same.
LEAST_BYTES = 8_000
QUALITY, SHRINK = 80, 0.8
# WebP's own limit, in pixels.
HEIGHT = 16_383


@dataclass(frozen=True)
class Picture:
    """A picture of what one run's model sees in the first test images.

    Attributes:
        address: a `data:` address.
        name: the run's strategy, workers and batch.
        score: the task's metric and its value, `iou 0.4312`.
        path: the whole picture, from the study's folder.
    """

    address: str
    name: str
    score: str
    path: str


@dataclass(frozen=True)
class Group:
    """Pictures of one model, task, dataset and source; `folded` where the score says as much."""

    title: str
    folded: bool
    pictures: list[Picture]


def groups(rows: Sequence[Row], room: float = PICTURES * MOST_BYTES) -> tuple[list[Group], int]:
    """Return the pictures of the first repetition of each configuration, and how many runs' are left out.

    There are at most `PICTURES`: each group has some, and in it each strategy, before any has more. Of a task
    whose score is the accuracy one run has its picture shown. A run without a readable one has none. All of
    them together take at most `room` bytes before they are encoded for the page, which adds a third.
    """
    drawn = [
        Point(row["run"], row["label"], _title(row), row)
        for row in rows
        if row["status"] in MEASURED and (row["run"].directory / files.PREDICTIONS).exists()
    ]
    # The first of several repetitions is shown.
    first = {point.run.configuration: point for point in reversed(drawn)}
    panels = canvas.panels([point for point in drawn if point is first[point.run.configuration]])
    addresses: dict[str, str] = {}
    most = min(MOST_BYTES, max(LEAST_BYTES, room / PICTURES))
    for point in _by_turns(panels):
        if len(addresses) < PICTURES and (
            address := _data_uri(point.run.directory / files.PREDICTIONS, most)
        ):
            addresses[point.run.cell] = address
    shown = [
        Group(
            title,
            _is_folded(panel),
            [_picture(point, addresses[point.run.cell]) for point in panel if point.run.cell in addresses],
        )
        for title, panel in panels.items()
    ]
    return [group for group in shown if group.pictures], len(drawn) - len(addresses)


def _title(row: Row) -> str:
    task = f", {row['task']}" if row.get("task") else ""
    return f"{row['model']} on {canvas.data(row)}{task}"


def _is_folded(panel: Sequence[Point]) -> bool:
    return panel[0].row.get("metric") in (None, "accuracy")


def _by_turns(panels: Mapping[str, Sequence[Point]]) -> Iterator[Point]:
    """Yield the runs as they are let in: of each group one of each label, then a second one of each ..."""
    ranked: list[tuple[int, int, Point]] = []
    for panel in panels.values():
        turns: Counter[str] = Counter()
        for place, point in enumerate(panel[:1] if _is_folded(panel) else panel):
            ranked.append((turns[point.label], place, point))
            turns[point.label] += 1
    yield from (point for *_, point in sorted(ranked, key=lambda each: each[:2]))


def _picture(point: Point, address: str) -> Picture:
    row = point.row
    score = f"{row.get('metric') or 'accuracy'} {show(row.get('score'), KINDS['score'])}"
    name = f"{canvas.series(point).name}, batch {row['batch']}"
    return Picture(address, name, score, f"runs/{point.run.cell}/{files.PREDICTIONS}")


def _data_uri(path: Path, most: float) -> str | None:
    """Return a picture as a WebP `data:` address of bounded size; `None` if it can't be read whole."""
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    # The last one is what Pillow raises for a damaged PNG.
    except (OSError, ValueError, SyntaxError):
        return None
    image.thumbnail((WIDTH, HEIGHT))
    while len(encoded := _webp(image)) > most:
        image.thumbnail((int(image.width * SHRINK), int(image.height * SHRINK)))
    return "data:image/webp;base64," + base64.b64encode(encoded).decode()


def _webp(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "webp", quality=QUALITY)
    return buffer.getvalue()
