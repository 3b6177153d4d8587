"""One checkpoint format for every torch strategy: the whole model's tensors by name, on one device.

A checkpoint is a dict that `torch.load(path, weights_only=True)` reads anywhere:

    model       name -> tensor, as the whole model's state dict, contiguous, on the CPU
    optimizer   {"name": ..., "state": {parameter's name: {entry: tensor}}}
    epoch, step optimizer steps done: `epoch` whole epochs and `step` steps of the next one
    seed, global_batch, train_samples     what the order of samples depends on

Ranks that hold parts of the model give their tensors to rank 0, which writes; each rank that resumes
takes from the file what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from src import rundir
from src.config import Config, ConfigError
from src.runtime import resume

FILE = "checkpoint.pt"


def collect(module: nn.Module, optimizer: torch.optim.Optimizer, prefix: str = "") -> dict[str, Any]:
    """This rank's share of a checkpoint; `prefix` is what its names have before the whole model's."""
    named = {name.removeprefix(prefix): value for name, value in module.named_parameters()}
    return {
        "model": {name.removeprefix(prefix): _plain(value) for name, value in module.state_dict().items()},
        "state": {
            name: {entry: _plain(value) for entry, value in optimizer.state[parameter].items()}
            for name, parameter in named.items()
            if parameter in optimizer.state
        },
    }


def collect_flat(module: nn.Module, entries: Mapping[str, Tensor]) -> dict[str, Any]:
    """A whole checkpoint's share of a module and an optimizer's entries for the vector of its parameters,
    each [elements] or, a counter, []."""
    state: dict[str, dict[str, Any]] = {name: {} for name, _ in module.named_parameters()}
    start = 0
    for name, parameter in module.named_parameters():
        for entry, values in entries.items():
            own = values[start : start + parameter.numel()].view(parameter.shape) if values.dim() else values
            state[name][entry] = _plain(own)
        start += parameter.numel()
    model = {name: _plain(value) for name, value in module.state_dict().items()}
    return {"model": model, "state": state if entries else {}}


def restore_flat(found: Mapping[str, Any], module: nn.Module) -> dict[str, Tensor]:
    """Puts weights and buffers back; the optimizer's entries for the vector of the module's parameters.

    Raises:
        ConfigError: when the checkpoint is of another model.
    """
    _restore_module(found, module, "")
    parameters = list(module.named_parameters())
    kept = [found["optimizer"]["state"].get(name, {}) for name, _ in parameters]
    return {
        entry: torch.cat([own[entry].reshape(-1) for own in kept]) if kept[0][entry].dim() else kept[0][entry]
        for entry in (kept[0] if all(kept) else ())
    }


def write(
    path: Path,
    shares: list[Mapping[str, Any]],
    config: Config,
    samples: int,
    *,
    epoch: int,
    step: int,
    **further: Any,
) -> None:
    """Joins the ranks' shares into one file, written whole or not at all; `samples` are trained on."""
    whole = {
        "model": {name: value for share in shares for name, value in share["model"].items()},
        "optimizer": {
            "name": config.optimizer["name"],
            "state": {name: value for share in shares for name, value in share["state"].items()},
        },
        "epoch": epoch,
        "step": step,
        "seed": config.seed,
        "global_batch": config.global_batch,
        "train_samples": samples,
        **further,
    }
    with rundir.whole(path) as temporary:
        torch.save(whole, temporary)


def read(config: Config, samples: int) -> dict[str, Any]:
    """The checkpoint of `config.resume`.

    Raises:
        ConfigError: for a file that is none, or one whose order of samples isn't this run's.
    """
    try:
        found = torch.load(str(config.resume), map_location="cpu", weights_only=True, mmap=True)
        missing = {"model", "optimizer", "epoch", "step", "seed", "global_batch"} - found.keys()
    except Exception as error:
        raise ConfigError(f"resume={config.resume}: is no checkpoint of a run") from error
    if missing:
        raise ConfigError(f"resume={config.resume}: is no checkpoint of a run; it lacks {', '.join(missing)}")
    resume.check(config, found, found["optimizer"]["name"], samples)
    return found


def restore(
    found: Mapping[str, Any], module: nn.Module, optimizer: torch.optim.Optimizer, prefix: str = ""
) -> None:
    """Puts what this rank holds back: weights, buffers, optimizer state.

    Raises:
        ConfigError: when the checkpoint is of another model.
    """
    _restore_module(found, module, prefix)
    for name, parameter in module.named_parameters():
        kept = found["optimizer"]["state"].get(name.removeprefix(prefix), {})
        optimizer.state[parameter] = {entry: _like(value, parameter) for entry, value in kept.items()}


def _restore_module(found: Mapping[str, Any], module: nn.Module, prefix: str) -> None:
    own = module.state_dict()
    for name, value in own.items():
        other = found["model"].get(name.removeprefix(prefix))
        if other is None or other.shape != value.shape:
            raise ConfigError(
                f"resume: the checkpoint is of another model; {name.removeprefix(prefix)} differs"
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(found["model"][name.removeprefix(prefix)])


def _plain(value: Any) -> Any:
    return value.detach().cpu().contiguous().clone() if isinstance(value, Tensor) else value


def _like(value: Any, parameter: Tensor) -> Any:
    """An optimizer's tensor in its parameter's place and memory layout; a counter as it is."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
