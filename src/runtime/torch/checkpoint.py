"""Write and read checkpoints of every torch strategy, in one format: the whole model's tensors by name.

A checkpoint is a dict that `torch.load(path, weights_only=True)` reads anywhere:

    model       name -> tensor, as the whole model's state dict, contiguous, on the CPU
    optimizer   {"name": ..., "state": {parameter's name: {entry: tensor}}}
    epoch, step optimizer steps done: `epoch` whole epochs and `step` steps of the next one
    seed, global_batch, train_samples     what the order of samples depends on
    worker_steps    steps of each worker, where workers are asynchronous
    sums        what each rank has added up of its samples since the last evaluation [ranks, sums], of others

Ranks that hold parts of the model send their tensors to rank 0, which writes the file. Each rank that resumes
reads the tensors of its own part. (`torch.distributed.checkpoint.state_dict` would want param groups in the
file, and gives a restored optimizer's tensors another memory layout than their parameters have.)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from src.config import Config, ConfigError
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from src.runtime.common.resume import check_checkpoint
from src.runtime.torch import shards

NEEDED = ("model", "optimizer", "epoch", "step", "seed", "global_batch")


class RankState(TypedDict):
    """The tensors of a checkpoint that one rank holds.

    Attributes:
        model: the model's tensors, by name.
        state: the optimizer's entries, by name of the parameter and of the entry.
    """

    model: dict[str, Tensor]
    state: dict[str, dict[str, Any]]


def rank_state(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    prefix: str = "",
    copy: Callable[[Any], Any] | None = None,
) -> RankState:
    """Copy a rank's tensors to the CPU.

    Args:
        module: the rank's model, or its part of the model.
        optimizer: the optimizer of the module's parameters.
        prefix: what the module's names have before the names in the whole model.
        copy: copies a tensor, by default to memory, and returns what is none as it is.
    """
    copy = copy or _copy
    named = {name.removeprefix(prefix): value for name, value in module.named_parameters()}
    return {
        "model": {name.removeprefix(prefix): copy(value) for name, value in module.state_dict().items()},
        "state": {
            name: {entry: copy(value) for entry, value in optimizer.state[parameter].items()}
            for name, parameter in named.items()
            if parameter in optimizer.state
        },
    }


def gathered_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, *, keeps: bool, prefix: str = ""
) -> RankState:
    """Gather a module that ranks hold in shards, one tensor at a time; all of them call this function.

    The copies lie in files that have no names any longer: memory that the kernel can take back.

    Args:
        module: the model, with this rank's shards.
        optimizer: the optimizer of the module's parameters.
        folder: has room for the copies.
        keeps: whether this rank keeps copies; what others return is empty.
        prefix: what the module's names have before the names in the whole model.
    """

    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        gathered = shards.whole(value.detach())
        return _copy_to_file(gathered, folder) if keeps else gathered.new_empty(0)

    return rank_state(module, optimizer, prefix, copy)


def _copy_to_file(tensor: Tensor, folder: Path) -> Tensor:
    if not tensor.numel():
        return _copy(tensor)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        mapped = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return mapped.view(tensor.shape).copy_(tensor)


def tied_names(module: nn.Module) -> list[list[str]]:
    """Return the names that several tensors of a module's state have in common, one list for each tensor."""
    names: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return [tied for tied in names.values() if len(tied) > 1]


def complete(
    parts: Sequence[RankState], tied: Sequence[Sequence[str]], unstaged: Mapping[str, Tensor]
) -> RankState:
    """Join the tensors of the ranks that hold parts of a model, under all of the whole model's names.

    Args:
        parts: the tensors of all these ranks.
        tied: as `tied_names` returns them of the whole model; a part may know a tensor by one of them.
        unstaged: the whole model's tensors that no part has.
    """
    model = {**unstaged, **{name: value for part in parts for name, value in part["model"].items()}}
    state = {name: value for part in parts for name, value in part["state"].items()}
    held = {name for part in parts for name in part["model"]}
    for names in tied:
        if (source := next((name for name in names if name in held), None)) is not None:
            model |= {name: model[source] for name in names}
        if (source := next((name for name in names if name in state), None)) is not None:
            state |= {name: state[source] for name in names}
    return {"model": model, "state": state}


def rank_state_of_vector(module: nn.Module, names: Sequence[str], entries: Mapping[str, Tensor]) -> RankState:
    """Copy a module's tensors, and an optimizer's entries for the vector of its trained parameters.

    Args:
        module: the whole model.
        names: those of the parameters that the vector is made of.
        entries: the optimizer's entries by name, each [elements] or, if it is a counter, [].
    """
    state: dict[str, dict[str, Any]] = {name: {} for name in names}
    start = 0
    for name in names:
        parameter = module.get_parameter(name)
        for entry, values in entries.items():
            part = values[start : start + parameter.numel()].view(parameter.shape) if values.dim() else values
            state[name][entry] = _copy(part)
        start += parameter.numel()
    model = {name: _copy(value) for name, value in module.state_dict().items()}
    return complete([{"model": model, "state": state if entries else {}}], tied_names(module), {})


def write(
    writer: CheckpointWriter,
    context: RankContext,
    parts: Sequence[RankState],
    *,
    epoch: int,
    step: int,
    **further: Any,
) -> None:
    """Join the ranks' tensors into the run's checkpoint, and have it written, whole or not at all.

    A state that has an infinite or NaN element isn't written, so that the last good one stays.

    Args:
        writer: writes the checkpoint beside the training, which must not change the tensors.
        context: the context of the rank that writes.
        parts: the tensors of all ranks that hold parts of the model.
        epoch: how many whole epochs are done.
        step: how many steps of the next epoch are done.
        **further: entries that are written as they are.
    """
    config = context.config
    whole = {
        "model": {name: value for part in parts for name, value in part["model"].items()},
        "optimizer": {
            "name": config.optimizer["name"],
            "state": {name: value for part in parts for name, value in part["state"].items()},
        },
        "epoch": epoch,
        "step": step,
        "seed": config.seed,
        "global_batch": config.global_batch,
        "train_samples": context.arrays.train_samples,
        **further,
    }
    writer.write(
        epoch=epoch,
        step=step,
        broken=lambda: next((name for part in parts for name in _not_finite(part)), None),
        save=lambda path: torch.save(whole, path),
    )


def _not_finite(part: RankState) -> Iterator[str]:
    """Yield the names of a rank's tensors that have an infinite or NaN element."""
    named = [*part["model"].items()]
    named += [
        (f"{entry} of {name}", value) for name, own in part["state"].items() for entry, value in own.items()
    ]
    for name, value in named:
        if not isinstance(value, Tensor):
            continue
        # numpy takes a fifth of torch's time, and has no bfloat16.
        array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        if not np.isfinite(array).all():
            yield name


def read(config: Config, samples: int) -> dict[str, Any]:
    """Read the checkpoint that `config.resume` names, for a run that trains on `samples` samples.

    Raises:
        ConfigError: when the file is no checkpoint, or its run had another order of samples or another
            optimizer.
    """
    no_checkpoint = f"resume={config.resume}: is no checkpoint of a run"
    try:
        checkpoint = torch.load(str(config.resume), map_location="cpu", weights_only=True, mmap=True)
        missing = sorted(set(NEEDED) - checkpoint.keys())
        if missing:
            raise ConfigError(f"{no_checkpoint}; it lacks {', '.join(missing)}")
        optimizer = str(checkpoint["optimizer"]["name"])
        whole = isinstance(checkpoint["model"], dict) and isinstance(checkpoint["optimizer"]["state"], dict)
        numbers = all(isinstance(checkpoint[key], int) for key in ("epoch", "step", "seed", "global_batch"))
        tensors = whole and all(isinstance(value, Tensor) for value in checkpoint["model"].values())
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(no_checkpoint) from error
    if not numbers or not tensors:
        raise ConfigError(no_checkpoint)
    check_checkpoint(config, checkpoint, optimizer, samples)
    return checkpoint


def restore(
    checkpoint: Mapping[str, Any], module: nn.Module, optimizer: torch.optim.Optimizer, prefix: str = ""
) -> None:
    """Restore the weights, buffers and optimizer state of a rank's part of the model.

    Args:
        checkpoint: as `read` returns it.
        module: the rank's model, or its part of the model; changed in place.
        optimizer: the optimizer of the module's parameters; changed in place.
        prefix: what the module's names have before the names in the whole model.

    Raises:
        ConfigError: when the checkpoint is of another model.
    """
    _restore_module(checkpoint, module, prefix)
    states = checkpoint["optimizer"]["state"]
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if (entries := states.get(name.removeprefix(prefix))) is None:
            # It wasn't trained, or the checkpoint knows a tied one by another name.
            continue
        optimizer.state[parameter] = {entry: _lay_out(value, parameter) for entry, value in entries.items()}


def restore_vector(
    checkpoint: Mapping[str, Any], module: nn.Module, names: Sequence[str]
) -> dict[str, Tensor]:
    """Restore weights and buffers; return the optimizer's entries for the vector of trained parameters.

    Args:
        checkpoint: as `read` returns it.
        module: the whole model; changed in place.
        names: those of the parameters that the vector is made of.

    Returns:
        The optimizer's entries by name, each [elements] or, if it is a counter, [].

    Raises:
        ConfigError: when the checkpoint is of another model.
    """
    _restore_module(checkpoint, module, "")
    every = checkpoint["optimizer"]["state"]
    states = [(every.get(name, {}), module.get_parameter(name)) for name in names]
    first: dict[str, Tensor] = next((state for state, _ in states if state), {})
    # What never had a gradient has no entries, which begin with zeros.
    return {
        entry: torch.cat(
            [(state[entry] if state else torch.zeros_like(p)).reshape(-1) for state, p in states]
        )
        if value.dim()
        else value
        for entry, value in first.items()
    }


def check_model(checkpoint: Mapping[str, Any], module: nn.Module, prefix: str = "") -> None:
    """Raise `ConfigError` unless a checkpoint has every tensor of a model, or of a part of it, in its shape.

    `prefix` is what the module's names have before the names in the whole model.
    """
    for name, value in module.state_dict().items():
        other = checkpoint["model"].get(name.removeprefix(prefix))
        if other is None or other.shape != value.shape:
            raise ConfigError(
                f"resume: the checkpoint is of another model; {name.removeprefix(prefix)} differs"
            )


def _restore_module(checkpoint: Mapping[str, Any], module: nn.Module, prefix: str) -> None:
    check_model(checkpoint, module, prefix)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            shards.fill(value, checkpoint["model"][name.removeprefix(prefix)])


def _copy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    # Contiguous, and no view of the tensor, also where that is on the CPU.
    return torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())


def _lay_out(value: Any, parameter: Tensor) -> Any:
    """Copy an optimizer's tensor to its parameter's device and memory layout; return a counter as it is."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    laid_out = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
    shards.fill(laid_out, value)
    return laid_out
