"""Train EAST for some minutes, and hold the words that it finds against those that thresholds find.

    python -m bench.text_detection

It trains on generated scenes of ICDAR 2015, all of them, on two cores; the thresholds' parameters are
searched for on training scenes (`bench.text_baseline`). All are scored on the same test scenes, by the
protocol of ICDAR 2015.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import Any

from bench import runs, text_baseline
from src.config import command_line, compose
from src.machine.devices import usable_cores
from src.run import files

MINUTES = 15
OUT = runs.OUT / "text_detection"
GOAL, BOUND = 0.80, 0.30
OTSU = "Otsu's"
DATA = ("dataset=icdar2015", "dataset.source=generated", "dataset.fraction=1.0", "model=east")
TRAINING = (
    "model.width=16", "batch=16", "epochs=14", "evaluate_every=434", "hardware.cores_per_device=2",
    "optimizer.name=adam", "optimizer.lr=0.003", "optimizer.schedule=cosine",
)  # fmt: skip


def main() -> int:
    """Train, search, print the table, which bench/out/ keeps; return 0 if both goals are met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.text_detection", description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="random points of the grid, per threshold")
    parser.add_argument("--scenes", type=int, default=100, help="training scenes to search on")
    arguments = parser.parse_args()
    if len(usable_cores()) < 2:
        parser.error("two cores are needed")
    metrics = runs.train(*DATA, *TRAINING, out=OUT, minutes=MINUTES)
    (config,) = compose.cells(command_line.parse(list(DATA)))
    measured = text_baseline.measure(config, arguments.scenes, arguments.draws)
    otsu = text_baseline.f_measure(measured[OTSU].test)
    score = float(metrics["score"])
    verdicts = [
        f"EAST finds {score:.3f}, at least {GOAL:.2f} wanted: {'yes' if score >= GOAL else 'no'}",
        f"Otsu's threshold finds {otsu:.3f}, below {BOUND:.2f} wanted: {'yes' if otsu < BOUND else 'no'}",
    ]
    text = "\n\n".join([text_baseline.table(measured, [_row(metrics)]), *verdicts])
    print(text)
    (runs.OUT / "text_detection.md").write_text(text + "\n")
    return 0 if score >= GOAL and otsu < BOUND else 1


def _row(metrics: dict[str, Any]) -> str:
    """Return EAST's row of the table."""
    with (OUT / files.EPOCHS).open(newline="") as file:
        *_, last = csv.DictReader(file)
    found = json.loads(last["metrics"])
    minutes = metrics["train_seconds"] / 60
    figures = " | ".join(f"{found[name]:.3f}" for name in ("f_measure", "precision", "recall"))
    return f"| EAST, trained {minutes:.1f} minutes | | {figures} |"


if __name__ == "__main__":
    sys.exit(main())
