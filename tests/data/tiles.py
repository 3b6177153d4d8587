"""A dataset whose samples take reading: each is made from its number, and noted as it is read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src.data.samples import Samples, Splits

SIDE = 8  # pixels, where the options don't say


@dataclass(frozen=True)
class Tiles:
    """Images that show their number, with its parity for a label.

    `folder` has a file `read` with the numbers that were read; samples from `free` on are read once a file
    `gate` is there; those of `damaged` can't be.
    """

    folder: Path
    first: int
    samples: int
    free: int
    damaged: tuple[int, ...]
    side: int

    def __len__(self) -> int:
        return self.samples

    def read(self, start: int, stop: int) -> Samples:
        while stop > self.free and not (self.folder / "gate").exists():
            time.sleep(0.01)
        with (self.folder / "read").open("a") as file:
            file.write("".join(f"{self.first + number}\n" for number in range(start, stop)))
        numbers = np.array([number for number in range(start, stop) if number not in self.damaged], np.int64)
        images = np.empty((len(numbers), self.side, self.side, 3), np.uint8)
        images[:] = ((self.first + numbers) % 251)[:, np.newaxis, np.newaxis, np.newaxis]
        reasons = tuple(
            f"tile {number}: cut short" for number in range(start, stop) if number in self.damaged
        )
        return Samples((images,), (numbers % 2,), reasons)


def read(raw: Path, options: dict[str, Any]) -> Splits:
    samples, folder = options["samples"], Path(options["folder"])
    free, damaged, side = options.get("free", samples), options.get("damaged", ()), options.get("side", SIDE)
    train = Tiles(folder, 0, samples, free, tuple(damaged), side)
    return Splits(train, Tiles(folder, samples, 10, 10, (), side), ("even", "odd"))
