"""Look at steps of strategies that nobody runs: by their own code, on tensors without data.

A process is the first rank of as many as are asked for; exchanges send nothing.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from src.compat.torch import group_that_sends_nothing
from src.config import Config, ConfigError, command_line, compose
from src.data import prepared
from src.fits.law import Law
from src.measure.live_step import LiveBytes
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import dry_run, mesh, setup
from src.runtime.torch.sharding import sharded_module
from src.runtime.torch.tensor import finding, plan
from src.runtime.torch.tensor.group import AXIS, MeshTensorGroup

# Samples of the two micro-batches that are looked at: BatchNorm takes no single one of a single pixel.
FEW, MANY = 2, 4
# What a run of it on this machine would be.
HERE = ("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none")
CPU = torch.device("cpu")


def config_of(words: Sequence[str], strategy: str, devices: int, samples: int) -> Config:
    """Compose a run by words of a command line, whose devices have so many samples in a micro-batch each.

    Raises:
        ConfigError: for a mistake.
    """
    base = [*words, *HERE, f"strategy={strategy}", f"workers={devices}"]
    (shown,) = compose.cells(command_line.parse([*base, f"batch={devices * 2**10}", "microbatches=1"]))
    parts = _microbatches(words)
    copies = shown.degrees.batch
    found = [*base, f"batch={copies * parts * samples}", f"microbatches={parts}"]
    (config,) = compose.cells(command_line.parse(found))
    return config


def _microbatches(words: Sequence[str]) -> int:
    given = [word.partition("=")[2] for word in words if word.startswith("microbatches=")]
    return int(given[-1]) if given and given[-1].isdecimal() else 1


def copies(config: Config, *, buckets: bool) -> LiveBytes:
    """Look at a step of a device that has the whole model, with gradients in `buckets` or by themselves."""

    def divide(model: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
        if buckets:
            put_gradients_in_buckets(model, config.microbatches)
        return model, lambda: None

    with _context(config) as (context, _):
        return dry_run.live_bytes(context, setup.make_task(context), CPU, divide)


def put_gradients_in_buckets(model: nn.Module, microbatches: int) -> None:
    """Have a model's gradients be in buckets that stay, as DistributedDataParallel does.

    Each is made apart, and copied into its bucket in the backward pass of a step's last micro-batch.
    """
    for parameter in (each for each in model.parameters() if each.requires_grad):
        bucket, passes = torch.zeros_like(parameter), itertools.count(1)

        def keep(own: Tensor, bucket: Tensor = bucket, passes: Iterator[int] = passes) -> None:
            if next(passes) % microbatches == 0 and own.grad is not None:
                bucket.copy_(own.grad)
                own.grad = bucket

        parameter.register_post_accumulate_grad_hook(keep)


def shards(config: Config) -> LiveBytes:
    """Look at a step of a device that has its shard of the model."""
    with _context(config) as (context, recorder), group_that_sends_nothing(config.workers):
        found = sharded_module.find_groups(context, setup.build(context, _ignore), CPU)
        made = mesh.make(context, CPU)
        task = setup.make_task(context)
        return sharded_module.live_bytes(context, task, CPU, found, made, recorder)


def parts(config: Config) -> LiveBytes:
    """Look at a step of a device that has its part of each layer."""
    with _context(config) as (context, recorder), group_that_sends_nothing(config.workers):
        found = finding.find(context, setup.build(context, _ignore), CPU)
        made = mesh.make(context, CPU)

        def divide(model: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
            group = MeshTensorGroup(made[AXIS], recorder)
            # Nothing is drawn of tensors without data: generators are left alone.
            group.region.watches = False
            plan.parallelize(model, found, group)
            return model, lambda: None

        try:
            return dry_run.live_bytes(context, setup.make_task(context), CPU, divide)
        except Exception as error:
            raise ConfigError(finding.failure(context, found, error)) from error


# How each strategy's step is looked at, and whether what is divided goes with the number of devices.
LOOKS: dict[str, tuple[Callable[[Config], LiveBytes], bool]] = {
    "single": (lambda config: copies(config, buckets=False), False),
    "ddp": (lambda config: copies(config, buckets=True), False),
    "fsdp": (shards, True),
    "tensor_parallel": (parts, False),
}


def laws(words: Sequence[str], strategy: str, devices: Sequence[int]) -> Iterator[tuple[int, Law | str]]:
    """Yield the law by which each number of devices holds what it holds, or why it can't be had.

    Copies and shards have one for all of them; what layers are split into depends on the number.
    """
    look, divided = LOOKS[strategy]
    shared: Law | str | None = None
    for count in devices:
        if shared is None or strategy == "tensor_parallel":
            first = devices[0] if divided or strategy != "tensor_parallel" else count
            points = [(first, FEW), (first, MANY), *([(2 * first, FEW)] if divided else [])]
            shared = _law(words, strategy, points, look)
        yield count, shared


def _law(
    words: Sequence[str],
    strategy: str,
    points: Sequence[tuple[int, int]],
    look: Callable[[Config], LiveBytes],
) -> Law | str:
    try:
        with warnings.catch_warnings():
            # torch's own calls of what it will rename.
            warnings.simplefilter("ignore", FutureWarning)
            return Law.of({point: look(config_of(words, strategy, *point)).sizes for point in points})
    except ConfigError as error:
        return str(error)
    except Exception as error:
        # Whatever a model's code makes of tensors without data, it can't be looked at.
        said = (str(error).strip().splitlines() or [""])[0]
        return f"it can't be looked at without data: {type(error).__name__}: {said}"


@contextmanager
def _context(config: Config) -> Iterator[tuple[RankContext, Recorder]]:
    with tempfile.TemporaryDirectory(prefix="scaleguide-") as folder:
        arrays = prepared.load(config.dataset)
        context = RankContext(config, 0, config.workers, arrays, Path(folder), (0,))
        recorder = Recorder(config, 0, Path(folder, "rank"), started=time.time(), probes=False)
        yield context, recorder


def _ignore(text: str) -> None:
    """Take a note of a model that the user hears of when it runs."""
