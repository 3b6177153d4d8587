"""Place a rank on the mesh of its run: along each axis it exchanges with those that differ there alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from src.runtime.common.context import RankContext

# In the order in which ranks are counted, the last one first.
DATA = "data"
AXES = ("pipeline", DATA, "shard", "tensor")


@dataclass(frozen=True)
class Axis:
    """The ranks that differ from this one along one axis alone.

    Attributes:
        index: this rank's place among them.
        ranks: their numbers in the job, in order.
        group: their process group.
        name: that of the axis; empty for ranks that aren't on a mesh.
    """

    index: int
    ranks: tuple[int, ...]
    group: dist.ProcessGroup | None
    name: str = ""

    @property
    def size(self) -> int:
        """Return how many ranks there are along the axis."""
        return len(self.ranks)


def make(context: RankContext, device: torch.device) -> DeviceMesh:
    """Make the mesh of the run's degrees, with an axis for each of `AXES`; all ranks call this function."""
    if device.type != "cpu":
        # A rank sees one GPU. Unless that is in use, a mesh takes the one with the rank's number on its host.
        kind = torch.get_device_module(device)
        kind.set_device(device)
        kind.init()
    degrees = context.config.degrees
    shape = tuple(getattr(degrees, name) for name in AXES)
    return init_device_mesh(device.type, shape, mesh_dim_names=AXES)


def axis(mesh: DeviceMesh, name: str) -> Axis:
    """Return this rank's axis of a mesh that `make` has made."""
    group = mesh.get_group(name)
    return Axis(mesh.get_local_rank(name), tuple(dist.get_process_group_ranks(group)), group, name)


def whole_world(context: RankContext) -> Axis:
    """Return the axis of a run whose ranks all stand along one."""
    return Axis(context.rank, tuple(range(context.world_size)), dist.group.WORLD)
