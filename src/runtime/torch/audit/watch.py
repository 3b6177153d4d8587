"""Watch a rank of an audited run: write sketches of its weights, buffers and gradients in each step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from src.compat.torch import BatchNorm
from src.run import files
from src.run.tables import read_mapping, write_text
from src.runtime.common.context import RankContext
from src.runtime.torch.audit import changes
from src.runtime.torch.audit.sketch import sketch

# Kinds of tensors, in the order in which a step has them; the first two are those before the step.
WEIGHTS, BUFFERS, GRADIENTS = KINDS = ("weights", "buffers", "gradients")


class Watch:
    """A watch of one rank's part of the model, which may be all of it.

    It writes `audit-<step>.npz` in the rank's folder, with a sketch of each tensor by its kind and its name
    in the whole model, and `audit.json`: which parameters got no gradient in some step, and which Python
    attributes of modules changed in a step.
    """

    def __init__(
        self, folder: Path, model: nn.Module, prefix: str = "", tied: Sequence[Sequence[str]] = ()
    ) -> None:
        """Watch `model`, whose names have a `prefix` before those in the whole model.

        Args:
            folder: the rank's.
            model: the rank's part of the model.
            prefix: what its names have before those in the whole model.
            tied: names in the whole model of tensors that have several; the first of them is used.
        """
        first = {name: names[0] for names in tied for name in names}
        self._folder = folder
        self._model = model
        whole = {name.removeprefix(prefix): each for name, each in model.named_parameters()}
        self._parameters = {
            first.get(name, name): parameter for name, parameter in whole.items() if parameter.requires_grad
        }
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        unused = _unused_counters(model)
        self._buffers = [name for name, _ in model.named_buffers() if name not in unused]
        self._statistics = {
            f"{path}.{name}".lstrip(".")
            for path, layer in model.named_modules()
            if isinstance(layer, BatchNorm)
            for name, _ in layer.named_buffers(recurse=False)
        }
        self._prefix = prefix
        self._tensors: dict[str, np.ndarray] = {}
        self._attributes: dict[str, Any] = {}
        # Another watch of the same rank may have looked at the steps before.
        known = read_mapping(folder / files.AUDITED)
        nothing: dict[str, list[str]] = {"without_gradient": [], "attributes": [], "moves_buffers": []}
        self._facts = nothing | known

    def begin(self, step: int) -> None:
        """Look at the weights and buffers before a step, from 1."""
        changes.reseed(step)
        self._tensors = {}
        self.look_at_weights()
        self._tensors |= self._look_at_buffers()
        self._attributes = _attributes(self._model)

    def _look_at_buffers(self) -> dict[str, np.ndarray]:
        buffers = dict(self._model.named_buffers())
        seen = {name: sketch(buffers[name]) for name in self._buffers if name in buffers}
        return {f"{BUFFERS}/{name.removeprefix(self._prefix)}": value for name, value in seen.items()}

    def look_at_weights(self) -> None:
        """Look at the weights, which a worker fetches in a step."""
        self._tensors |= {f"{WEIGHTS}/{name}": sketch(each) for name, each in self._parameters.items()}

    def look_at_gradients(self, parameters: Mapping[int, Tensor] | None = None) -> None:
        """Look at the gradients of parameters by their `id`, by default of all; others are left alone."""
        for number, name in self._names.items():
            if parameters is not None and number not in parameters:
                continue
            gradient = self._parameters[name].grad
            if gradient is not None:
                self._tensors[f"{GRADIENTS}/{name}"] = sketch(gradient)
            elif name not in self._facts["without_gradient"]:
                self._facts["without_gradient"].append(name)

    def end(self, step: int) -> None:
        """Write what was seen of a step, from 1."""
        now = _attributes(self._model)
        moved = {name for name, value in self._attributes.items() if now.get(name) != value}
        moved |= now.keys() - self._attributes.keys()
        self._facts["attributes"] = sorted({*self._facts["attributes"], *moved})
        after = self._look_at_buffers()
        changed = {
            key.partition("/")[2] for key, value in after.items() if (self._tensors[key] != value).any()
        }
        own = {name for name in changed if f"{self._prefix}{name}" not in self._statistics}
        self._facts["moves_buffers"] = sorted({*self._facts["moves_buffers"], *own})
        path = self._folder / files.AUDITED_STEP.format(step=step)
        np.savez(path, allow_pickle=False, **self._tensors)
        write_text(self._folder / files.AUDITED, json.dumps(self._facts))


@contextlib.contextmanager
def watched(context: RankContext, model: nn.Module, step: int) -> Iterator[None]:
    """Watch a worker's step, from 0, within the block, in which it fetches weights and computes gradients.

    Without an audit the block is run as it is.
    """
    if context.config.audit is None:
        yield
        return
    watch = Watch(files.rank_folder(context.folder, context.rank), model)
    watch.begin(step + 1)
    with changes.state_kept(context.config, model):
        yield
    watch.look_at_weights()
    watch.look_at_gradients()
    watch.end(step + 1)


def _unused_counters(model: nn.Module) -> set[str]:
    """Return the names of the counters of batches that BatchNorm keeps and, with a momentum, never reads."""
    return {
        f"{name}.num_batches_tracked".lstrip(".")
        for name, layer in model.named_modules()
        if isinstance(layer, BatchNorm) and layer.momentum is not None
    }


def _seen(value: Any) -> Any:
    """Return what a plain value is compared by."""
    if isinstance(value, Tensor):
        return sketch(value).tolist()
    if isinstance(value, list):
        return [_seen(each) if isinstance(each, changes.COPIED) else id(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _seen(each) for key, each in value.items() if isinstance(each, changes.COPIED)}
    return value


def _attributes(model: nn.Module) -> dict[str, Any]:
    """Return plain Python attributes, lists' lengths and tensors that are no buffers, by name."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if changes.is_own(name, value):
                found[f"{path}.{name}".lstrip(".")] = _seen(value)
    return found
