"""Devices that measure a machine's capacity train at once, and each for itself: by real processes."""

from __future__ import annotations

import csv
import json

from tests.conftest import Commands

STEPS = 20
WORDS = (
    "workers=2", "scaling=weak", "model=cnn", "batch=32", f"dataset.limit={2 * 32 * STEPS}",
    "dataset.test_limit=200", "hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none",
    "out=run",
)  # fmt: skip


def test_each_has_the_whole_batch_and_nothing_is_exchanged(commands: Commands, mnist: None) -> None:
    completed = commands.run("strategy=capacity", *WORDS)
    assert completed.returncode == 0, completed.stderr
    metrics = json.loads((commands.folder / "run" / "metrics.json").read_text())
    assert metrics["payload_bytes"] == 0 and metrics["status"] == "ok" and metrics["workers"] == 2
    with (commands.folder / "run" / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = {rank: [float(row["loss"]) for row in rows if row["rank"] == rank] for rank in ("0", "1")}
    assert all(int(row["samples"]) == 32 for row in rows)
    # Both begin with the same weights, and see other samples; no step brings them together.
    assert len(losses["0"]) == len(losses["1"]) == STEPS
    assert all(abs(one - other) > 1e-6 for one, other in zip(*losses.values(), strict=True))


def test_a_part_of_a_batch_is_no_capacity(commands: Commands) -> None:
    completed = commands.run("strategy=capacity", "scaling=strong")
    assert completed.returncode == 2
    assert completed.stderr.strip() == "error: scaling=strong: strategy=capacity needs scaling=weak"


def test_one_device_trains_as_single_does(commands: Commands, mnist: None) -> None:
    lines = {}
    for strategy in ("single", "capacity"):
        words = [
            word.replace("workers=2", "workers=1").replace("out=run", f"out={strategy}") for word in WORDS
        ]
        completed = commands.run(f"strategy={strategy}", *words)
        assert completed.returncode == 0, completed.stderr
        folder = commands.folder / strategy
        with (folder / "steps.csv").open() as file:
            losses = [row["loss"] for row in csv.DictReader(file)]
        lines[strategy] = losses, json.loads((folder / "metrics.json").read_text())["accuracy"]
    assert lines["single"] == lines["capacity"] and len(lines["single"][0]) == 2 * STEPS
