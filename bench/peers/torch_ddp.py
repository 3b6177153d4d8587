"""Train by DistributedDataParallel over gloo on tensors in memory; started by torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from common import Clock, arguments, training_arrays
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch_models import build

args = arguments()
clock = Clock(args)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
torch.set_num_threads(1)
dist.init_process_group("gloo")
images, labels = (torch.from_numpy(array) for array in training_arrays(args.data))
torch.manual_seed(0)
model = DistributedDataParallel(build(args.model))
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
