"""Hold several versions of a stage's weights, of which micro-batches under way need older ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from src.compat.torch import unnoticed_updates


class WeightVersions:
    """The versions of parameters, of which one at a time is in the parameters themselves.

    A version is the tensors' memory: no layer sees other parameters than its own, however it got hold of
    them, and a backward pass reads what is in them by then. So each version must be loaded for the forward
    and for the backward passes that belong to it. The newest is copied before an update, if an older pass
    still needs it.

    Attributes:
        newest: the number of the newest version, which updates count up.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Hold the versions of those among `parameters` that are trained."""
        self._parameters = [each for each in parameters if each.requires_grad]
        self._held: dict[int, list[Tensor]] = {}
        self.newest = self._loaded = 0

    @property
    def held(self) -> int:
        """Return how many versions there are."""
        return max(1, len(self._held))

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors of all versions."""
        return [tensor for held in self._held.values() for tensor in held]

    def restart(self) -> None:
        """Keep the newest version alone, load it, and give it the number 0."""
        self.load(self.newest)
        self._held.clear()
        self.newest = self._loaded = 0

    def load(self, version: int) -> None:
        """Have the parameters hold a version."""
        if version == self._loaded:
            return
        for parameter, tensor in zip(self._parameters, self._held[version], strict=True):
            parameter.data = tensor
        self._loaded = version
        # It may have casts of other versions.
        torch.clear_autocast_cache()

    def update(self, step: Callable[[], object], *, oldest: int) -> None:
        """Make the next version, which `step` writes into the parameters, and free those before `oldest`."""
        self.load(self.newest)
        if not self._held:
            self._held[self.newest] = self._tensors()
        if oldest <= self.newest:
            for parameter in self._parameters:
                parameter.data = parameter.data.clone()
        # What passes under way have saved of the parameters is in other memory, or isn't needed any more.
        with unnoticed_updates(self._parameters):
            step()
        self.newest = self._loaded = self.newest + 1
        self._held[self.newest] = self._tensors()
        self._held = {number: held for number, held in self._held.items() if number >= oldest}
        torch.clear_autocast_cache()

    def _tensors(self) -> list[Tensor]:
        return [parameter.data for parameter in self._parameters]
