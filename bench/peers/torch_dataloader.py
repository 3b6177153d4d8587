"""Train by the usual loop: torchvision's MNIST, ToTensor and Normalize, and a shuffling DataLoader."""

from __future__ import annotations

import torch
from common import Clock, arguments
from torch.nn import functional
from torch.utils.data import DataLoader
from torch_models import build
from torchvision import datasets, transforms

args = arguments()
clock = Clock(args)
torch.set_num_threads(1)
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
dataset = datasets.MNIST(args.raw, train=True, transform=transform)
loader = DataLoader(dataset, batch_size=args.batch, shuffle=True, drop_last=True)
model = build(args.model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model.train()
clock.begin()
for images, labels in loader:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    loss.item()
    if clock.step():
        break
clock.report()
