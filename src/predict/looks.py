"""Look at steps of strategies that nobody runs: by their own code, on tensors without data.

A process is the first rank of as many as are asked for; exchanges send nothing.
"""

from __future__ import annotations

import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from src.compat.torch import group_that_sends_nothing
from src.config import Config, ConfigError, command_line, compose
from src.config.mistakes import CommandError
from src.data import prepared
from src.fits.law import Law
from src.measure.live_step import LiveBytes
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import dry_run, mesh, setup
from src.runtime.torch.sharding import sharded_module
from src.runtime.torch.tensor import finding, plan
from src.runtime.torch.tensor.group import AXIS, MeshTensorGroup

# Samples of the micro-batches that are looked at: BatchNorm takes no single one of a single pixel.
SAMPLES = (2, 4, 8)
# What a run of it on this machine would be.
HERE = ("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none")
CPU = torch.device("cpu")


def config_of(words: Sequence[str], strategy: str, devices: int, samples: int, microbatches: int) -> Config:
    """Compose a run by words of a command line, whose devices have so many samples in a micro-batch each.

    Raises:
        ConfigError: for a mistake, or for what isn't looked at.
    """
    kept = [word for word in words if not word.startswith(("batch=", "microbatches=", "dataset.limit="))]
    parts = microbatches * (devices if strategy in ("ddp", "fsdp") else 1)
    own = [f"strategy={strategy}", f"workers={devices}", f"batch={parts * samples}"]
    line = command_line.parse([*kept, *HERE, *own, f"microbatches={microbatches}"])
    (config,) = compose.cells(line)
    for key, given, plain in (
        ("scaling", config.scaling, "strong"),
        ("batch_shares", config.batch_shares, "equal"),
        ("batchnorm", config.batchnorm, "local"),
        ("strategy.compile", config.strategy.get("compile", False), False),
        ("strategy.compression", config.strategy.get("compression", "none"), "none"),
    ):
        if given != plain:
            raise ConfigError(f"{key}={given}: isn't looked at; leave it away")
    return config


def share_of(model: nn.Module) -> Callable[[int], float]:
    """Return, from a number of devices, the part of a model that the first shard has.

    It has as many rows of each parameter as any, which is more than its part where rows don't divide.
    """
    shapes = [
        (len(each), each.numel() // len(each)) for each in model.parameters() if each.numel() and each.dim()
    ]
    whole = sum(rows * row for rows, row in shapes) or 1
    return lambda devices: sum(-(-rows // devices) * row for rows, row in shapes) / whole


def copies(config: Config, *, buckets: bool) -> LiveBytes:
    """Look at a step of a device that has the whole model, with gradients in `buckets` or by themselves."""

    def divide(model: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
        if buckets:
            put_gradients_in_buckets(model, config.microbatches)
        return model, lambda: None

    with _context(config) as (context, _):
        return dry_run.live_bytes(context, setup.make_task(context), CPU, divide, foreach=True)


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
        return sharded_module.live_bytes(context, task, CPU, found, made, recorder, foreach=True)


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
            return dry_run.live_bytes(context, setup.make_task(context), CPU, divide, foreach=True)
        except Exception as error:
            raise ConfigError(finding.failure(context, found, error)) from error


# How each strategy's step is looked at, and whether what is divided goes with the number of devices.
LOOKS: dict[str, tuple[Callable[[Config], LiveBytes], bool]] = {
    "single": (lambda config: copies(config, buckets=False), False),
    "ddp": (lambda config: copies(config, buckets=True), False),
    "fsdp": (shards, True),
    "tensor_parallel": (parts, False),
}


def laws(
    words: Sequence[str], strategy: str, devices: Sequence[int], microbatches: int
) -> Iterator[tuple[int, Law | str, float]]:
    """Yield for each number of devices the law by which they hold what they hold, or why it can't be had.

    Copies and shards have one for all of them; what layers are split into depends on the number. Beside it
    stand the bytes of the whole model's weights.
    """
    look, divided = LOOKS[strategy]
    shared: tuple[Law | str, float] | None = None
    fewest = 0
    for count in devices:
        # What can't be split among few can't be among a multiple of them.
        fails = shared is not None and isinstance(shared[0], str) and count % fewest == 0
        if shared is None or (strategy == "tensor_parallel" and not fails):
            fewest = count
            points = [(count, samples) for samples in SAMPLES]
            points += [(2 * count, SAMPLES[0])] if divided else []
            configs = {point: config_of(words, strategy, *point, microbatches) for point in points}
            shared = _law(configs, look)
        yield count, *shared


def _law(
    configs: Mapping[tuple[int, int], Config], look: Callable[[Config], LiveBytes]
) -> tuple[Law | str, float]:
    try:
        with warnings.catch_warnings():
            # What a run prints once is of no use here.
            warnings.simplefilter("ignore")
            with _context(next(iter(configs.values()))) as (context, _):
                model = setup.build(context, _ignore)
            whole = float(sum(each.nbytes for each in model.parameters()))
            looked_at = {point: look(config).sizes for point, config in configs.items()}
            return Law.of(looked_at, share_of(model)), whole
    except ConfigError as error:
        return str(error), 0.0
    except (CommandError, OSError, MemoryError):
        raise
    except Exception as error:
        # Whatever a model's code makes of tensors without data, it can't be looked at.
        said = (str(error).strip().splitlines() or [""])[0]
        return f"it can't be looked at without data: {type(error).__name__}: {said}", 0.0


@contextmanager
def _context(config: Config) -> Iterator[tuple[RankContext, Recorder]]:
    with tempfile.TemporaryDirectory(prefix="scaleguide-") as folder:
        arrays = prepared.load(config.dataset)
        context = RankContext(config, 0, config.workers, arrays, Path(folder), (0,))
        recorder = Recorder(config, 0, Path(folder, "rank"), started=time.time(), probes=False)
        yield context, recorder


def _ignore(text: str) -> None:
    """Take a note of a model that the user hears of when it runs."""
