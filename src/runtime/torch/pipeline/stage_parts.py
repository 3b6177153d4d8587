"""Hold the parts that this rank has of a stage's split layers: tensor parallelism within a pipeline.

The whole model is split first, by module, and what is traced and cut is the rank's own: a graph has the
number of heads in it. The ranks of one stage run the same schedule, and so exchange in the same order.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.distributed.device_mesh import DeviceMesh

from src.measure.recorder import Recorder
from src.partition.torch.graph import Graph
from src.partition.torch.stage import Stage
from src.runtime.common.context import RankContext
from src.runtime.torch import mesh as axes
from src.runtime.torch import shards
from src.runtime.torch.pipeline.tied_weights import TiedWeights
from src.runtime.torch.tensor import division, tracing


class StageParts:
    """The split layers of a stage, which exchange nothing until it settles.

    Where no other rank shares them, nothing changes.

    Attributes:
        shared: whether other ranks have further parts of the stage.
        first: whether this rank speaks for all that compute the same.
        shown: how layers are split, as text; empty where they aren't.
    """

    def __init__(
        self,
        context: RankContext,
        model: nn.Module,
        mesh: DeviceMesh | None,
        recorder: Recorder,
        device: torch.device,
    ) -> None:
        """Split the whole `model` in place, if the mesh of the run has parts of it; all ranks do so.

        Raises:
            ConfigError: where there is no plan of the model, or the split model computes something else.
        """
        self.shared = context.config.degrees.tensor > 1
        self.first, self.shown = True, ""
        if not self.shared:
            return
        assert mesh is not None
        self._axis, self._recorder = axes.axis(mesh, division.AXIS), recorder
        self.first = self._axis.index == 0
        self._group, _, self.shown = division.divide(context, model, mesh, recorder, device, traced=True)
        self._split = tracing.take_out(model)
        # One rank measures what operations cost.
        self._group.alone = True

    def check(self, graph: Graph) -> None:
        """Raise `ConfigError` for a graph that has layers as they are, whose draws no cut respects."""
        if self.shared:
            tracing.check_traced(graph.module)

    def settle(self, stage: Stage, tied: TiedWeights) -> None:
        """Have a stage exchange, and hold its parameters as parts of whole ones, which `tied` learns of."""
        if self.shared:
            self._group.alone = False
            assert isinstance(stage.part, fx.GraphModule)
            tracing.put_back(stage.part, self._split)
            tied.replace(self._split)

    def counts(self, parameter: Tensor) -> bool:
        """Return whether this rank counts a parameter's gradient in the model's norm, as all do its parts."""
        return self.first or shards.is_split(parameter)

    def sum(self, squares: Tensor) -> Tensor:
        """Return the sum of all parts' `squares` []; all of their ranks call this method at the same step."""
        if self.shared:
            with self._recorder.exchanging():
                dist.all_reduce(squares, group=self._axis.group)
        return squares
