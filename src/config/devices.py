"""Check that a run can have what it asks for: devices here or on a cluster's hosts, speeds, a compiler."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from src.config import import_paths
from src.config.emulated_links import check_crosses_hosts
from src.config.mistakes import CannotRunHere, ConfigError
from src.config.run_config import Config
from src.machine import devices, quota

# Keys of hardware that say something of a cluster alone.
OF_CLUSTERS = ("address", "token_file", "hosts")


def check_devices(config: Config) -> None:
    """Raise `CannotRunHere` where the machine lacks a device for each worker; a cluster has others."""
    if config.on_cluster:
        return
    kind, per_device = config.hardware.device, config.hardware.cores_per_device
    all_devices = devices.find(kind, per_device)
    count = len(all_devices)
    if not count and kind == "gpu":
        raise CannotRunHere("hardware.device=gpu: no NVIDIA GPU is found here; choose hardware.device=cpu")
    if not count:
        raise CannotRunHere(
            f"hardware.cores_per_device={per_device}: this process may use "
            f"{len(devices.usable_cores())} core(s); choose at most that"
        )
    numbers = config.hardware.devices
    known = [device.index for device in all_devices]
    if numbers is not None and not set(numbers) <= set(known):
        raise CannotRunHere(
            f"hardware.devices={numbers}: the {kind} devices here are {', '.join(map(str, known))}"
        )
    if config.hardware.share_devices:
        return
    if numbers is not None and config.workers > len(numbers):
        raise ConfigError(
            f"hardware.devices={numbers}: workers={config.workers} need {config.workers} devices; name as "
            "many, or leave the choice open with hardware.devices=null"
        )
    if config.workers > count:
        noun = f"{kind} device(s)" + (f" of {per_device} core(s)" if kind == "cpu" else "")
        on_cores = kind == "gpu" and config.workers <= len(devices.find("cpu", per_device))
        raise CannotRunHere(
            f"workers={config.workers}: there are {count} {noun} here; choose workers={count}, "
            f"{'hardware.device=cpu, ' if on_cores else ''}or hardware.share_devices=true to check "
            "correctness only"
        )


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


def check_speeds(config: Config) -> None:
    """Raise `ConfigError` unless `hardware.speeds` has a speed for each worker, and can slow devices here."""
    speeds = config.hardware.speeds
    if speeds is None:
        return
    key = f"hardware.speeds={speeds}"
    if len(speeds) != config.workers:
        raise ConfigError(f"{key}: has {len(speeds)} entries, and workers={config.workers} need one each")
    if not all(isinstance(speed, int | float) and 0 < speed <= 1 for speed in speeds):
        raise ConfigError(f"{key}: must be above 0 and at most 1, a device's full speed")
    if config.hardware.device != "cpu":
        raise ConfigError(f"{key}: slows CPU devices down; choose hardware.device=cpu")
    if any(speed < 1 for speed in speeds):
        try:
            quota.find()
        except quota.NotAllowed as error:
            raise CannotRunHere(f"{key}: {error}") from error


def check_compiler(config: Config) -> None:
    """Raise `CannotRunHere` where a model is to be compiled and torch finds no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if config.strategy.get("compile", False) and shutil.which(compiler) is None:
        raise CannotRunHere(
            f"strategy.compile=true: torch.compile needs a C++ compiler, and there is no {compiler} here; "
            "install one, name yours by the variable CXX, or choose strategy.compile=false"
        )
