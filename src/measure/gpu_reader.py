"""Read utilisation, memory and power of one GPU by NVML, each for itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from src.machine.devices import Device

Figure = TypeVar("Figure")


class GPUReader:
    """A reader of one GPU's figures: `None` for one that NVML can't give, whose first failure is printed."""

    def __init__(self, device: Device) -> None:
        """Read the GPU `device`."""
        self._device = device
        self._handle: Any = None
        self._has_failed = False
        # The last reading of the counter of energy: its moment, and joules.
        self._energy: tuple[float, float] | None = None

    def read(self) -> tuple[float | None, int | None, float | None]:
        """Return the utilisation (0 to 1), the memory in use in bytes, and the power in watts.

        The power is the mean since the counter of energy was last read; of a GPU without that counter it is
        the present one.
        """
        import pynvml

        if self._handle is None:
            self._handle = self._attempt(self._open)
        if self._handle is None:
            return None, None, None
        utilization = self._attempt(lambda: pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)
        memory = self._attempt(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used))
        return utilization, memory, self._attempt(self._power)

    def _open(self) -> Any:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(self._device.uuid)

    def _power(self) -> float | None:
        """Return the watts, `None` at the counter's first reading, or where it has gone back."""
        import pynvml

        try:
            joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000
        except pynvml.NVMLError_NotSupported:
            # GPUs before Volta have no counter.
            return float(pynvml.nvmlDeviceGetPowerUsage(self._handle)) / 1000
        now = time.perf_counter()
        before, self._energy = self._energy, (now, joules)
        if before is None or now <= before[0] or joules < before[1]:
            return None
        return (joules - before[1]) / (now - before[0])

    def _attempt(self, figure: Callable[[], Figure]) -> Figure | None:
        """Return a figure, `None` where NVML gives an error."""
        import pynvml

        try:
            return figure()
        except pynvml.NVMLError as error:
            if not self._has_failed:
                self._has_failed = True
                text = f"NVML on gpu{self._device.index}: {error}; trace.csv lacks what it can't tell"
                print(f"  {text}", file=sys.stderr, flush=True)
            return None
