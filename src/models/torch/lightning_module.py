"""Build a LightningModule by its import path, to be trained as its author wrote it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch.nn.parameter import is_lazy

from src.config import ConfigError, import_paths
from src.models import adapt


def build(
    *, classes: int, shape: tuple[int, ...], path: str, options: Mapping[str, Any]
) -> pl.LightningModule:
    """Build a LightningModule by the class at the import path `path`, which is called with `options`.

    It is also given those of `classes`, `num_classes` and `shape` that it takes and `options` don't hold.
    What it builds in `configure_model` is built here, with the seed's weights.

    Raises:
        ConfigError: when `path` doesn't name what builds a LightningModule, or one that asks for what a run
            doesn't do.
    """
    known: dict[str, Any] = {"classes": classes, "num_classes": classes, "shape": shape} if classes else {}
    factory = import_paths.resolve("model.path", path)
    made = factory.__init__ if inspect.isclass(factory) else factory
    # LightningModule's own constructor takes any arguments, and refuses them.
    if callable(made) and "num_classes" not in inspect.signature(made).parameters:
        known.pop("num_classes", None)
    model = adapt.call(path, known, options)
    if not isinstance(model, pl.LightningModule):
        if isinstance(model, torch.nn.Module):
            raise ConfigError(
                f"model.path={path}: is a torch module and no LightningModule; choose model=custom for it"
            )
        adapt.check_kind(path, model, pl.LightningModule)
    if not is_overridden("training_step", model):
        raise ConfigError(
            f"model.path={path}: has no training_step; write one, or choose model=custom, which trains its "
            "forward by the task's loss"
        )
    if "dataloader_iter" in inspect.signature(model.training_step).parameters:
        raise ConfigError(
            f"model.path={path}: its training_step takes a dataloader_iter, and batches are given here; let "
            "it take (batch, batch_idx)"
        )
    if callbacks := model.configure_callbacks():
        each = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        raise ConfigError(
            f"model.path={path}: its configure_callbacks returns {type(each[0]).__name__}, and a run has no "
            "callbacks of the user's; leave them away"
        )
    # Lightning calls it once more, by which it changes nothing.
    model.configure_model()
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ConfigError(
            f"model.path={path}: has lazy layers, whose weights its optimizer can't have yet; give the "
            "layers their sizes"
        )
    return model
