"""Data parallelism (DistributedDataParallel): a copy in each rank, gradients averaged during backward.

Gradients travel in buckets. Between CPU ranks of one host the buckets go through shared memory, which is
several times faster than gloo over loopback TCP; see `src/runtime/torch/shared_all_reduce.py`. They may be
compressed: see `src/runtime/torch/compression/`.
"""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

from dataclasses import dataclass

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.compression.hooks import CompressedAllReduce, CountedGroup, without_momentum
from src.runtime.torch.compression.options import Compression
from src.runtime.torch.lightning.data_parallel import Hook, HookedDDPStrategy, backend_hook, fit_copies
from src.runtime.torch.lightning.fit import cluster_environment
from src.runtime.torch.shared_all_reduce import SUPPORTED, SharedAllReduce


@dataclass(frozen=True, kw_only=True)
class Options(Compression):
    """The options of conf/strategy/ddp.yaml."""

    backend: str
    all_reduce: str
    bucket_mb: float
    find_unused_parameters: bool | None = None


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's copy of the model on the rank's part of every batch."""
    options = Options.of(context.config)
    device = setup.root_device(context)
    backend = setup.process_group_backend(context) if options.backend == "auto" else options.backend
    on_one_host = device.type == "cpu" and SUPPORTED and not context.config.across_hosts
    possible = on_one_host and not options.compresses
    shared_memory = options.all_reduce == "shared_memory" or (options.all_reduce == "auto" and possible)
    shared = SharedAllReduce(recorder.note)
    hook: Hook = shared.hook if shared_memory else backend_hook
    if options.compresses:
        hook = CompressedAllReduce(context.config, CountedGroup).hook
    strategy = HookedDDPStrategy(
        recorder,
        hook,
        behind=not shared_memory,
        parallel_devices=[device] * context.world_size,
        cluster_environment=cluster_environment(),
        process_group_backend=backend,
        bucket_cap_mb=options.bucket_mb,
        find_unused=options.find_unused_parameters,
        exchange_bytes=None if options.compresses else shared.ring_bytes(context.world_size) * shared_memory,
        exchange_buffers=shared.buffers,
    )
    fit_copies(without_momentum(context), recorder, strategy)
