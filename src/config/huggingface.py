"""Check what a user names of Hugging Face's transformers, without importing it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config.mistakes import ConfigError
from src.config.run_config import Config

INSTALL = "pip install -c constraints.txt -e '.[huggingface]'"
CONFIG = "config.json"
# A name at a hub: an owner's, or none, and a model's.
HUB_NAME = r"(\w[\w.-]*/)?\w[\w.-]*"


def architecture_of(architecture: str | None, config: str | None, pretrained: str | None) -> str | None:
    """Return the name of a model: its architecture, or what its configuration is called."""
    if architecture is not None:
        return str(architecture)
    for named in (config, pretrained):
        if named is not None:
            known = _architecture_in(str(named))
            return known or re.sub(r"[^\w.+-]", "-", Path(str(named)).name) or None
    return None


def _architecture_in(named: str) -> str | None:
    """Return the architecture that a configuration on this machine names, `None` where that can't be told."""
    try:
        known = json.loads(file_of(named).read_text(encoding="utf-8"))["architectures"][0]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    return known if isinstance(known, str) and known.isidentifier() else None


def file_of(named: str) -> Path:
    """Return the file of a configuration that is named by itself or by its folder."""
    path = Path(named).expanduser()
    return path / CONFIG if path.is_dir() else path


def is_at_hub(named: str) -> bool:
    """Return whether a model or configuration is named as at a hub, and is nothing on this machine."""
    path = Path(named).expanduser()
    return not path.exists() and path.suffix != ".json" and re.fullmatch(HUB_NAME, named) is not None


def check(config: Config) -> None:
    """Raise `ConfigError` where a model of transformers isn't named, or can't be had."""
    model = config.model
    if (package := model.get("package")) is None:
        return
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"model={model['name']}: needs {package}, which isn't installed: {INSTALL}")
    for key in ("config", "pretrained"):
        if (named := model.get(key)) is not None and not is_at_hub(named):
            _check_file(f"model.{key}={named}", named, folder=key == "pretrained")


def check_named(model: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where nothing says what model it is to be."""
    if model.get("package") is not None and model["name"] is None:
        raise ConfigError(
            "model=huggingface: needs model.architecture=NAME, as GPT2LMHeadModel, model.config=config.json, "
            "or model.pretrained=FOLDER"
        )


def _check_file(word: str, named: str, *, folder: bool) -> None:
    """Raise `ConfigError` unless a path leads to a configuration, or to the `folder` of one."""
    path = Path(named).expanduser()
    if not path.exists():
        raise ConfigError(f"{word}: no such {'folder' if folder else 'file'}, and no name at a hub")
    if folder and not path.is_dir():
        raise ConfigError(f"{word}: is no folder; name the one with {CONFIG} and the weights")
    try:
        content = json.loads(file_of(named).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{word}: {file_of(named).name} can't be read: {reason}") from error
    except ValueError as error:
        raise ConfigError(f"{word}: is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{word}: must be a mapping, as a configuration of transformers is")
