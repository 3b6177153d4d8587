"""One rank that trains LightningModules of their own step, in float64, and keeps what it ended with.

    python -m tests.strategies.own_training_rank FOLDER [mpi]      with the launcher's environment variables

FOLDER has `cases.json`, a list of name and change, and `<name>.yaml`, a configuration. The change `lightning`
has Lightning's own Trainer train, fed the same order; the others are mistakes that a test must see.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from src.config import Config, ConfigError, run_config
from src.data import batches, order
from src.data.live import LiveSplit
from src.measure import peak
from src.measure.recorder import Recorder
from src.run import files
from src.runtime.common import rounding
from src.runtime.common.context import RankContext
from src.runtime.torch import setup, step_seeds
from src.runtime.torch.lightning import fit, own_module
from src.runtime.torch.lightning.own_module import OwnModule
from src.runtime.torch.tensors import input_tensors, typed
from tests.prepared_data import load_arrays

CPU = torch.device("cpu")


class Kept(OwnModule):
    """Has what was trained last."""

    last: OwnModule
    change: str | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Kept.last = self

    def attach(self, *arguments: Any) -> None:
        super().attach(*arguments)
        if self.change == "no schedule":
            self.model.lr_scheduler_step = lambda *_: None

    def _trained_on(self, returned: Any, arguments: tuple[Any, ...]) -> Any:
        counted = super()._trained_on(returned, arguments)
        return None if self.change == "no weight" else counted


class Loader:
    """The batches of each epoch in the order that runs have, or the test samples."""

    def __init__(self, context: RankContext, *, train: bool) -> None:
        self.context, self.train, self.epoch = context, train, 0
        config, arrays = context.config, context.arrays
        self.size = config.global_batch // config.microbatches
        if not train:
            self.size = getattr(arrays.test, "batch", None) or config.evaluation_batch

    def __len__(self) -> int:
        count = self.context.arrays.train_samples
        config = self.context.config
        if self.train:
            return order.steps_per_epoch(count, config.global_batch) * config.microbatches
        return -(-self.context.arrays.test_samples // self.size)

    def __iter__(self) -> Iterator[Any]:
        config, arrays = self.context.config, self.context.arrays
        split = arrays.train if self.train else arrays.test
        indices = np.arange(len(split))
        epoch = self.epoch
        if self.train:
            indices = batches.training_order(config, len(split), epoch)
            self.epoch += 1
        for place in range(len(self)):
            part = indices[place * self.size : (place + 1) * self.size]
            if isinstance(split, LiveSplit):
                yield split.collated(part, config.seed, epoch)
            else:
                read = split.read(part)
                yield input_tensors(self.context, read.inputs, CPU)[0], typed(read.targets, CPU)[0]


class Watch(pl.Callback):
    """Keeps losses and logged values, and has steps draw what those of a run draw."""

    def __init__(self, config: Config) -> None:
        self.config, self.losses, self.part, self.by_hand = config, [], [], []

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, index: int) -> None:
        if index % self.config.microbatches == 0:
            step_seeds.seed(self.config, 0, trainer.global_step if module.automatic_optimization else index)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        # Lightning has divided it by the number of micro-batches.
        self.part.append(float(outputs["loss"]) * self.config.microbatches if outputs else sum(self.by_hand))
        self.by_hand.clear()
        if (index + 1) % self.config.microbatches == 0:
            self.losses.append(float(np.mean(self.part)))
            self.part = []


def by_lightning(context: RankContext) -> tuple[pl.LightningModule, list[float], dict[str, float]]:
    config = context.config
    model, watch = setup.build(context), Watch(config)
    trainer = pl.Trainer(
        max_epochs=config.epochs, accelerator="cpu", devices=1, callbacks=[watch], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0, accumulate_grad_batches=config.microbatches,
    )  # fmt: skip
    model.prepare_data = lambda: None
    backward = model.manual_backward
    model.manual_backward = lambda loss: (watch.by_hand.append(float(loss)), backward(loss))
    trainer.fit(model, Loader(context, train=True), Loader(context, train=False))
    return model, watch.losses, {name: float(value) for name, value in trainer.callback_metrics.items()}


def train(config: Config, folder: Path, rank: int, change: str | None) -> None:
    (folder / files.RANKS).mkdir(parents=True, exist_ok=True)
    cores = tuple(sorted(os.sched_getaffinity(0)))[:1]
    context = RankContext(config, rank, config.workers, load_arrays(config.dataset), folder, cores)
    logged: dict[str, float] = {}
    Kept.change = change
    if change == "lightning":
        model, losses, logged = by_lightning(context)
        (folder / "0.json").write_text(json.dumps(losses))
    else:
        recorder = Recorder(config, rank, folder / str(rank), started=time.time(), probes=False)
        try:
            resolve_name(config.strategy["entry"])(context, recorder)
        except ConfigError as mistake:
            (folder / f"{rank}-refused.txt").write_text(str(mistake))
        model = Kept.last.model
    (folder / f"{rank}-logged.json").write_text(json.dumps(logged))
    (folder / f"{rank}-calls.json").write_text(json.dumps(getattr(model, "calls", [])))
    parameters = {name: value.detach().numpy() for name, value in model.named_parameters()}
    np.savez(folder / f"{rank}.npz", **parameters)


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_default_dtype(torch.float64)
    fit.OwnModule = Kept
    rounding.measure_gap = lambda *_: None
    peak.FIRST = peak.AGAIN = 0.0, 1
    assert own_module.OwnModule is OwnModule
    if sys.argv[2:] == ["mpi"]:
        from src.runtime.common.mpi_world import MPIWorld

        # The processes go on with the next case.
        MPIWorld.leave = lambda _: None
    for name, change in json.loads((folder / "cases.json").read_text()):
        train(run_config.load(folder / f"{name}.yaml"), folder / name, rank, change)
        print(f"{name}: done", flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
