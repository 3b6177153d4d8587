"""Train by `fully_shard` (FSDP2) over gloo on tensors in memory; started by torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from common import Clock, arguments, training_arrays
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional
from torch_models import build

args = arguments()
clock = Clock(args)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (world,))
images, labels = (torch.from_numpy(array) for array in training_arrays(args.data))
torch.manual_seed(0)
model = build(args.model)
for layer in model.children():
    if list(layer.parameters()):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
for module in model.modules():
    if isinstance(module, FSDPModule):
        # gloo has no average.
        module.set_force_sum_reduction_for_comms(True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
order = torch.randperm(len(labels))
clock.begin()
for chosen in order.split(args.batch):
    shard = chosen.chunk(world)[rank]
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(images[shard]), labels[shard])
    loss.backward()
    optimizer.step()
    loss.item()
    if clock.step():
        break
if rank == 0:
    clock.report()
dist.destroy_process_group()
