"""Ask a process that may import a user's own Dataset or DataModule what the parent needs to know of it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from src.config import import_paths
from src.config.mistakes import ConfigError, OwnCodeError

# The module reads such data.
MODULE = "src.data.live"
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
LIMIT_SECONDS = 600


def fill(raw: dict[str, Any], overrides: Sequence[str]) -> None:
    """Have a composition say how many samples a user's own data have, and what batch its own loader takes.

    Raises:
        ConfigError: for data that can't be read, without `dataset.module`, and for a `batch` that is typed
            beside a loader's own.
        OwnCodeError: for an error in the user's own code.
    """
    dataset = raw["dataset"]
    if not str(dataset.get("in_memory")).startswith(f"{MODULE}."):
        return
    path = dataset.get("module")
    if not path:
        raise ConfigError(
            f"dataset={dataset['name']}: needs dataset.module=package.module.Class, a "
            + ("LightningDataModule" if dataset["name"] == "lightning" else "torch Dataset")
        )
    if not raw["model"].get("own_training"):
        raise ConfigError(
            f"dataset={dataset['name']}: has items of any form, which a LightningModule takes; choose "
            "model=lightning model.path=package.module.Class"
        )
    import_paths.check("dataset.module", path)
    known = {key: value for key, value in dataset.items() if key not in ("content", "code")}
    answer = _look(json.dumps(known, sort_keys=True))
    if "mistake" in answer:
        raise ConfigError(answer["mistake"])
    if "failure" in answer:
        raise OwnCodeError(f"dataset.module={path}: {answer['failure']}")
    dataset |= {"samples": answer["samples"], "test_samples": answer["test_samples"]}
    if answer["batch"] is None:
        return
    if typed := [word for word in overrides if word.startswith("batch=")]:
        raise ConfigError(
            f"{typed[0]}: {path} has a batch size of its own, {answer['batch']}, which is the global batch; "
            "leave it away"
        )
    raw["batch"] = answer["batch"]


@functools.cache
def _look(dataset: str) -> dict[str, Any]:
    """Return the answer of the process that makes the data, once for each dataset."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths)}
    completed = subprocess.run(
        [sys.executable, "-m", MODULE, dataset],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    lines = completed.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        printed = completed.stderr.strip().splitlines() or ["it printed nothing"]
        return {"failure": f"the process that made it ended: {printed[-1]}"}
