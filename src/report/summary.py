"""Sum a study up for DVC: six figures of the whole study, and two pictures.

DVC compares experiments file by file, so that these files have the same paths for every study:

    summary/metrics.json    `dvc metrics show`, `dvc exp show`
    summary/overview.png    `dvc plots show`, `dvc plots diff`
    summary/learning.png

Pictures are drawn here, and not by DVC's templates, whose pages load Vega from the network.
"""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from src.machine.file_locks import alone
from src.report import figures, page, repeats
from src.report.runs import Row, StudyRun
from src.run.status import Status

SECONDS_PER_HOUR = 3600
# So many panels make one picture.
PANELS = 6
# A third of a second; `dvc exp show` makes its column as wide as the longest figure.
HOUR_DIGITS = 4


def write(folder: Path, runs: Sequence[StudyRun], rows: Sequence[Row]) -> None:
    """Replace `folder` by the figures and pictures of a study, from its runs and their merged rows."""
    points, look = page.picture(runs, rows)
    learned = figures.curves(points, look, "epoch") or figures.bars(points, look, "accuracy", "test accuracy")
    overview = figures.overview(points, look)
    drawn = {
        "overview": [] if overview is None else [overview],
        "learning": [] if learned is None else list(learned.panels.values()),
    }
    with alone(folder, str(folder)):
        # The old files are replaced, never written into: DVC may have linked them to its cache.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text = json.dumps(metrics_of(rows), indent=2, allow_nan=False)
        (folder / "metrics.json").write_text(f"{text}\n", encoding="utf-8")
        for name, panels in drawn.items():
            if panels:
                _stacked(panels[:PANELS]).save(folder / f"{name}.png")


def _stacked(panels: Sequence[Figure]) -> Image.Image:
    """Return one picture of several figures, one below the other; close them."""
    pictures = []
    for figure in panels:
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=100, format="png", facecolor="white")
        plt.close(figure)
        pictures.append(Image.open(buffer).convert("RGB"))
    size = max(picture.width for picture in pictures), sum(picture.height for picture in pictures)
    whole = Image.new("RGB", size, "white")
    top = 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height
    return whole


def metrics_of(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the figures of a study, from the merged row of each run; `None` for what no run has.

    `measured` counts configurations, `failed` runs that failed or are missing. `speedup` is the largest over
    a baseline that is another configuration, `accuracy` and `parity_gap` are the largest, and `hours` is the
    sum of `train_seconds` of all runs. The names are short: 120 columns hold them beside an experiment's.
    """
    summed = repeats.summarise(rows)
    seconds = [row["train_seconds"] for row in rows if row.get("train_seconds") is not None]
    return {
        "measured": sum(row["repetitions"] > 0 for row in summed),
        "failed": sum(row["status"] in (Status.FAILED, Status.MISSING) for row in rows),
        "speedup": _largest(
            [row for row in summed if not _is_baseline(row) and row["run"].trains], "speedup"
        ),
        "accuracy": _largest([row for row in summed if row["run"].trains], "accuracy"),
        "parity_gap": _largest(summed, "parity_gap"),
        "hours": round(sum(seconds) / SECONDS_PER_HOUR, HOUR_DIGITS),
    }


def _is_baseline(row: Mapping[str, Any]) -> bool:
    """Return whether the speed-up of a configuration is that over itself."""
    return bool(set(row["runs"].split()) & set((row.get("baseline") or "").split()))


def _largest(rows: Sequence[Row], key: str) -> float | None:
    known = [row[key] for row in rows if row.get(key) is not None]
    return max((value for value in known if math.isfinite(value)), default=None)
