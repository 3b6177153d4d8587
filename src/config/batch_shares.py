"""Divide a batch into whole shares, in proportion to workers' speeds or as the user has typed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from src.config.mistakes import ConfigError
from src.config.run_config import Config


def apportion(batch: int, speeds: Sequence[float], least: int = 1) -> list[int]:
    """Return whole shares of `batch` samples in proportion to `speeds`, one for each speed.

    Samples that rounding down leaves over go to the shares with the largest remainders (Hamilton's method). A
    share that would have fewer than `least` samples gets `least`, and the others divide the rest.
    """
    exact: dict[int, float] = {}
    while len(exact) < len(speeds):
        others = [worker for worker in range(len(speeds)) if worker not in exact]
        spare, total = batch - sum(exact.values()), sum(speeds[worker] for worker in others)
        low = {worker: float(least) for worker in others if spare * speeds[worker] / total < least}
        exact |= low or {worker: spare * speeds[worker] / total for worker in others}
    shares = [int(exact[worker]) for worker in range(len(speeds))]
    short = batch - sum(shares)
    for worker in sorted(exact, key=lambda w: (shares[w] - exact[w], w))[:short]:
        shares[worker] += 1
    return shares


def check_batch_shares(config: Config) -> None:
    """Raise `ConfigError` unless the strategy and the workers can have the configured `batch_shares`."""
    shares, name = config.batch_shares, config.strategy["name"]
    if shares == "equal":
        return
    key = f"batch_shares={shares}"
    # True, or the options under which workers have shares of their own.
    supports = config.supports.batch_shares
    if not supports:
        raise ConfigError(f"{key}: workers of strategy {name} have no shares of a batch; leave it away")
    if isinstance(supports, Mapping) and any(config.strategy[k] != v for k, v in supports.items()):
        when = ", ".join(f"strategy.{option}={value}" for option, value in supports.items())
        raise ConfigError(
            f"{key}: workers of strategy {name} are asynchronous; choose {when}, or leave it away"
        )
    if config.batchnorm == "sync":
        raise ConfigError(f"{key}: batchnorm=sync needs batch_shares=equal")
    if not isinstance(shares, str):
        _check_typed_shares(config, list(shares))


def _check_typed_shares(config: Config, shares: Sequence[int]) -> None:
    """Raise `ConfigError` unless `shares` has a share for each worker, and they add up to a global batch."""
    key, least = f"batch_shares={shares}", config.microbatches
    if len(shares) != config.workers:
        raise ConfigError(f"{key}: has {len(shares)} entries, and workers={config.workers} need one each")
    if not all(isinstance(share, int) and share >= least for share in shares):
        raise ConfigError(f"{key}: must be whole numbers of samples, at least microbatches={least} each")
    if sum(shares) != config.global_batch:
        nearest = apportion(config.global_batch, shares, least)
        raise ConfigError(
            f"{key}: adds up to {sum(shares)}, and a step takes {config.global_batch} samples; the nearest "
            f"is [{','.join(map(str, nearest))}]"
        )
