"""Keep the copies of a weight equal that several stages hold, as an embedding that is also the head.

Each stage's backward pass gives a part of the weight's gradient. The stages that hold it sum the parts, and
then all make the same update (Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM, whose first and last stage do so with the embedding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from src.measure.recorder import Recorder
from src.partition.torch.graph import Graph
from src.runtime.torch import shards
from src.runtime.torch.mesh import Axis


class TiedWeights:
    """The weights of this rank's stages that other ranks' stages of the same copy of the model hold, too."""

    def __init__(
        self,
        graph: Graph,
        boundaries: Sequence[int],
        placed: Sequence[int],
        stages: Axis,
        recorder: Recorder,
    ) -> None:
        """Find the weights; all ranks call this, for those that share some make a process group.

        Args:
            graph: the whole model.
            boundaries: the inner ones of its cut.
            placed: the place among `stages` of the rank that holds each stage.
            stages: the ranks that hold the stages, this one among them.
            recorder: counts every byte that is exchanged.
        """
        holders = {
            number: {placed[stage] for stage in own} for number, own in graph.holders(boundaries).items()
        }
        shared = [
            (parameter, tuple(sorted(holders[id(parameter)])))
            for parameter in graph.module.parameters()
            if parameter.requires_grad and len(holders.get(id(parameter), ())) > 1
        ]
        groups: dict[tuple[int, ...], Any] = {}
        apart = dist.get_world_size() // stages.size
        for places in sorted({places for _, places in shared}):
            # Each copy of the model has one of its own, and all ranks make all of them.
            for copy in range(apart):
                ranks = [copy + place * apart for place in places]
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    groups[places] = group
        here = stages.index
        self._recorder = recorder
        self._own = [(parameter, groups[places]) for parameter, places in shared if here in places]
        self._counted_elsewhere = {id(parameter) for parameter, places in shared if here in places[1:]}
        self._have: list[bool] | None = None

    @property
    def here(self) -> bool:
        """Return whether this rank's stage has such weights."""
        return bool(self._own)

    def replace(self, others: Mapping[int, nn.Parameter]) -> None:
        """Learn of parameters that take the places of this stage's, by the `id` of the old ones."""
        self._own = [(others.get(id(each), each), group) for each, group in self._own]
        self._counted_elsewhere = {
            id(others[number]) if number in others else number for number in self._counted_elsewhere
        }

    def counts(self, parameter: Tensor) -> bool:
        """Return whether this rank counts a parameter's gradient in the model's norm, as one holder does."""
        return id(parameter) not in self._counted_elsewhere

    def sum_gradients(self) -> None:
        """Sum the weights' gradients over the stages that hold them, which call this at the same step."""
        if self._have is None:
            self._have = [self._any_has(parameter, group) for parameter, group in self._own]
        for (parameter, group), has in zip(self._own, self._have, strict=True):
            if has:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradient = shards.local(parameter.grad)
                dist.all_reduce(gradient, group=group)
                ranks = dist.get_world_size(group)
                self._recorder.hand_over("all_reduce", gradient.nbytes, "pipeline", ranks=ranks)

    @staticmethod
    def _any_has(parameter: nn.Parameter, group: Any) -> bool:
        """Return whether a stage has a gradient of the parameter, which it then has at every step."""
        found = torch.tensor(float(parameter.grad is not None), device=parameter.device)
        dist.all_reduce(found, group=group)
        return bool(found)
