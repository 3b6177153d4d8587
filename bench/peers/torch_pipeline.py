"""Train by torch.distributed.pipelining over gloo, resnet18 cut by hand before `layer3`; run by torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from common import Clock, arguments, training_arrays
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional
from torch_models import build

MICROBATCHES = 8

args = arguments()
clock = Clock(args)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
torch.set_num_threads(1)
dist.init_process_group("gloo")
images, labels = (torch.from_numpy(array) for array in training_arrays(args.data))
torch.manual_seed(0)
whole = build("resnet18")
first = nn.Sequential(whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.layer2)
second = nn.Sequential(whole.layer3, whole.layer4, whole.avgpool, nn.Flatten(), whole.fc)
module = (first, second)[rank]
stage = PipelineStage(module, rank, world, torch.device("cpu"))
schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=functional.cross_entropy)
optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
order = torch.randperm(len(labels))
clock.begin()
for chosen in order.split(args.batch):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(images[chosen])
    else:
        losses: list[torch.Tensor] = []
        schedule.step(target=labels[chosen], losses=losses)
        torch.stack(losses).mean().item()
    optimizer.step()
    if clock.step():
        break
if rank == 0:
    clock.report()
dist.destroy_process_group()
