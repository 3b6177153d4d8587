"""Data parallelism (DistributedDataParallel): a copy a rank, gradients averaged during backward.

Gradients travel in buckets. Between CPU ranks of one host they go through shared memory, which
moves them several times faster than gloo over loopback TCP; see `src/runtime/torch/shared_all_reduce.py`.
"""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

import torch
import torch.distributed as dist

from src.measure.recorder import Recorder
from src.runtime.torch import data_parallel
from src.runtime.torch import training as runtime
from src.runtime.torch.shared_all_reduce import SUPPORTED, SharedAllReduce
from src.worker import Run


def backend_hook(recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average through the process group, as DDP does without a hook."""
    gradients = bucket.buffer()
    recorder.payload_bytes += gradients.nbytes
    work = dist.all_reduce(gradients.div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def train(run: Run, recorder: Recorder) -> None:
    """Trains this rank's copy on its shard of every batch."""
    options = run.config.strategy
    device = runtime.root_device(run)
    backend = options["backend"]
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" and not run.config.hardware["share_devices"] else "gloo"
    shared_memory = options["all_reduce"] == "shared_memory" or (
        options["all_reduce"] == "auto" and device.type == "cpu" and SUPPORTED
    )
    if not shared_memory:
        # The backend's own threads overlap with backward: what a rank waits can't be told apart.
        recorder.communication_seconds = None
    strategy = data_parallel.HookedDDPStrategy(
        recorder,
        SharedAllReduce().hook if shared_memory else backend_hook,
        parallel_devices=[device] * run.world_size,
        cluster_environment=runtime.environment(),
        process_group_backend=backend,
        bucket_cap_mb=options["bucket_mb"],
    )
    data_parallel.fit(run, recorder, strategy)
