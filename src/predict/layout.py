"""Lay a row's configuration out: parts along each axis, micro-batches, and what lies on one node."""

from __future__ import annotations

import math
from dataclasses import dataclass

from src.config.mistakes import ConfigError, nearest
from src.config.schedules import SCHEDULES, refusal
from src.predict.row import Row
from src.predict.sheets import Device, Network, device, network


@dataclass(frozen=True)
class Layout:
    """A row's configuration, with what the row leaves open filled in.

    Attributes:
        row, device, network: as given; the network only where there are several nodes.
        per_node: devices of a node.
        data, tensor, pipeline, shard: parts along each axis; their product is the number of devices.
        microbatches: of a replica in a step.
        samples: of one micro-batch on a device; their product with `microbatches` is a replica's batch.
        schedule: of a pipeline, `None` without one.
        virtual: stages of a device.
    """

    row: Row
    device: Device
    network: Network | None
    per_node: int
    data: int
    tensor: int
    pipeline: int
    shard: int
    microbatches: int
    samples: float
    schedule: str | None
    virtual: int

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return math.ceil(self.devices / self.per_node)

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return self.row.devices

    @property
    def replicas(self) -> int:
        """Return how many parts each global batch has."""
        return self.data * self.shard


def layout(row: Row) -> Layout:
    """Lay a row out; raise `ConfigError` where its numbers can't be had."""
    sheet = device(row.device)
    per_node = min(row.devices_per_node or sheet.node, row.devices)
    several = row.devices > per_node
    if several and row.network is None:
        raise ConfigError(f"network: is needed, for {row.devices} devices are on several nodes of {per_node}")
    data, shard = _copies(row)
    replicas = data * shard
    batch = row.global_batch / replicas
    micro = min(row.micro_batch or _micro_batch(row, batch), batch)
    count = max(1, round(batch / micro))
    schedule, virtual = _schedule(row, count)
    if row.is_transformer and row.pipeline * virtual > (row.layers or 1):
        raise ConfigError(f"pipeline={row.pipeline}: the model has {row.layers} layers for that many stages")
    return Layout(
        row,
        sheet,
        network(row.network) if several and row.network else None,
        per_node,
        data,
        row.tensor,
        row.pipeline,
        shard,
        count,
        batch / count,
        schedule,
        virtual,
    )


def _copies(row: Row) -> tuple[int, int]:
    """Return the parts along `data` and `shard`."""
    known = row.tensor * row.pipeline
    if row.devices % known:
        raise ConfigError(
            f"devices={row.devices}: can't be divided by tensor={row.tensor} times pipeline={row.pipeline}"
        )
    left = row.devices // known
    shard, data = row.shard, row.data
    # Tables of sharded runs often call the same devices `data`.
    if shard is not None and data == shard == left:
        data = 1
    shard = shard or 1
    if data is None and left % shard == 0:
        data = left // shard
    if data is None or data * shard != left:
        raise ConfigError(
            f"devices={row.devices}: isn't data={data} times shard={shard} times tensor={row.tensor} times "
            f"pipeline={row.pipeline}"
        )
    return data, shard


def _micro_batch(row: Row, batch: float) -> float:
    """Return the samples of a micro-batch where the row doesn't say: one in a transformer's pipeline."""
    if row.is_transformer and row.pipeline > 1:
        return min(1.0, batch)
    return batch / 4 if row.pipeline > 1 else batch


def _schedule(row: Row, microbatches: int) -> tuple[str | None, int]:
    """Return the schedule and the stages of a device."""
    if row.pipeline == 1:
        if (row.virtual_stages or 1) > 1:
            raise ConfigError(f"virtual_stages={row.virtual_stages}: needs a pipeline")
        return None, 1
    virtual = row.virtual_stages
    name = row.schedule or ("interleaved" if (virtual or 1) > 1 else "1f1b")
    if name not in SCHEDULES:
        raise ConfigError(
            f"schedule={name}: there are {', '.join(SCHEDULES)}; did you mean {nearest(name, SCHEDULES)}?"
        )
    fewest, most, default = SCHEDULES[name].virtual
    virtual = virtual or default
    if virtual < fewest or (most is not None and virtual > most):
        raise ConfigError(
            f"virtual_stages={virtual}: schedule={name} has {fewest}{'' if most else ' or more'} a device"
        )
    if (reason := refusal(name, row.pipeline, virtual, microbatches)) and SCHEDULES[name].splits:
        raise ConfigError(f"schedule={name}: {reason}")
    return name, virtual
