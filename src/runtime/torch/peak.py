"""Measure the peak FLOP/s of a torch device by matrix products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from src.machine.devices import processor
from src.measure import peak
from src.measure.peak import PeakKey
from src.measure.rank_record import RankRecord
from src.runtime.common.context import RankContext

# Rows and columns of the matrices.
SIZE = {"cpu": 1024, "cuda": 8192}
# The first GPUs with TF32.
AMPERE = (8, 0)


def facts(context: RankContext, device: torch.device) -> RankRecord:
    """Return the peak of a rank's `device` in the precision in which the rank computes, for its record."""
    precision = computing_precision(context.config.precision, device)
    gpu = device.type == "cuda"
    peaked = PeakKey(
        device=torch.cuda.get_device_name(device) if gpu else processor(),
        cores=0 if gpu else len(context.cores),
        precision=precision,
        library=f"torch {torch.__version__}",
    )
    size = SIZE[device.type]
    matrix = torch.rand(size, size, device=device).to(
        torch.bfloat16 if precision == "bf16" else torch.float32
    )
    product = torch.empty_like(matrix)

    def multiply() -> float:
        torch.mm(matrix, matrix, out=product)
        if gpu:
            torch.cuda.synchronize(device)
        return 2.0 * size**3

    threads = torch.get_num_threads()
    torch.set_num_threads(len(context.cores))
    try:
        with torch.no_grad(), _tf32(precision == "tf32"):
            return peak.facts(peaked, multiply)
    finally:
        torch.set_num_threads(threads)


def computing_precision(configured: str, device: torch.device) -> str:
    """Return `bf16`, `tf32` or `fp32`: the fastest that products or convolutions on `device` may be done in.

    In fp32 torch lets cuDNN's convolutions use TF32 by default, and matrix products if it is told to.
    """
    if configured == "bf16":
        return "bf16"
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < AMPERE:
        return "fp32"
    allowed = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    return "tf32" if allowed else "fp32"


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Allow TF32 in matrix products within the block, or don't."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
