"""Train by the fastest plain loop: the whole training set is one normalised tensor in memory."""

from __future__ import annotations

import torch
from common import Clock, arguments, training_arrays
from torch.nn import functional
from torch_models import build

args = arguments()
clock = Clock(args)
torch.set_num_threads(1)
images, labels = (torch.from_numpy(array) for array in training_arrays(args.data))
model = build(args.model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model.train()
order = torch.randperm(len(labels))
clock.begin()
for chosen in order.split(args.batch):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
    loss.backward()
    optimizer.step()
    loss.item()
    if clock.step():
        break
clock.report()
