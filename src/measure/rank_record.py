"""Define the record that a rank leaves to the parent at the end: the keys of its `record.json`."""

from __future__ import annotations

from typing import TypedDict


class RankRecord(TypedDict, total=False):
    """The facts of one rank; a figure that was not measured is `None` or absent.

    Times are seconds, moments seconds since 1970. The *window* is the timed part of the training, after the
    warm-up; what ran off the clock (evaluations, checkpoints) is no part of its seconds.
    """

    status: str  # ok, time_limit, diverged
    steps: int
    train_seconds: float
    startup_seconds: float  # from the command to the first step
    import_seconds: float  # from the command until the framework was imported
    off_clock: list[tuple[float, float]]  # moments of each pause
    window: tuple[float, float]  # moments of its beginning and end
    window_seconds: float
    input_seconds: float | None  # within the window: waiting for batches
    communication_seconds: float | None  # within the window: waiting for other ranks
    busy_seconds: float | None  # within the window: computing
    exchange_seconds: float  # within an asynchronous worker's window: fetching and pushing
    fetched_bytes: int
    pushed_bytes: int
    payload_bytes: int
    traffic: dict[str, tuple[int, int]]  # by host: bytes sent and received in training, as rank 0 counts them
    seconds_to_target: float
    steps_to_target: float
    steps_per_epoch: int
    parameters: int
    batch_statistics: bool  # whether the model normalises by statistics of a batch
    flops_per_sample: float  # forward and backward
    saved_tensor_bytes_per_sample: float  # what autograd keeps of each sample of a micro-batch
    saved_tensor_bytes_fixed: float  # and of each micro-batch besides
    saved_tensors_bytes: int  # of a stage, at its most
    largest_microbatch: int  # samples, where that isn't a worker's part of the batch by micro-batches
    peak_flops: float  # of a worker's device; which one it is says `peak_source`
    peak_source: str
    peak_device: str
    peak_precision: str
    peak_measured_flops: float
    peak_official_flops: float | None
    memory_peak_bytes: int  # above the level
    memory_level_bytes: int  # resident set after imports
    validation_samples_per_second: float
    mean_rank_train_seconds: float
    clock_gap_max: int
    rounding_gap: float | None  # what one last digit in each weight does to the first losses
    rounding_losses: list[float | None]  # those from the changed weights
    rounding_seconds: float  # training for these, after all else
    probe_before: float | None  # GFLOP/s a core
    probe_after: float | None
