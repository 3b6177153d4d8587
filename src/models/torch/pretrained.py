"""Weights from a file, for every layer that they fit."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from src.config import ConfigError


def load(model: nn.Module, path: Path | None) -> nn.Module:
    """The model with a state dict's tensors where name and shape agree; the rest keeps the seed's weights.

    A checkpoint of a run serves as well (its `model`). What was left out is printed to the rank's log.

    Raises:
        ConfigError: for a file that holds no state dict, or one that fits nowhere.
    """
    if path is None:
        return model
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigError(f"model.pretrained={path}: is no file of torch weights") from error
    state = found.get("model", found) if isinstance(found, dict) else {}
    own = model.state_dict()
    fitting = {
        name: value
        for name, value in state.items()
        if name in own and getattr(value, "shape", None) == own[name].shape
    }
    if not fitting:
        raise ConfigError(f"model.pretrained={path}: none of its tensors fits the model")
    model.load_state_dict({**own, **fitting})
    kept = sorted(own.keys() - fitting.keys())
    print(f"{path}: {len(fitting)} tensors loaded; with the seed's values: {', '.join(kept) or 'none'}")
    return model
