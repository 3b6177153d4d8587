"""Shard a stage over the ranks that hold it together, and gather it for an evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from src.measure.recorder import Recorder
from src.partition.torch.stage import Stage
from src.runtime.torch import freed_memory
from src.runtime.torch.sharding.gradients import ShardedGradients
from src.runtime.torch.sharding.model_shards import count_exchanges, shard


class StageShards:
    """A stage whose parameters are sharded; they are gathered once a step, for all of its micro-batches.

    Attributes:
        gradients: exchanges what `fully_shard` doesn't.
    """

    def __init__(self, stage: Stage, ranks: DeviceMesh, recorder: Recorder) -> None:
        """Shard `stage` in place over the mesh `ranks` of the run."""
        # An evaluation has other graphs of the same parameters.
        self._whole = dict(stage.named_parameters())
        kept = shard(stage, [], ranks["data", "shard"], reshard=False)
        self._stage = stage
        self._returned_bytes = freed_memory.block_of_a_step(stage)
        self._sharded = self._whole.keys() - {
            name for name, each in self._whole.items() if any(each is one for one in kept)
        }
        count_exchanges(stage, recorder)
        self.gradients = ShardedGradients(stage, kept, ranks, recorder)
        self._free()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Have an evaluation's graphs the parameters as they are now within the block; all ranks enter it."""
        assert isinstance(self._stage, FSDPModule)
        self._stage.unshard()
        present = dict(self._stage.named_parameters())
        for name in self._sharded:
            self._whole[name].data = present[name].data
        try:
            yield
        finally:
            self._free()
            self._stage.reshard()

    def keep_blocks_of_a_step(self) -> None:
        """Have the process keep freed blocks that each step needs again, and return larger ones."""
        freed_memory.return_blocks(self._returned_bytes)

    def blocks_returned(self) -> AbstractContextManager[None]:
        """Return all freed memory within the block, as of a checkpoint's tensors, gathered one by one."""
        return freed_memory.all_returned(self._returned_bytes)

    def _free(self) -> None:
        for name in self._sharded:
            self._whole[name].data = self._whole[name].data.new_empty(0)
