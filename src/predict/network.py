"""Compute how long exchanges take: rings within nodes and between them, gathers, servers, hosts that sum."""

from __future__ import annotations

import math

from src.predict.constants import Constants
from src.predict.layout import Layout
from src.predict.sheets import GIGA


def ranks_of_a_node(layout: Layout, ranks: int, stride: int) -> int:
    """Return how many of `ranks` ranks, which are `stride` apart, a node has."""
    return max(1, min(ranks, layout.per_node // stride))


def inside(layout: Layout, constants: Constants) -> float:
    """Return the bytes/s at which a device sends to another one of its node, in a ring."""
    share = constants.link_efficiency if layout.device.switched else constants.host_efficiency
    return layout.device.link * GIGA * share


def bandwidth(layout: Layout, ranks: int, stride: int, constants: Constants) -> float:
    """Return the bytes/s at which each rank of a ring sends, where `ranks` ranks are `stride` apart.

    Between nodes a ring with several ranks on each uses several adapters, or its part of a shared one.
    """
    within = ranks_of_a_node(layout, ranks, stride)
    rate = inside(layout, constants)
    if within >= ranks or layout.network is None:
        return rate
    adapter = layout.network.bandwidth * GIGA * constants.adapter_efficiency
    if layout.network.shared:
        # As many rings as lie side by side on a node share its adapter.
        return min(rate, adapter / max(1, layout.per_node // within))
    return min(rate, adapter * within**constants.rails_exponent)


def all_reduce(layout: Layout, ranks: int, stride: int, size: float, constants: Constants) -> float:
    """Return the seconds of a ring's all-reduce of `size` bytes (Patarasuk & Yuan 2009)."""
    return 2 * gather(layout, ranks, stride, size, constants)


def gather(layout: Layout, ranks: int, stride: int, size: float, constants: Constants) -> float:
    """Return the seconds in which a ring gathers, or sums and scatters, `size` bytes of all ranks."""
    if ranks == 1:
        return 0.0
    rate = bandwidth(layout, ranks, stride, constants)
    return (ranks - 1) / ranks * size / rate + constants.latency_seconds / 2


def sent_to_next(layout: Layout, size: float, constants: Constants, *, within: bool | None = None) -> float:
    """Return the seconds in which `size` bytes go from one stage of a pipeline to the next.

    By default these lie `within` one node where a node has devices of several stages.
    """
    rate = min(constants.point_to_point, inside(layout, constants))
    if within is None:
        within = layout.devices // layout.pipeline < layout.per_node
    if not within and layout.network is not None:
        rate = min(rate, layout.network.bandwidth * GIGA * math.sqrt(constants.adapter_efficiency))
        if layout.network.shared:
            # All devices of a stage that a node has send at once.
            rate /= max(1, min(layout.per_node, layout.devices // layout.pipeline))
    return size / rate


def summed_gradients(layout: Layout, size: float, constants: Constants) -> float:
    """Return the seconds in which the gradients of all copies, `size` bytes each, are summed and sent back.

    A ring does it, or else, within each node, a host or a device to which all others send, and between nodes
    servers, each of which has its part of the parameters.
    """
    ranks, stride = layout.data, layout.tensor * layout.shard
    row = layout.row
    if ranks == 1:
        return 0.0
    if row.exchange != "parameter_server" and not (row.exchange is None and row.reduce_on):
        return all_reduce(layout, ranks, stride, size, constants)
    within = ranks_of_a_node(layout, ranks, stride)
    if row.reduce_on == "gpu":
        # Each device sums its part of the gradients, which all others send there.
        seconds = 2 * (within - 1) / within * size / inside(layout, constants)
    else:
        seconds = 2 * within * size / constants.host_bandwidth
    if within >= ranks or layout.network is None:
        return seconds
    nodes = ranks / within
    servers = row.servers or nodes
    carried = size * max(1 - 1 / nodes, (nodes - 1) / servers)
    # Many connections at once fill an adapter as one ring doesn't.
    adapter = layout.network.bandwidth * GIGA * math.sqrt(constants.adapter_efficiency)
    return seconds + 2 * carried / adapter
