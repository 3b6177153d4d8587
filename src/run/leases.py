"""Take the devices of a command's cells, at once or as soon as others have ended with them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from src.config import Config, ConfigError
from src.config.mistakes import CommandError
from src.machine import device_locks
from src.machine.device_locks import Lease, NoFolder, Request, Taken

POLL_SECONDS = 0.2


class WaitedTooLong(CommandError):
    """The error where devices are still taken after `hardware.wait_minutes`; its text is one sentence."""


def request_of(config: Config) -> Request:
    """Return the devices that a run needs: one a worker."""
    hardware = config.hardware
    return Request(
        kind=hardware.device,
        cores_per_device=hardware.cores_per_device,
        numbers=None if hardware.devices is None else tuple(hardware.devices),
        shared=hardware.share_devices,
        # Devices of a cluster's hosts are taken there.
        count=0 if config.on_cluster else config.workers,
    )


def take(cells: Sequence[Config], *, wait_for_named: bool = False) -> Lease:
    """Take all devices that the cells of a command need, for as long as the command runs.

    Where too few are free this waits, and prints a line that says for whom.

    Args:
        cells: the cells, at least one.
        wait_for_named: whether devices that `hardware.devices` names are waited for, too.

    Raises:
        ConfigError: if `hardware.devices` names a device that is taken.
        WaitedTooLong: after the cells' longest `hardware.wait_minutes`.
    """
    requests = [request_of(cell) for cell in cells]
    named = [request for request in requests if request.numbers is not None]
    minutes = max(cell.hardware.wait_minutes for cell in cells)
    begun = time.monotonic()
    said = None
    while True:
        try:
            lease = device_locks.take(requests)
            lease.waited_seconds = time.monotonic() - begun
            return lease
        except NoFolder as error:
            raise ConfigError(str(error)) from error
        except Taken as error:
            if named and not wait_for_named:
                raise ConfigError(f"hardware.devices={list(named[0].numbers or ())}: {error}") from error
            if time.monotonic() >= begun + 60 * minutes:
                raise WaitedTooLong(
                    f"waited {minutes:g} minutes (hardware.wait_minutes) for devices: {error}"
                ) from error
            if said != str(error):
                said = str(error)
                print(
                    f"waiting for devices, at most {minutes:g} minutes: {said}", file=sys.stderr, flush=True
                )
        time.sleep(POLL_SECONDS)
