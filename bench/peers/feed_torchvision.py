"""Feed images as torchvision's users do: a dataset, transforms for each sample, a DataLoader with workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from feed_common import CORES, MEAN, STD, arguments, finish
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

args = arguments()
folder = Path(args.data)
MARGIN = args.side // 8
ENDLESS = 10**9


class ArrayImages(Dataset[Any]):
    """A dataset of an array of uint8 images [samples, channels, height, width]."""

    def __init__(self, transform: Any) -> None:
        self.images = torch.from_numpy(np.load(folder / "images.npy")).permute(0, 3, 1, 2).contiguous()
        self.labels = np.load(folder / "labels.npy")
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[index]), int(self.labels[index])


def dataset() -> Dataset[Any]:
    """Return the dataset of files or of arrays, with the usual transforms of each."""
    if args.kind == "files":
        moved = [transforms.RandomCrop(args.side, padding=MARGIN), transforms.RandomHorizontalFlip()]
        last = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        return ImageFolder(str(folder / "images"), transforms.Compose(([] if args.plain else moved) + last))
    moved = [v2.RandomCrop(args.side, padding=MARGIN), v2.RandomHorizontalFlip()]
    last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return ArrayImages(v2.Compose(([] if args.plain else moved) + last))


def batches() -> Iterator[Any]:
    """Yield batches in random order, as one epoch without an end."""
    data: Any = dataset()
    sampler = SequentialSampler(data) if args.plain else RandomSampler(data, num_samples=ENDLESS)
    yield from DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=CORES)


# As each worker process has.
torch.set_num_threads(1)
finish(args, batches(), lambda batch: batch[0].permute(0, 2, 3, 1).numpy())
