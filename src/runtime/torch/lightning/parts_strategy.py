"""Have Lightning train parts of a model, one in each rank, and leave what they exchange to the module."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import ParallelStrategy


class PartsStrategy(ParallelStrategy):
    """A Lightning strategy whose ranks hold parts of a model; the module does the exchanges."""

    @property
    def root_device(self) -> torch.device:
        """Return the rank's own device."""
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank]

    def model_to_device(self) -> None:
        """Leave the rank's part where the module has made it: on its device. Shards can't be moved."""

    def teardown(self) -> None:
        """End as Lightning's strategies do, but leave the rank's part on its device."""
        assert self.cluster_environment is not None and self.accelerator is not None
        self.cluster_environment.teardown()
        self.precision_plugin.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()

    def reduce(self, tensor: Any, *_: Any, **__: Any) -> Any:
        """Return `tensor` as it is, for the ranks have no tensor in common."""
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Wait until all ranks have called this method."""
        dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return rank `src`'s object."""
        objects = [obj]
        dist.broadcast_object_list(objects, src)
        return objects[0]
