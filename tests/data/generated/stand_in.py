"""Write stand-ins and read them as a run does, by what a dataset's YAML file says."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import yaml

from src.data.samples import Splits
from tests.data.readers.unpacked import unpack
from tests.support import ROOT

NAMES = ("cifar10", "imagenet64", "flowers", "vnfoods30")


def choice(name: str) -> dict[str, Any]:
    """Read conf/dataset/NAME.yaml."""
    return yaml.safe_load((ROOT / "conf" / "dataset" / f"{name}.yaml").read_text(encoding="utf-8"))


def write(dataset: dict[str, Any], target: Path, **changes: Any) -> None:
    """Write the dataset's archives to `target` by its generator."""
    target.mkdir()
    settings = {"fraction": dataset["fraction"], "seed": dataset["generator_seed"], **changes}
    pkgutil.resolve_name(dataset["generator"])(target, **settings, options=dataset["options"])


def read(dataset: dict[str, Any], archives: Path, raw: Path, size: int | None) -> Splits:
    """Unpack the archives and read them by the dataset's reader."""
    options = {**dataset["options"], "size": size, "source": "generated"}
    return pkgutil.resolve_name(dataset["reader"])(unpack(archives, raw), options)
