"""Launch a single TensorFlow process that holds the devices of all workers, without a cluster."""

from __future__ import annotations

from src.config import Config, ConfigError
from src.launch.hosts import Hosts
from src.launch.launcher import LocalLauncher
from src.launch.process_spec import ProcessSpec, rank_spec
from src.launch.spawn import QUIET


class SingleProcess(LocalLauncher):
    """A launcher of one process for all workers."""

    def check(self, config: Config) -> None:
        """Raise `ConfigError` where workers have speeds of their own, which one process can't give them."""
        if config.hardware.speeds is not None and config.workers > 1:
            name, speeds = config.strategy["name"], config.hardware.speeds
            raise ConfigError(f"hardware.speeds={speeds}: strategy {name} has all its devices in one process")

    def process_specs(self, config: Config, hosts: Hosts) -> list[ProcessSpec]:
        """Return the only process, rank 0 of 1."""
        return [rank_spec(0, 1, tuple(range(config.workers)), QUIET)]
