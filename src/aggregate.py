"""The last stage of a study: tables, report and findings from its runs, and what to do about failed cells.

    python -m src.aggregate             # writes results/<study>/tables and report.html, prints the tables
    python -m src.aggregate --failed    # prints the failed and missing cells' names alone

Exits 1 when a cell failed or is missing, after everything is written.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from src import rundir
from src.report import runs as study_runs
from src.report import tables
from src.report.runs import Row, Run

if TYPE_CHECKING:
    from src.report.views import View

WIDTH = 120
# Left out of the printed tables, in this order, where a line would grow too long; the files have them all.
SPARED = (
    *("T1/(N TN)", "own eff.", "train acc.", "gap", "saved", "payload", "input", "helpers", "to target"),
    *("step", "seed", "scaling", "data"),
)
# The strategy may fold to the first width, another text to the second; a number may not fold at all.
FOLDED = 26, 14
# What `dvc metrics show` and `dvc exp show` list for each cell.
METRICS = (
    *("status", "accuracy", "loss", "samples_per_second", "train_seconds", "speedup", "scaling_efficiency"),
    *("bubble_fraction", "memory_peak_bytes", "parity_gap", "parity"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the stage; returns its exit code."""
    options = _parse(arguments)
    try:
        study = yaml.safe_load(options.params.read_text())["study"]
        cells, name = study["cells"], study["name"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        print(f"{options.params}: no study with a name and cells can be read ({error})", file=sys.stderr)
        return 2
    directory = options.study_dir or Path("results") / name
    runs = study_runs.load(cells or {}, directory / "runs")
    failed = [run for run in runs if run.status in ("failed", "missing")]
    if options.failed:
        print("".join(f"{run.cell}\n" for run in failed), end="")
        return 0
    rows = write(study, runs, directory)
    _print(rows)
    if failed:
        print(retry_help(failed))
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m src.aggregate", description="Tables and report of a study.")
    parser.add_argument(
        "--params", type=Path, default=Path("params.yaml"), help="the file that holds the study"
    )
    parser.add_argument("--study-dir", type=Path, help="where its runs/ are (default: results/<study>)")
    parser.add_argument("--failed", action="store_true", help="print the failed and missing cells and stop")
    return parser.parse_args(arguments)


def write(study: Mapping[str, Any], runs: Sequence[Run], directory: Path) -> list[Row]:
    """Writes `tables/` and `report.html` under `directory`; returns the merged row of each run."""
    from src.report import page

    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory) as work:
        folder = Path(work) / "tables"
        folder.mkdir()
        rows = _write_tables(runs, folder)
        # Never into the files that are there: DVC may have linked them to its cache.
        shutil.rmtree(directory / "tables", ignore_errors=True)
        folder.rename(directory / "tables")
    rundir.write(directory / "report.html", page.render(study, runs, rows))
    return rows


def _write_tables(runs: Sequence[Run], folder: Path) -> list[Row]:
    from src.report import figures, page

    made = {
        "scaling": tables.scaling(runs),
        "accuracy": tables.accuracy(runs),
        "utilization": tables.utilization(runs),
    }
    columns = {"scaling": tables.SCALING, "accuracy": tables.ACCURACY, "utilization": tables.UTILIZATION}
    # A time may stand beside another framework's only with the ratio to each one's own single run.
    for name in ("accuracy", "utilization"):
        for row, scaled in zip(made[name], made["scaling"], strict=True):
            row["speedup"] = scaled.get("speedup")
    for name, table in made.items():
        tables.write_csv(folder / f"{name}.csv", columns[name], table)
    tables.write_csv(folder / "curves.csv", tables.CURVES, tables.curves(runs))
    rows = tables.merged(runs, made, study_runs.labels(runs))
    summary = {row["cell"]: {key: _finite(row.get(key)) for key in METRICS} for row in rows}
    (folder / "metrics.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    overview = figures.overview(*page.picture(runs, rows))
    if overview:
        overview.savefig(folder / "overview.png", dpi=100, metadata={"Software": None})
    return rows


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from src.report import views

    console = Console(highlight=False)
    if not console.is_terminal or console.width > WIDTH:
        console = Console(width=WIDTH, highlight=False)
    for name in views.VIEWS:
        view = views.view(name, rows)
        shown = _fitting(view, console.width)
        table = Table(title=view.title, title_justify="left", box=None, padding=(0, 1), pad_edge=False)
        for place, width in shown.items():
            numeric = view.numeric[place]
            justify = "right" if numeric else "left"
            table.add_column(
                view.headings[place], justify=justify, no_wrap=numeric, overflow="fold", min_width=width
            )
        for status, cells in view.rows:
            row = [Text(cells[place]) for place in shown]
            table.add_row(*row, style=None if status == "ok" else "yellow")
        console.print(table)
        for note in view.notes:
            console.print(Text(note, style="dim"))
        console.print()


def _fitting(view: View, width: int) -> dict[int, int]:
    """The columns that fit on a line: their places, and the least width of each."""
    widths: dict[int, int] = {}
    for place, heading in enumerate(view.headings):
        longest = max([len(heading), *(len(cells[place]) for _, cells in view.rows)])
        widths[place] = longest if view.numeric[place] else min(longest, FOLDED[place > 0])
    for heading in SPARED:
        if sum(widths.values()) + 2 * len(widths) > width and heading in view.headings:
            del widths[view.headings.index(heading)]
    return widths


def retry_help(failed: Sequence[Run]) -> str:
    """What failed, why if known, and the commands that run it again."""
    blocks = [
        f"{run.status}: {run.cell}\n"
        f"  {run.error or 'no reason is known'}\n"
        f"  again: {study_runs.retry_command(run)}"
        for run in failed
    ]
    return "\n".join([*blocks, f"{len(failed)} failed; all of them again: make retry"])


if __name__ == "__main__":
    sys.exit(main())
