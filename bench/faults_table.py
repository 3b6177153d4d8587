"""Print what `python -m bench.faults` has found as a table for the docs: `python -m bench.faults_table`."""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Sequence

from bench.broken_run import PARENT_KILLED, STRATEGIES
from bench.faults import FAULTS, TABLE

Row = dict[str, str]


def outcome(row: Row) -> str:
    """Say in a word or two how a run ended."""
    if row["fault"] == PARENT_KILLED:
        return "not all gone" if row["left"] else "all gone"
    if row["status"] != "ok":
        return "ended" if row["status"] == "failed" else row["status"]
    return "started again" if int(row["restarts"]) else "went on"


def cell(rows: Sequence[Row]) -> str:
    """Say how the repetitions of a cell ended, within which seconds that was noticed, and what was amiss."""
    if not rows:
        return ""
    # In the order in which they came first.
    text = " or ".join(dict.fromkeys(map(outcome, rows)))
    if noticed := [float(row["noticed_seconds"]) for row in rows if row["noticed_seconds"]]:
        text += f", {max(noticed):.1f} s"
    amiss = [f"lost {row['lost']}" for row in rows if row["lost"] != "0"]
    amiss += [f"left {row['left']}" for row in rows if row["left"]]
    return "; ".join([text, *amiss])


def main() -> int:
    """Print a row a fault, and a column a strategy."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["strategy"], row["fault"]].append(row)
    print(f"| fault | {' | '.join(f'`{strategy}`' for strategy in STRATEGIES)} |")
    print("| --- |" + " --- |" * len(STRATEGIES))
    for fault in FAULTS:
        print(f"| {fault} | {' | '.join(cell(found[strategy, fault]) for strategy in STRATEGIES)} |")
    counts = sorted({len(rows) for rows in found.values() if rows})
    print(f"\n{sum(map(len, found.values()))} runs, {' or '.join(map(str, counts))} a cell")
    return 0


if __name__ == "__main__":
    sys.exit(main())
