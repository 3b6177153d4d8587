"""Average gradients over the ranks that hold copies of the same parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from src.compat.live_tensors import exchanged
from src.measure.recorder import Recorder
from src.runtime.torch.mesh import Axis


def average(gradients: Sequence[Tensor], axis: Axis, recorder: Recorder, bucket_bytes: float) -> None:
    """Average gradients in place over an axis, whose ranks call this at the same step.

    Args:
        gradients: those of a rank's parameters, in the order in which all copies have them.
        axis: the ranks that hold copies of these.
        recorder: counts bytes and waits.
        bucket_bytes: how much is averaged at once.
    """
    pending = []
    with recorder.exchanging("all_reduce", group="data", size=sum(each.nbytes for each in gradients)):
        for bucket in _buckets(gradients, bucket_bytes):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            exchanged(flat)
            recorder.hand_over("all_reduce", flat.nbytes)
            pending.append((bucket, flat, dist.all_reduce(flat, group=axis.group, async_op=True)))
        for bucket, flat, work in pending:
            work.wait()
            flat /= axis.size
            for gradient, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                gradient.copy_(part.view(gradient.shape))


def _buckets(gradients: Sequence[Tensor], limit: float) -> Iterator[list[Tensor]]:
    """Yield neighbours of one type that have together at most `limit` bytes, or are a single larger one."""
    bucket: list[Tensor] = []
    for gradient in gradients:
        full = sum(each.nbytes for each in bucket) + gradient.nbytes > limit
        if bucket and (full or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(gradient)
    if bucket:
        yield bucket
