"""Exchange the gradients that `fully_shard` doesn't, and clip by the norm of all shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from src.measure.recorder import Recorder
from src.runtime.torch import mesh, shards


class ShardedGradients:
    """The gradients of a module whose parameters are sharded, but for some that every rank keeps whole."""

    def __init__(
        self, module: nn.Module, kept: Sequence[nn.Parameter], ranks: DeviceMesh, recorder: Recorder
    ) -> None:
        """Look after the gradients of `module`.

        Args:
            module: after `fully_shard`.
            kept: those of its parameters that aren't sharded.
            ranks: the mesh of the run.
            recorder: counts bytes and waits.
        """
        self._module = module
        self._kept = kept
        self._shards, self._copies = mesh.axis(ranks, "shard"), mesh.axis(ranks, "data")
        self._recorder = recorder

    def average_kept(self) -> None:
        """Average what every rank keeps whole; all ranks call this method after a step's backward pass."""
        for parameter in self._kept:
            if (gradient := parameter.grad) is None:
                continue
            for name, axis in (("shard", self._shards), ("data", self._copies)):
                if axis.size > 1:
                    with self._recorder.exchanging("all_reduce", group=name, size=gradient.nbytes):
                        dist.all_reduce(gradient, group=axis.group)
                    gradient /= axis.size
                    self._recorder.hand_over("all_reduce", gradient.nbytes, name)

    def clip(self, limit: float, total: Callable[[Tensor], Tensor] = lambda squares: squares) -> None:
        """Clip by the norm of the whole model's gradient.

        Args:
            limit: the greatest norm.
            total: returns the squared norm [] of the whole model, from that of all shards of this module.
        """
        whole = {id(parameter) for parameter in self._kept}
        shards.clip(
            self._module.parameters(),
            limit,
            lambda squares: total(self.sum_over_shards(squares)),
            lambda parameter: id(parameter) not in whole or self._shards.index == 0,
        )

    def sum_over_shards(self, squares: Tensor) -> Tensor:
        """Return the sum of all shards' `squares` []; all of them call this method at the same step."""
        squares = squares.to(next(self._module.parameters()).device)
        with self._recorder.exchanging():
            dist.all_reduce(squares, group=self._shards.group)
        return squares
