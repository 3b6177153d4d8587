"""Model split and pipeline as users run them: what they leave, that stages overlap, and what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.machine.devices import usable_cores
from src.measure import timeline
from src.measure.metrics import KEYS
from tests.support import STEPS

COMMON = ("tracking.backend=none", "out=run", "hardware.device=cpu", "hardware.share_devices=true")
STAGES = ("strategy=pipeline", "workers=2")
RESNET = ("model=resnet18", "batch=16", "dataset.limit=160", "dataset.test_limit=1000")


def intervals(folder: Path) -> dict[int, list[tuple[Any, ...]]]:
    """Rows of each stage, as the timeline's functions take them."""
    by_stage: dict[int, list[tuple[Any, ...]]] = {}
    for event in json.loads((folder / "timeline.json").read_text())["traceEvents"]:
        if event["ph"] == "X":
            where = event["args"]
            row = (where["step"], event["cat"], where["microbatch"], event["ts"], event["ts"] + event["dur"])
            by_stage.setdefault(event["pid"], []).append(row)
    return by_stage


def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "steps.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("strategy", ["pipeline", "model_split"])
def test_what_a_cut_run_leaves(runs: Callable[[str], Path], strategy: str) -> None:
    folder = runs(strategy)
    metrics_of_run = metrics(folder)
    assert tuple(metrics_of_run) == KEYS
    filled = (
        "samples_per_second",
        "bubble_fraction",
        "busy_fraction",
        "payload_bytes",
        "accuracy",
        "parameters",
    )
    assert all(
        metrics_of_run[key]
        for key in (*filled, "flops_per_sample", "memory_peak_bytes", "saved_tensors_bytes")
    )
    # Every stage sees every sample: the job's rate is not their sum.
    assert metrics_of_run["samples_per_second"] == pytest.approx(
        metrics_of_run["batch"] / metrics_of_run["step_seconds_median"], rel=0.4
    )
    steps = rows(folder)
    for rank in ("0", "1"):
        rows_of_rank = [row for row in steps if row["rank"] == rank]
        assert [int(row["step"]) for row in rows_of_rank] == list(range(1, STEPS + 1))
        assert {int(row["samples"]) for row in rows_of_rank} == {metrics_of_run["batch"]}
    assert [r["loss"] for r in steps if r["rank"] == "0"] == [r["loss"] for r in steps if r["rank"] == "1"]
    cut = json.loads((folder / "partition.json").read_text())
    assert sum(stage["parameters"] for stage in cut["stages"]) == metrics_of_run["parameters"]
    assert [stage["stop"] for stage in cut["stages"]] == [*cut["boundaries"], cut["operations"]]
    assert all(stage["seconds"] > 0 and stage["memory_bytes"] > 0 for stage in cut["stages"])
    # A tensor forward and its gradient back, each step and micro-batch; the wire carries nothing else.
    crossing = cut["stages"][0]["sent_bytes"]
    assert metrics_of_run["payload_bytes"] == 2 * crossing * metrics_of_run["microbatches"] * STEPS
    # The cut is shown to the person who waits.
    assert (
        f"cut of {cut['operations']} operations by {cut['method']}" in (folder.parent / "stderr").read_text()
    )


def overlap_fraction(by_stage: dict[int, list[tuple[Any, ...]]]) -> float:
    """The share of steps in which stage 1 runs forward while stage 0 does so with the next micro-batch."""
    updated = [{row[0] for row in by_stage[stage] if row[1] == "optimizer"} for stage in (0, 1)]
    overlaps = []
    for step in updated[0] & updated[1]:
        first, second = (
            {r[2]: (r[3], r[4]) for r in by_stage[stage] if r[0] == step and r[1] == "forward"}
            for stage in (0, 1)
        )
        pairs = [(second[k], first[k + 1]) for k in second if k + 1 in first]
        overlaps.append(any(max(a[0], b[0]) < min(a[1], b[1]) for a, b in pairs))
    return sum(overlaps) / len(overlaps)


@pytest.mark.slow
def test_stages_of_a_pipeline_overlap(commands, mnist: None) -> None:
    if len(usable_cores()) < 2:
        pytest.skip("two stages on one core take turns")
    words = ("model=resnet18", "batch=32", "microbatches=4", f"dataset.limit={32 * STEPS}", *COMMON[:-1])
    assert commands.run(*STAGES, *words, "dataset.test_limit=1000").returncode == 0, commands.output()
    folder = commands.folder / "run"
    by_stage = intervals(folder)
    assert overlap_fraction(by_stage) >= 0.8
    assert timeline.bubble_fraction(by_stage) == pytest.approx(metrics(folder)["bubble_fraction"])
    assert {row[1] for row in by_stage[1]} >= {"forward", "backward", "optimizer", "wait", "send"}


def test_stages_of_a_model_split_take_turns(runs: Callable[[str], Path]) -> None:
    by_stage = intervals(runs("model_split"))
    busy = [[(r[3], r[4]) for r in by_stage[s] if r[1] in ("forward", "backward")] for s in (0, 1)]
    assert not any(max(a[0], b[0]) < min(a[1], b[1]) for a in busy[0] for b in busy[1])
    assert metrics(runs("model_split"))["bubble_fraction"] > 0.3


@pytest.mark.slow
def test_every_way_to_cut(commands, mnist: None) -> None:
    ways = "size,[140,230],[layer3.1.conv2]"
    completed = commands.run(
        *(*STAGES, *RESNET, *COMMON[2:], "tracking.backend=none"), f"strategy.partition={ways}", "-m"
    )
    assert completed.returncode == 0, completed.stderr
    cuts = {}
    for path in (commands.folder / "runs").rglob("partition.json"):
        cut = json.loads(path.read_text())
        assert metrics(path.parent)["status"] == "ok"
        asked = yaml.safe_load((path.parent / "config.yaml").read_text())["strategy"]["partition"]
        cuts[str(asked)] = cut
    # 69 operations: 69 x 140 / 370 = 26.1; a name says where the second stage begins.
    assert cuts["[140, 230]"]["boundaries"] == [26]
    assert cuts["['layer3.1.conv2']"]["stages"][1]["first"] == "layer3.1.conv2"
    weights = {name: max(stage["parameters"] for stage in cut["stages"]) for name, cut in cuts.items()}
    assert len(weights) == 3 and weights["size"] == min(weights.values())
    assert commands.left() == []


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (
            ["model=resnet18", "strategy.partition=[layer3.convv]"],
            ["layer3.convv", "did you mean layer3.1?"],
        ),
        (["model=mlp", "workers=6", "batch=24"], ["workers=6", "at most 5", "choose workers="]),
        (["model=resnet18", "strategy.memory_gib=0.01"], ["memory_gib=0.01", "even at the best cut"]),
        (["model=resnet18", "batch=4", "microbatches=4"], ["microbatches=4", "BatchNorm", "microbatches=2"]),
        (
            ["model=custom", "model.path=tests.partition.models.Branching"],
            ["can't be cut", "models.py:", "the data decide there which operations run", "ddp"],
        ),
    ],
    ids=["name", "stages", "memory", "one sample", "untraceable"],
)
def test_what_only_the_model_can_tell_is_refused_in_a_line(
    commands, mnist: None, words: list[str], fragments: list[str]
) -> None:
    completed = commands.run(*STAGES, *RESNET[1:], *COMMON, *words)
    assert completed.returncode == 2, completed.stderr
    (line,) = [line for line in completed.stderr.splitlines() if line.startswith("error")]
    assert all(fragment in line for fragment in fragments), line
    assert "Traceback" not in completed.stderr
    assert list(commands.folder.iterdir()) == []
    assert commands.left() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("strategy=pipeline", "strategy.schedule=1f1b"),
        # It is emptied after each step, and so has no older weights.
        ("strategy=pipedream", "evaluate_every=1"),
    ],
    ids=lambda words: words[0],
)
def test_odd_parts_of_a_model_are_trained_as_on_one_device(
    words: tuple[str, ...], commands: Any, mnist: None
) -> None:
    model = ("model=custom", "model.path=tests.plugin.model.odd_parts.build", "optimizer.weight_decay=0.1")
    size = ("batch=64", "microbatches=4", "dataset.limit=640", "dataset.test_limit=64", "precision=bf16")
    losses = []
    for chosen in (("strategy=single",), (*words, "strategy.recompute=full", "strategy.partition=layers")):
        ended = commands.run(*COMMON, *model, *size, *chosen, "overwrite=true")
        assert ended.returncode == 0, ended.stderr
        losses.append({row["step"]: row["loss"] for row in rows(commands.folder / "run")})
    assert losses[0] == losses[1]
