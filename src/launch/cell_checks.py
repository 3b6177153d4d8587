"""Check cells beyond their configuration: whether their processes can be launched, and have their data."""

from __future__ import annotations

from collections.abc import Sequence

from src.config import CannotRunHere, Config, ConfigError
from src.data import available, prepared
from src.data.catalog import fingerprint
from src.launch.launcher import launcher_of
from src.launch.local import isolation
from src.launch.supervise import choose_hosts, exchange_benchmark


def check_launch(config: Config) -> None:
    """Raise `ConfigError` where the cell can't be launched as it is to be; the error knows the cell."""
    try:
        launcher_of(config).check(config)
        isolation.check(config)
        choose_hosts.check(config)
        exchange_benchmark.check(config)
    except CannotRunHere as error:
        error.config = config
        raise


def bring_data(cells: Sequence[Config]) -> None:
    """Fetch and prepare datasets that are missing, and bring them to the hosts of the cells.

    Raises:
        ConfigError: where a step needs more samples than the dataset has.
        DataError: for data that can't be fetched or read.
        HostLost: where a host of a cluster is lost meanwhile.
    """
    for dataset in {fingerprint(cell.dataset): cell.dataset for cell in cells}.values():
        if not dataset.get("in_memory"):
            available.ensure(dataset)
    for cell in cells:
        _check_samples(cell)
        choose_hosts.bring_data(cell)


def _check_samples(config: Config) -> None:
    """Raise `ConfigError` where a step needs more samples than the dataset has."""
    samples = prepared.samples(config.dataset)
    if config.global_batch > samples:
        largest = samples * config.batch // config.global_batch
        raise ConfigError(
            f"batch={config.batch}: one step takes {config.global_batch} samples and "
            f"{config.dataset['name']} has {samples} to train on; choose batch <= {largest}"
        )
