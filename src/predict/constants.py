"""List the physical constants of predictions, with what is believed of each before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Prior:
    """A belief about a constant: its median, and the standard deviation of its logarithm.

    `pinned` ones aren't fitted: tables of whole steps hardly identify a network, and constants of it that are
    left free improve the mean error while they ruin the choice among configurations.
    """

    median: float
    spread: float
    pinned: bool = False


PRIORS: Mapping[str, Prior] = {
    "gemm_efficiency": Prior(0.82, 0.06),
    "gemm_inner": Prior(180.0, 0.4),
    "convolution_efficiency": Prior(0.95, 0.15),
    "winograd": Prior(0.4, 0.3),
    "memory_efficiency": Prior(0.73, 0.15),
    "elements_per_second": Prior(8e9, 0.2, pinned=True),
    "attention_efficiency": Prior(0.36, 0.25),
    "launch_seconds": Prior(7e-6, 0.4),
    "fixed_seconds": Prior(15e-3, 0.6),
    "host_seconds": Prior(36e-6, 0.4, pinned=True),
    "loop_seconds": Prior(3e-3, 0.4, pinned=True),
    "shard_overlap": Prior(0.10, 0.7),
    "link_efficiency": Prior(0.77, 0.15, pinned=True),
    "host_efficiency": Prior(0.50, 0.4, pinned=True),
    "adapter_efficiency": Prior(0.40, 0.4, pinned=True),
    "rails_exponent": Prior(0.75, 0.15, pinned=True),
    "latency_seconds": Prior(50e-6, 0.5, pinned=True),
    "point_to_point": Prior(20e9, 0.4, pinned=True),
    "host_bandwidth": Prior(12e9, 0.6),
    "exposed": Prior(0.25, 0.5),
    "straggling": Prior(0.012, 0.7),
    "imbalance": Prior(0.17, 0.3),
    "input_seconds": Prior(7.5e-4, 0.5),
}


# They are parts of a whole, one at most.
SHARES = (
    "gemm_efficiency",
    "convolution_efficiency",
    "memory_efficiency",
    "attention_efficiency",
    "shard_overlap",
    "exposed",
)


@dataclass(frozen=True)
class Constants:
    """The constants of one prediction.

    Attributes:
        gemm_efficiency: share of the peak that large matrix products reach.
        gemm_inner: length of a product's inner dimension that takes as long again as its start.
        convolution_efficiency: share of what matrix products reach that convolutions do.
        winograd: what convolutions of 3x3 take of their time where multiplications are saved.
        memory_efficiency: share of the memory's bandwidth that is reached.
        elements_per_second: that each of a device's processors moves at most.
        attention_efficiency: share of the peak that flash attention reaches.
        launch_seconds: a kernel takes at least.
        fixed_seconds: of a step, whatever it computes.
        host_seconds: in which a host starts a kernel, by torch's eager operations, on one core.
        loop_seconds: of a step of a training loop in Python, beside starting operations.
        shard_overlap: share of the shorter one of computing and gathering that the longer one doesn't hide.
        link_efficiency, host_efficiency: share that a ring reaches of a link of its own, and of a shared one.
        adapter_efficiency: share that a ring with one rank a node reaches of its adapter.
        rails_exponent: a ring with r ranks a node is r to this faster.
        latency_seconds: of an exchange. point_to_point: bytes/s between two stages.
        host_bandwidth: bytes/s in which a host sums its devices' gradients.
        exposed: share of an exchange that backward passes can't hide.
        straggling: standard deviation of a device's step over the others'.
        imbalance: that of stages' times, where nobody says how they were cut.
        input_seconds: of a million pixels that a node reads and decodes.
    """

    gemm_efficiency: float = PRIORS["gemm_efficiency"].median
    gemm_inner: float = PRIORS["gemm_inner"].median
    convolution_efficiency: float = PRIORS["convolution_efficiency"].median
    winograd: float = PRIORS["winograd"].median
    memory_efficiency: float = PRIORS["memory_efficiency"].median
    elements_per_second: float = PRIORS["elements_per_second"].median
    attention_efficiency: float = PRIORS["attention_efficiency"].median
    launch_seconds: float = PRIORS["launch_seconds"].median
    fixed_seconds: float = PRIORS["fixed_seconds"].median
    host_seconds: float = PRIORS["host_seconds"].median
    loop_seconds: float = PRIORS["loop_seconds"].median
    shard_overlap: float = PRIORS["shard_overlap"].median
    link_efficiency: float = PRIORS["link_efficiency"].median
    host_efficiency: float = PRIORS["host_efficiency"].median
    adapter_efficiency: float = PRIORS["adapter_efficiency"].median
    rails_exponent: float = PRIORS["rails_exponent"].median
    latency_seconds: float = PRIORS["latency_seconds"].median
    point_to_point: float = PRIORS["point_to_point"].median
    host_bandwidth: float = PRIORS["host_bandwidth"].median
    exposed: float = PRIORS["exposed"].median
    straggling: float = PRIORS["straggling"].median
    imbalance: float = PRIORS["imbalance"].median
    input_seconds: float = PRIORS["input_seconds"].median

    def changed(self, values: Mapping[str, float]) -> Constants:
        """Return the constants with other values of some; shares are one at most."""
        return replace(self, **{name: min(v, 1.0) if name in SHARES else v for name, v in values.items()})
