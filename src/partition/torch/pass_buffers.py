"""Keep a module's buffers as a forward pass found them, for the same pass to be computed again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set

import torch
from torch import Tensor, nn

from src.compat.torch import FakeTensor, version
from src.config import ConfigError


class PassBuffers:
    """The buffers that one forward pass moves, as they were before it.

    Attributes:
        moved: their names in the module, and of those that earlier passes have moved, once the pass is done.
    """

    def __init__(self, module: nn.Module, known: Set[str] | None) -> None:
        """Look after the buffers of `module`.

        Args:
            module: what runs the pass, or has the modules that do.
            known: names of the buffers that earlier such passes have moved; `None` before the first one.
        """
        self._holders = {
            f"{path}.{name}": (layer, name)
            for path, layer in module.named_modules()
            for name, _ in layer.named_buffers(recurse=False, remove_duplicate=False)
        }
        self.moved = known
        self._values: dict[str, Tensor] = {}

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep copies of what the pass within the block moves.

        Raises:
            ConfigError: where it moves a buffer that no earlier one did, of which there is no copy.
        """
        before = self._now()
        versions = {name: version(buffer) for name, buffer in before.items()}
        values = _copies({name: each for name, each in before.items() if self._moves(name)})
        yield
        now = self._now()
        moved = {
            name
            for name, buffer in before.items()
            if now.get(name) is not buffer
            or version(buffer) != versions[name]
            or (name in values and _differ(buffer, values[name]))
        }
        if missing := sorted(moved - values.keys()):
            raise ConfigError(
                f"strategy.recompute: the buffer {missing[0].removeprefix('.')} changes in some forward "
                "passes and not in the first, and can't be computed again; choose strategy.recompute=none"
            )
        # Data may decide that one of them stays this time.
        self.moved = moved | (self.moved or set())
        self._values = {name: values[name] for name in self.moved}

    @contextlib.contextmanager
    def as_before(self) -> Iterator[None]:
        """Have the pass, computed again within the block, find what it found, and move copies of that."""
        now = self._now()
        for name, value in _copies(now | self._values).items():
            self._put(name, value)
        try:
            yield
        finally:
            for name, buffer in now.items():
                self._put(name, buffer)

    def _moves(self, name: str) -> bool:
        return self.moved is None or name in self.moved

    def _now(self) -> dict[str, Tensor]:
        """Return the buffers by name, as they are now."""
        found = {name: getattr(layer, own, None) for name, (layer, own) in self._holders.items()}
        return {name: buffer for name, buffer in found.items() if isinstance(buffer, Tensor)}

    def _put(self, name: str, buffer: Tensor) -> None:
        layer, own = self._holders[name]
        setattr(layer, own, buffer)


def _differ(buffer: Tensor, earlier: Tensor) -> bool:
    """Return whether a buffer differs from its copy; a BatchNorm's statistics move by no known write."""
    return type(buffer) is not FakeTensor and not torch.equal(buffer, earlier)


def _copies(buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of buffers; one that has several names is copied once."""
    made: dict[int, Tensor] = {}
    for buffer in buffers.values():
        if id(buffer) not in made:
            made[id(buffer)] = buffer.clone()
    return {name: made[id(buffer)] for name, buffer in buffers.items()}
