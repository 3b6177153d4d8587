"""Work out the ratios of a study's tables again, from the files of the runs that they name.

    python tests/report/recompute.py results/tensorflow [what the stage printed]

Nothing of `src` is used: the formulas stand here a second time, as docs/metrics.md has them.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

from scipy.stats import t

Rates = dict[tuple[int, int], float]


def recompute(study: Path) -> dict[str, dict[str, float | None]]:
    """Return speed-up, interval and parity gap of each row of the tables, from the runs' own files."""
    listed = {row["cell"]: row for row in read(study / "tables" / "runs.csv")}

    def rates(cells: str) -> Rates:
        found = {}
        for cell in cells.split():
            path = study / "runs" / cell / "metrics.json"
            metrics = json.loads(path.read_text()) if path.exists() else {}
            if metrics.get("samples_per_second") is not None:
                block = metrics["seed"], int(float(listed[cell]["repetition"]))
                found[block] = metrics["samples_per_second"]
        return found

    scaling = read(study / "tables" / "scaling.csv")
    accuracy = {row["cell"]: row for row in read(study / "tables" / "accuracy.csv")}
    results: dict[str, dict[str, float | None]] = {}
    for row in scaling:
        own, base = rates(row["runs"]), rates(row["baseline"])
        alike = [rates(other["runs"]) for other in scaling if other["baseline"] == row["baseline"]]
        ratios = (
            [rate / base.get(block, median(base.values())) for block, rate in own.items()] if base else []
        )
        results[row["cell"]] = {
            "speedup": median(ratios) if ratios else None,
            **dict(zip(("low", "high"), interval(own, base, alike), strict=True)),
            "gap": gap(study, row["runs"], accuracy[row["cell"]]["parity_reference"]),
        }
    return results


def interval(own: Rates, base: Rates, alike: list[Rates]) -> tuple[float | None, float | None]:
    """The 95 % interval of a ratio by the residuals of all configurations of one baseline."""
    blocks = [block for block in base if block in own]
    table = [base, *(rates for rates in alike if rates != base and all(block in rates for block in blocks))]
    if own == base or len(blocks) < 2:
        return None, None
    logs = [[math.log(rates[block]) for block in blocks] for rates in table]
    grand = mean(mean(row) for row in logs)
    left = [
        value - mean(row) - mean(other[place] for other in logs) + grand
        for row in logs
        for place, value in enumerate(row)
    ]
    freedom = (len(table) - 1) * (len(blocks) - 1)
    half = t.ppf(0.975, freedom) * math.sqrt(2 * sum(x * x for x in left) / freedom / len(blocks))
    centre = mean(math.log(own[block] / base[block]) for block in blocks)
    return math.exp(centre - half), math.exp(centre + half)


def gap(study: Path, cells: str, references: str) -> float | None:
    """The largest relative difference of the first ten losses, over all pairs of runs."""
    pairs = [
        (losses(study / "runs" / a), losses(study / "runs" / b))
        for a in cells.split()
        for b in references.split()
    ]
    known = [max(abs(x - y) / max(1, abs(y)) for x, y in zip(a, b, strict=True)) for a, b in pairs if a and b]
    return max(known, default=None)


def losses(run: Path) -> list[float]:
    rows = read(run / "steps.csv") if (run / "steps.csv").exists() else []
    own = sorted((int(row["step"]), row["loss"]) for row in rows if row["rank"] == "0")
    return [float(loss) for step, loss in own if step <= 10 and loss]


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def shown(figures: dict[str, float | None]) -> str:
    """A speed-up as the table prints it."""
    if figures["speedup"] is None:
        return "-"
    text = f"{figures['speedup']:.2f}"
    return text if figures["low"] is None else f"{text} ({figures['low']:.2f} to {figures['high']:.2f})"


def differences(study: Path, printed: str | None = None) -> list[str]:
    """Where the tables, or what was printed of them, don't show what the runs' files give."""
    found = []
    tables = {
        name: {r["cell"]: r for r in read(study / "tables" / f"{name}.csv")}
        for name in ("scaling", "accuracy")
    }
    for cell, figures in recompute(study).items():
        row = tables["scaling"][cell]
        columns = {"speedup": "speedup", "low": "speedup_low", "high": "speedup_high"}
        pairs = [(figures[key], row[column], column) for key, column in columns.items()]
        pairs.append((figures["gap"], tables["accuracy"][cell]["parity_gap"], "parity_gap"))
        for mine, theirs, column in pairs:
            same = (mine is None) == (theirs == "") and (mine is None or math.isclose(mine, float(theirs)))
            found += [] if same else [f"{cell}: {column} {theirs or '-'}, and the runs give {mine}"]
        if printed is not None and shown(figures) not in printed:
            found.append(f"{cell}: {shown(figures)} is not printed")
    return found


if __name__ == "__main__":
    wrong = differences(Path(sys.argv[1]), Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else None)
    print("\n".join(wrong) or "every ratio is as its runs' files give it")
    sys.exit(bool(wrong))
