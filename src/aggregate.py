"""Write a study's tables and report from its runs, and say what they mean and how to run failed cells again.

Speed-up and parity, which only the tables know, are added to the runs in MLflow.

This is the last stage of a study, `aggregate` in dvc.yaml:

    python -m src.aggregate                     # writes results/<study>/tables and report.html, prints tables
    python -m src.aggregate --summary summary   # and what DVC shows of the study: its figures and pictures
    python -m src.aggregate results/lab results/cloud    # one report of two machines' studies
    python -m src.aggregate --failed            # prints the names of failed, missing and skipped cells alone

The exit status is 1 when a cell has failed or is missing; tables and report are written all the same. A cell
that this machine can't run is skipped, and no failure.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.machine.file_locks import alone
from src.report import console, exchange, repeats, seeds, steps_to_target, tables, together, views
from src.report import runs as study_runs
from src.report import study as studies
from src.report.runs import Row, StudyRun
from src.report.verdict.objective import objective
from src.report.verdict.prices import add_costs
from src.report.verdict.verdicts import Verdict, as_json, other_aims, verdicts, word_by_cell
from src.report.views import View
from src.run import exit_lines
from src.run.status import Status
from src.run.tables import write_table, write_text
from src.tracking.study import add_figures

# Figures of each configuration in tables/metrics.json.
METRICS = (
    "status", "accuracy", "loss", "samples_per_second", "train_seconds", "speedup", "scaling_efficiency",
    "bubble_fraction", "memory_peak_bytes", "parity_gap", "parity", "data_source",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage with command-line arguments, by default those of this process; return the exit status.

    The status is 0, 1 when a cell has failed or is missing, or 2 where the file holds no study.
    """
    options = _parse(arguments)
    return exit_lines.run(lambda: _together(options) if options.folders else _aggregate(options))


def _aggregate(options: argparse.Namespace) -> int:
    """Write and print tables and report, or print failed cells alone; return the exit status."""
    study = studies.read(options.params)
    wanted = objective(study)
    directory = options.study_dir or studies.directory(study)
    runs = studies.load(study, directory)
    failed = [run for run in runs if run.status in (Status.FAILED, Status.MISSING)]
    skipped = [run for run in runs if run.status == Status.SKIPPED]
    if options.failed:
        print("".join(f"{run.cell}\n" for run in (*failed, *skipped)), end="")
        return 0
    rows = add_costs(studies.merged_rows(study, runs), wanted.prices)
    found = verdicts(rows, wanted, study)
    write(study, runs, rows, found, directory, other_aims(rows, wanted, study))
    if options.summary:
        from src.report import summary

        summary.write(options.summary, runs, rows)
    words = word_by_cell(found)
    add_figures([{**row, "verdict": words.get(row["cell"])} for row in rows])
    console.print_views(views.views(repeats.summarise(rows)))
    for error in dict.fromkeys(run.error for run in skipped):
        cells = [run.cell for run in skipped if run.error == error]
        print(f"skipped: {views.listed(cells, ', ')}\n  {error}\n  elsewhere: make retry")
    if failed:
        print(retry_help(failed))
    console.print_verdicts(found)
    return 1 if failed else 0


def _together(options: argparse.Namespace) -> int:
    """Write and print one report of studies of several machines; return the exit status."""
    study, runs, rows = together.read(options.folders)
    wanted = objective(study)
    rows = add_costs(rows, wanted.prices)
    machines = together.machines_view(rows, options.baseline)
    directory = options.study_dir or Path("results") / study["name"].replace(" ", "")
    found = verdicts(rows, wanted, study)
    write(study, runs, rows, found, directory, other_aims(rows, wanted, study), [machines])
    console.print_views([machines, *views.views(repeats.summarise(rows))])
    console.print_verdicts(found)
    print(f"{directory / 'report.html'}")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("python -m src.aggregate", description="Tables and report of a study.")
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="studies of several machines, as results/lab results/cloud, for one report",
    )
    parser.add_argument("--baseline", metavar="MACHINE", help="with folders: over whose figures ratios stand")
    parser.add_argument(
        "--params", type=Path, default=Path("params.yaml"), help="the file that holds the study"
    )
    parser.add_argument("--study-dir", type=Path, help="where its runs/ are (default: results/<study>)")
    parser.add_argument("--summary", type=Path, help="a folder for the study's figures and pictures for DVC")
    parser.add_argument(
        "--failed", action="store_true", help="print the failed, missing and skipped cells and stop"
    )
    return parser.parse_args(arguments)


def write(
    study: Mapping[str, Any],
    runs: Sequence[StudyRun],
    rows: Sequence[Row],
    found: Sequence[Verdict],
    directory: Path,
    others: Sequence[Verdict] = (),
    first: Sequence[View] = (),
) -> None:
    """Write `tables/` and `report.html` under a study's `directory`.

    `study` is the contents of that key in params.yaml; `runs` has missing runs, too, `rows` the merged row of
    each, `found` are the study's verdicts, and `others` those by other aims than its own;
    the page has the tables `first` before its own.
    """
    from src.report import page

    directory.mkdir(parents=True, exist_ok=True)
    with alone(directory / "tables", f"{directory}/tables"):
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=directory) as work:
            folder = Path(work) / "tables"
            folder.mkdir()
            _write_tables(runs, rows, folder)
            (folder / studies.KEPT).write_text(json.dumps(study, indent=1) + "\n")
            verdict = [as_json(each) for each in found]
            (folder / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n")
            # The old files are replaced, never written into: DVC may have linked them to its cache.
            shutil.rmtree(directory / "tables", ignore_errors=True)
            folder.rename(directory / "tables")
        write_text(directory / "report.html", page.render(study, runs, rows, found, others, first))


def _write_tables(runs: Sequence[StudyRun], rows: Sequence[Row], folder: Path) -> None:
    """Write tables, curves, metrics and the overview into `folder`."""
    from src.report import figures, memory, page

    summed = repeats.summarise(rows)
    for name, columns in tables.COLUMNS.items():
        write_table(folder / f"{name}.csv", columns, rows if name == "runs" else summed)
    write_table(folder / "curves.csv", tables.CURVES, tables.curves(runs))
    if exchanged := exchange.exchanges(summed):
        write_table(folder / "exchange.csv", exchange.EXCHANGE, exchanged)
    if followed := memory.rows(summed):
        write_table(folder / "memory.csv", memory.MEMORY, followed)
    if scattered := seeds.rows(rows):
        write_table(folder / "seeds.csv", seeds.SEEDS, scattered)
    if reached := steps_to_target.rows(runs):
        write_table(folder / "steps_to_target.csv", steps_to_target.STEPS, reached)
    summary = {row["cell"]: {key: _finite(row.get(key)) for key in METRICS} for row in summed}
    (folder / "metrics.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    overview = figures.overview(*page.picture(runs, rows))
    if overview:
        overview.savefig(folder / "overview.png", dpi=100, metadata={"Software": None})


def _finite(value: Any) -> Any:
    """Return `value`, or `None` for a float that JSON can't hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def retry_help(failed: Sequence[StudyRun]) -> str:
    """Return a text on failed cells: what failed, why if known, and the commands to run them again."""
    blocks = [
        f"{run.status}: {run.cell}\n"
        f"  {run.error or 'no reason is known'}\n"
        f"  again: {study_runs.retry_command(run)}"
        for run in failed
    ]
    return "\n".join([*blocks, f"{len(failed)} failed; all of them again: make retry"])


if __name__ == "__main__":
    exit_lines.leave(main)
