"""Say what stands on a run's page in MLflow: its tags, settings, description and dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config import Config
from src.config.keys import GROUPS, Changes, key_of
from src.config.schema import flatten
from src.data import prepared
from src.data.catalog import fingerprint
from src.measure.environment import git_commit
from src.measure.summary import describe, summarize
from src.tracking.store import ROOT

DESCRIPTION = "mlflow.note.content"
MODULE = "src.train"
# Tag with the command as typed: MLflow shows of a source what follows its last slash.
COMMAND = "command"


def tags(config: Config) -> dict[str, str]:
    """Return the tags of a run to search by, and its description."""
    shown = {
        "strategy": config.strategy["name"],
        "framework": config.framework,
        "model": config.model["name"],
        "dataset": config.dataset["name"],
        "data_source": config.dataset["source"],
        "hardware": config.hardware.name,
        "workers": str(config.workers),
        "out": config.out,
        DESCRIPTION: f"{describe(config)}.",
    }
    if config.tracking["study"]:
        shown |= {"study": config.tracking["study"], "cell": Path(config.out).name}
    return shown


def source_tags() -> dict[str, str]:
    """Return the tags for who runs what: the program, the command as typed, the user, the commit."""
    found = {
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": f"{MODULE.replace('.', '/')}.py",
        COMMAND: command(sys.orig_argv),
    }
    # A user id may have no name in a container.
    with contextlib.suppress(OSError, KeyError):
        found["mlflow.user"] = getpass.getuser()
    if commit := git_commit(ROOT):
        found["mlflow.source.git.commit"] = commit.removesuffix("-dirty")
        if commit.endswith("-dirty"):
            found["mlflow.source.git.dirty"] = "true"
    return found


def command(words: list[str]) -> str:
    """Return the command line `words` of an interpreter as it was typed.

    A process of a launcher plugin of Hydra has another command line, and the command's name alone is left.
    """
    if MODULE not in words:
        return f"python -m {MODULE}"
    return shlex.join(["python", "-m", *words[words.index(MODULE) :]])


def parameters(config: Config) -> dict[str, str]:
    """Return the settings of a run by the key that sets them; those that are left open, as null, are omitted.

    What merely describes a choice, such as the sources of a dataset, is none of them, nor is where a run is.
    """
    every = dataclasses.asdict(config)
    settings = {**{group: every[group]["name"] for group in GROUPS}, **flatten(every)}
    return {
        key: str(value)
        for key, value in settings.items()
        if value not in (None, {}) and not key_of(key).fixed and key_of(key).changes is not Changes.PLACE
    }


def description(config: Config, metrics: Mapping[str, Any]) -> str:
    """Return what a run trained, and what has come of it."""
    result = summarize(metrics).strip() if metrics else "failed: no result"
    return f"{describe(config)}.\n\n{result}"


def dataset_input(dataset: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of MLflow's `Dataset` for a configured dataset, as far as they are known."""
    fields = {
        "name": dataset["name"],
        "digest": fingerprint(dataset),
        "source_type": dataset["source"],
        "source": json.dumps({"sources": dataset["sources"]}, default=str),
    }
    folder = prepared.locate(dataset)
    if folder is None:
        return fields
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    train, test = (
        min(meta[f"{part}_samples"], dataset.get(limit) or meta[f"{part}_samples"])
        for part, limit in (("train", "limit"), ("test", "test_limit"))
    )
    profile = {"train_samples": train, "test_samples": test, "classes": len(meta["names"])}
    schema = {
        "mlflow_tensorspec": {
            part: json.dumps(
                [
                    {"type": "tensor", "tensor-spec": {"dtype": each["dtype"], "shape": [-1, *each["shape"]]}}
                    for each in meta[kind]
                ]
            )
            for part, kind in (("features", "inputs"), ("targets", "targets"))
        }
    }
    return fields | {"profile": json.dumps(profile), "schema": json.dumps(schema)}
