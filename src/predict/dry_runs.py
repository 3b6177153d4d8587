"""Compose the runs whose steps are looked at without running them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

from src.config import Config, ConfigError, command_line, compose
from src.predict.asked import DIVIDE_SAMPLES, HERE, HYBRID

# Samples of the micro-batches that are looked at: BatchNorm takes no single one of a single pixel.
SAMPLES = (2, 4, 8)


def config_of(words: Sequence[str], strategy: str, devices: int, samples: int, microbatches: int) -> Config:
    """Compose a run by words of a command line, whose devices have so many samples in a micro-batch each.

    Raises:
        ConfigError: for a mistake, or for what isn't looked at.
    """
    copies = devices if strategy in DIVIDE_SAMPLES else 1
    if strategy == HYBRID:
        copies = copies_of(_composed(tuple(words), strategy, devices, devices * microbatches, microbatches))
    # What else there is goes with no number of samples.
    few = SAMPLES[0] * copies * microbatches
    config = _composed(tuple(words), strategy, devices, few, microbatches)
    config = dataclasses.replace(config, batch=copies * microbatches * samples)
    for key, given, plain in (
        ("scaling", config.scaling, "strong"),
        ("batch_shares", config.batch_shares, "equal"),
        ("batchnorm", config.batchnorm, "local"),
        ("strategy.compile", config.strategy.get("compile", False), False),
        ("strategy.speeds", config.strategy.get("speeds"), None),
        ("strategy.compression", config.strategy.get("compression", "none"), "none"),
    ):
        if given != plain:
            raise ConfigError(f"{key}={given}: isn't looked at; leave it away")
    return config


@cache
def _composed(words: tuple[str, ...], strategy: str, devices: int, batch: int, microbatches: int) -> Config:
    kept = [word for word in words if not word.startswith(("batch=", "microbatches=", "dataset.limit="))]
    own = [f"strategy={strategy}", f"workers={devices}", f"batch={batch}", f"microbatches={microbatches}"]
    (found,) = compose.cells(command_line.parse([*kept, *HERE, *own]))
    return found


def copies_of(config: Config) -> int:
    """Return among how many parts of the mesh a batch's samples are divided.

    Raises:
        ConfigError: for stages of shards or parts, which aren't looked at.
    """
    degrees = config.degrees
    if degrees.pipeline > 1 and (degrees.tensor > 1 or degrees.shard > 1):
        name = "tensor" if degrees.tensor > 1 else "shard"
        raise ConfigError(
            f"strategy.pipeline={degrees.pipeline} strategy.{name}={getattr(degrees, name)}: stages of "
            "shards or parts aren't looked at; copies of stages are"
        )
    return degrees.batch
