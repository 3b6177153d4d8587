"""Work out the ratios of a study's tables and verdicts again, from the files of the runs that they name.

    python tests/report/recompute.py results/tensorflow [what the stage printed]

Nothing of `src` is used: the formulas stand here a second time, as docs/metrics.md has them.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

from scipy.stats import studentized_range, t

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


def interval(
    own: Rates, base: Rates, alike: list[Rates], among: int = 2
) -> tuple[float | None, float | None]:
    """The interval of a ratio by the residuals of all configurations of one baseline: one of all pairs'."""
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
    errors = t.ppf(0.975, freedom) if among <= 2 else studentized_range.ppf(0.95, among, freedom) / 2**0.5
    half = errors * math.sqrt(2 * sum(x * x for x in left) / freedom / len(blocks))
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
    return found + verdict_differences(study)


def verdict_differences(study: Path) -> list[str]:
    """Where verdict.json hasn't the figures and intervals of the runs, or a sentence says other numbers."""
    listed = {row["cell"]: row for row in read(study / "tables" / "runs.csv")}
    found = []
    for verdict in json.loads((study / "tables" / "verdict.json").read_text()):
        numbers = {"95", "10"}
        for answer in verdict["answers"]:
            known = [of_cells(study, each["cells"], listed) for each in answer["configurations"]]
            more = [of_cells(study, each["cells"], listed) for each in answer["capacities"]]
            every = [each["rates"] for each in (*known, *more) if each["rates"]]
            numbers.add(str(len(every)))
            for mine, theirs in zip(known, answer["configurations"], strict=True):
                base = of_cells(study, theirs["reference"], listed) if theirs["reference"] else None
                numbers |= shown_numbers(mine, theirs["devices"])
                pairs = [(mine["figure"], theirs["figure"])]
                if base is not None and base["rates"] and mine["rates"]:
                    pool = [each["rates"] for each in (*known, *more) if each["rates"] != base["rates"]]
                    among = len(every) + (base["rates"] not in every)
                    bounds = interval(mine["rates"], base["rates"], pool, among)
                    middle = median(base["rates"].values())
                    shared = [b for b in mine["rates"] if b in base["rates"]] or list(mine["rates"])
                    ratio = median([mine["rates"][b] / base["rates"].get(b, middle) for b in shared])
                    pairs += [
                        (ratio, theirs["ratio"]),
                        *zip(bounds, theirs["interval"] or (None, None), strict=True),
                    ]
                    numbers |= {f"{value:.2f}" for value in (ratio, *bounds) if value is not None}
                    numbers.add(f"{ratio / theirs['devices']:.0%}")
                    for each, given in zip(more, answer["capacities"], strict=True):
                        if given["devices"] == theirs["devices"]:
                            most = median(
                                [r / base["rates"].get(b, middle) for b, r in each["rates"].items()]
                            )
                            pair = [
                                r / each["rates"][b] for b, r in mine["rates"].items() if b in each["rates"]
                            ]
                            all_rates = [other["rates"] for other in (*known, *more)]
                            pool = [rates for rates in all_rates if rates != each["rates"]]
                            ends = interval(mine["rates"], each["rates"], pool, len(every))
                            shares = [median(pair), *ends] if pair else []
                            numbers |= {f"{most:.2f}", *(f"{x:.0%}" for x in shares if x is not None)}
                            pairs.append((most, given["speedup"]))
                if answer["chosen"] is not None and theirs["tied"]:
                    best = of_cells(study, answer["chosen"], listed)
                    pool = [each["rates"] for each in (*known, *more) if each["rates"] != best["rates"]]
                    numbers.add(f"{median([r / best['rates'][b] for b, r in mine['rates'].items()]):.2f}")
                    ends = interval(mine["rates"], best["rates"], pool, len(every))
                    numbers |= {f"{x:.2f}" for x in ends if x is not None}
                found += [
                    f"{theirs['cells'][0]}: {theirs['metric']} {a}, and the verdict has {b}"
                    for a, b in pairs
                    if (a is None) != (b is None) or (a is not None and not math.isclose(a, b))
                ]
            numbers |= {str(len(each["cells"])) for each in answer["configurations"]}
        numbers.add(str(sum(len(e["cells"]) for a in verdict["answers"] for e in a["configurations"])))
        for sentence in verdict["sentences"]:
            # A command and the names of cells and strategies have digits that are no figures.
            text = re.sub(r"`[^`]*`|\([a-z][\w.-]*(?:; [\w.-]+)*\)|and \d+ more", "", sentence["text"])
            for number in re.findall(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?%?", text):
                if number.rstrip(",") not in numbers:
                    found.append(
                        f"{verdict['subject']}: no run gives the number {number} of: {sentence['text']}"
                    )
    return found


def of_cells(study: Path, cells: list[str], listed: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The rates by block of some cells, and the medians of what else a verdict says of them."""
    metrics = {cell: json.loads((study / "runs" / cell / "metrics.json").read_text()) for cell in cells}
    rates = {
        (known["seed"], int(float(listed[cell]["repetition"]))): known["samples_per_second"]
        for cell, known in metrics.items()
        if known.get("samples_per_second") is not None
    }

    def middle(key: str) -> float | None:
        values = [known[key] for known in metrics.values() if known.get(key) is not None]
        return median(values) if values else None

    keys = ("memory_peak_bytes", "accuracy", "bubble_fraction", "busy_fraction", "input_wait_fraction")
    figure = median(rates.values()) if rates else None
    return {"rates": rates, "figure": figure, **{key: middle(key) for key in keys}}


def shown_numbers(known: dict[str, Any], devices: int) -> set[str]:
    """The figures of a configuration as a sentence may print them."""
    shown = {str(devices), "1", "2"}
    if (rate := known["figure"]) is not None:
        shown.add(f"{rate:,.0f}" if rate >= 99.95 else f"{rate:.3g}")
    if (memory := known["memory_peak_bytes"]) is not None:
        power = min(int(math.log(max(memory, 1), 1024)), 4)
        scaled = memory / 1024**power
        shown.add(f"{scaled:,.0f}" if scaled >= 99.95 else f"{scaled:.3g}")
    if known["accuracy"] is not None:
        shown.add(f"{known['accuracy']:.2%}")
    return shown | {
        f"{known[key]:.0%}" for key in known if key.endswith("_fraction") and known[key] is not None
    }


if __name__ == "__main__":
    wrong = differences(Path(sys.argv[1]), Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else None)
    print("\n".join(wrong) or "every ratio is as its runs' files give it")
    sys.exit(bool(wrong))
