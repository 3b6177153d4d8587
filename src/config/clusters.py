"""Check a run on hosts of a cluster: what its keys say, and what can't be had there."""

from __future__ import annotations

from pathlib import Path

from src.config import import_paths
from src.config.emulated_links import check_crosses_hosts
from src.config.mistakes import ConfigError
from src.config.run_config import Config

# Keys of hardware that say something of a cluster alone.
OF_CLUSTERS = ("address", "token_file", "hosts")


def check_cluster(config: Config) -> None:
    """Raise `ConfigError` where a run can't be on a cluster as configured, or none is configured."""
    hardware = config.hardware
    key = f"hardware={hardware.name}"
    if hardware.engine is None:
        for name in OF_CLUSTERS:
            if hardware[name] is not None:
                raise ConfigError(
                    f"hardware.{name}={hardware[name]}: is of a cluster's hosts; choose hardware=cluster"
                )
        return
    import_paths.check("hardware.engine", hardware.engine)
    if config.workers > 1 or config.supports.hosts:
        check_crosses_hosts(config)
    if hardware.speeds is not None:
        raise ConfigError(
            f"hardware.speeds={hardware.speeds}: {key} has other machines' devices; leave it away"
        )
    if hardware.devices is not None:
        raise ConfigError(
            f"hardware.devices={hardware.devices}: {key} takes any free devices there; leave it away"
        )
    if hardware.isolate == "always":
        raise ConfigError(
            f"hardware.isolate=always: {key} has processes on several machines, which must reach each other; "
            "leave it away"
        )
    token = hardware.token_file
    if token is not None and not Path(token).expanduser().is_file():
        raise ConfigError(f"hardware.token_file={token}: no such file")
