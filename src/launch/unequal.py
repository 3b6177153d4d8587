"""Whether workers of unequal speed, and unequal shares of a batch, can be had as they were asked for."""

from __future__ import annotations

from collections.abc import Mapping

from src.config import Config, ConfigError
from src.launch import quota
from src.runtime.shares import apportion


def check(config: Config) -> None:
    """Raises `ConfigError` if not."""
    if config.batch_shares != "equal":
        _check_shares(config)
    if config.hardware["speeds"] is not None:
        _check_speeds(config)


def _check_shares(config: Config) -> None:
    shares, name = config.batch_shares, config.strategy["name"]
    key = f"batch_shares={shares}"
    # True, or the options under which workers have shares of their own.
    supports = config.strategy["supports"].get("batch_shares", False)
    if not supports:
        raise ConfigError(f"{key}: workers of strategy {name} have no shares of a batch; leave it away")
    if isinstance(supports, Mapping) and any(config.strategy[k] != v for k, v in supports.items()):
        when = ", ".join(f"strategy.{option}={value}" for option, value in supports.items())
        raise ConfigError(f"{key}: workers of strategy {name} take turns; choose {when}, or leave it away")
    if config.batchnorm == "sync":
        raise ConfigError(f"{key}: batchnorm=sync needs batch_shares=equal")
    if isinstance(shares, str):
        return
    if len(shares) != config.workers:
        raise ConfigError(f"{key}: has {len(shares)} entries, and workers={config.workers} need one each")
    least = config.microbatches
    if not all(isinstance(share, int) and share >= least for share in shares):
        raise ConfigError(f"{key}: must be whole numbers of samples, at least microbatches={least} each")
    if sum(shares) != config.global_batch:
        nearest = apportion(config.global_batch, shares, least)
        raise ConfigError(
            f"{key}: adds up to {sum(shares)}, and a step takes {config.global_batch} samples; the nearest "
            f"is [{','.join(map(str, nearest))}]"
        )


def _check_speeds(config: Config) -> None:
    speeds = config.hardware["speeds"]
    key = f"hardware.speeds={speeds}"
    if len(speeds) != config.workers:
        raise ConfigError(f"{key}: has {len(speeds)} entries, and workers={config.workers} need one each")
    if not all(isinstance(speed, int | float) and 0 < speed <= 1 for speed in speeds):
        raise ConfigError(f"{key}: must be above 0 and at most 1, a device's full speed")
    if config.hardware["device"] != "cpu":
        raise ConfigError(f"{key}: slows CPU devices down; choose hardware.device=cpu")
    if config.strategy["launcher"] == "tensorflow" and config.workers > 1:
        raise ConfigError(f"{key}: strategy {config.strategy['name']} has all its devices in one process")
    if any(speed < 1 for speed in speeds):
        try:
            quota.find()
        except quota.NotAllowed as error:
            raise ConfigError(f"{key}: {error}") from error
