"""Load weights from a file into every layer that they fit."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from src.config import ConfigError


def load(model: nn.Module, path: Path | None) -> nn.Module:
    """Load a file's state dict into the model, where name and shape agree; return the model.

    Other tensors keep the seed's values, and their names are printed to the rank's log. The file may be a
    run's checkpoint, of which `model` is read. Without a `path` the model stays as it is.

    Raises:
        ConfigError: for a file that holds no state dict, or one that fits nowhere.
    """
    if path is None:
        return model
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigError(f"model.pretrained={path}: is no file of torch weights") from error
    state = content.get("model", content) if isinstance(content, dict) else {}
    own = model.state_dict()
    fitting = {
        name: value
        for name, value in state.items()
        if name in own and getattr(value, "shape", None) == own[name].shape
    }
    if not fitting:
        raise ConfigError(f"model.pretrained={path}: none of its tensors fits the model")
    model.load_state_dict({**own, **fitting})
    seeded = sorted(own.keys() - fitting.keys())
    print(f"{path}: {len(fitting)} tensors loaded; with the seed's values: {', '.join(seeded) or 'none'}")
    return model
