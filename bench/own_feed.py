"""Feed images as a torch rank of Scaleguide does, and train nothing: `python -m bench.own_feed`."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from src.config import command_line, compose
from src.data import arrays
from src.machine.devices import usable_cores
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.feed import Feed
from src.runtime.torch.tensors import input_tensors

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from feed_common import CORES, MEAN, STD, arguments, finish


def main() -> None:
    """Feed from the prepared arrays of the folder that is given, and print images/s."""
    args = arguments()
    cores = tuple(usable_cores()[:CORES])
    torch.set_num_threads(len(cores))
    (config,) = compose.cells(command_line.parse([f"batch={args.batch}", "hardware.device=cpu"]))
    config = dataclasses.replace(config, dataset={**config.dataset, "augment": "crop_flip"})
    data = dataclasses.replace(arrays.load(Path(args.data) / "prepared"), mean=MEAN, std=STD)
    with tempfile.TemporaryDirectory() as folder:
        context = RankContext(config, 0, 1, data, Path(folder), cores)
        feed = Feed(
            context,
            Recorder(config, 0, Path(folder), started=0.0, probes=False),
            torch.device("cpu"),
            setup.make_task(context),
            parts=1,
        )

        def batches() -> Iterator[Any]:
            if args.plain:
                stored = data.train.read(slice(args.batch)).inputs[0]
                yield input_tensors(context, [stored], torch.device("cpu")), None
            while True:
                yield from feed
                feed.end_epoch()

        finish(args, batches(), lambda batch: batch[0][0].permute(0, 2, 3, 1).numpy())


if __name__ == "__main__":
    main()
