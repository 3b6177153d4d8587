"""Runs that stop at their target within an epoch, with a checkpoint of that step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import STEPS

WORDS = (
    "model=mlp", "dataset=mnist", "batch=64", f"dataset.limit={64 * STEPS}", "dataset.test_limit=1000",
    "optimizer.lr=0.01", "epochs=2", "evaluate_every=12", "target_accuracy=0.3", "stop_at_target=true",
    "checkpoint_every=50", "hardware.share_devices=true", "tracking.backend=none", "out=run",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("strategy=ddp",),
        ("strategy=pipedream", "microbatches=2"),
        ("strategy=tf_custom",),
        ("strategy=tf_multiworker",),
        ("strategy=parameter_server", "strategy.mode=async"),
    ],
    ids=lambda words: words[0].partition("=")[2],
)
def test_a_run_stops_within_an_epoch(words: tuple[str, ...], mnist: None, commands: Any) -> None:
    ended = commands.run(*words, *WORDS)
    assert ended.returncode == 0, ended.stderr
    metrics = json.loads((commands.folder / "run/metrics.json").read_text())
    assert metrics["status"] == "ok" and metrics["accuracy"] >= 0.3
    # An evaluation came every twelfth step; it didn't go on to the epoch's sixtieth.
    assert metrics["steps_to_target"] % 12 == 0 and metrics["steps_to_target"] < STEPS
    assert metrics["epochs"] == pytest.approx(metrics["steps_to_target"] / STEPS, abs=1e-3)
    assert (commands.folder / "run/checkpoint.pt").exists() or list(
        (commands.folder / "run").glob("checkpoint*")
    )


def test_ranks_with_models_of_their_own_have_no_target_to_stop_at(mnist: None, commands: Any) -> None:
    words = ("strategy=tf_mpi", "strategy.sync=none", "target_accuracy=0.3", "stop_at_target=true")
    refused = commands.run(*words)
    assert refused.returncode == 2 and "stop_at_target" in refused.stderr
    refused = commands.run("stop_at_target=true")
    assert refused.returncode == 2
    assert refused.stderr == "error: stop_at_target=true: there is no target_accuracy to stop at\n"
