"""Describe the environment of a run: versions, commit, processors and their SMT siblings, GPUs, load."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from src.config import Config
from src.machine.devices import processor, usable_cores, visible_gpus
from src.measure.software import software_of
from src.run import files
from src.run.tables import write_text

PACKAGES = (
    "torch",
    "torchvision",
    "pytorch-lightning",
    "tensorflow",
    "keras",
    "numpy",
    "mlflow",
    "dvc",
    "hydra-core",
)


def describe(config: Config) -> dict[str, Any]:
    """Return the environment of a run as a JSON-ready mapping, without its probes, which ranks record."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "versions": versions,
        "git_commit": git_commit(),
        "hostname": platform.node(),
        "platform": platform.platform(),
        "processors": {
            "model": processor(),
            "count": os.cpu_count(),
            "usable": usable_cores(),
            "cores_per_device": config.hardware.cores_per_device,
            "siblings": _siblings(),
        },
        "gpus": gpu_names(),
        "driver": driver(),
        "software": software_of(config),
        "load": list(os.getloadavg()),
    }


def complete(out: Path, attempts: list[dict[str, Any]], seconds: Mapping[str, float]) -> None:
    """Add what is known at the end of a run to `environment.json` in its folder `out`, if there is one.

    Args:
        out: the run's directory.
        attempts: what disturbed each attempt at the run, in their order; the last one is the run.
        seconds: what the last parts of the run took.
    """
    path = out / files.ENVIRONMENT
    if path.exists():
        environment = json.loads(path.read_text())
        earlier = environment["seconds"]
        environment["seconds"] |= {part: earlier.get(part, 0.0) + spent for part, spent in seconds.items()}
        environment["attempts"] = attempts
        write_text(path, json.dumps(environment, indent=1))


def git_commit(folder: Path | None = None) -> str | None:
    """Return the commit checked out in `folder`, by default the current one, with `-dirty` after changes.

    It is `None` outside a git checkout.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return described.stdout.strip()
    return None


def _siblings() -> dict[str, str]:
    """Return, for each usable core, the cores (as the kernel writes them) that share its execution units."""
    siblings = {}
    for core in usable_cores():
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        with contextlib.suppress(OSError):
            siblings[str(core)] = path.read_text().strip()
    return siblings


def gpu_names() -> list[str]:
    """Return the names of the GPUs that this process may use; one that NVML can't name is `unknown`."""
    names = []
    for _, uuid in visible_gpus():
        import pynvml

        try:
            names.append(str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(uuid))))
        except pynvml.NVMLError:
            names.append("unknown")
    return names


def driver() -> str | None:
    """Return the version of the NVIDIA driver, `None` without a GPU or where NVML can't tell."""
    if not visible_gpus():
        return None
    import pynvml

    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
