"""An NVIDIA driver as `pynvml` shows it, for machines that have none."""

from __future__ import annotations


class Driver:
    """Stands in for the module `pynvml`, with the driver of a machine that has these GPUs and a MIG instance.

    Attributes:
        lost: the index of a GPU that has fallen off its bus, `None` for no such GPU.
        is_loaded: whether there is a driver at all.
    """

    class NVMLError(Exception):
        """The error of a call that the driver refuses."""

    def __init__(self, *uuids: str) -> None:
        """Have GPUs with these UUIDs."""
        self._uuids = uuids
        self.lost: int | None = None
        self.is_loaded = True

    def nvmlInit(self) -> None:
        """Connect to the driver."""
        if not self.is_loaded:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:
        """Return the number of GPUs."""
        return len(self._uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        """Return the handle of a GPU."""
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        """Return the handle of the MIG instance."""
        if uuid != "MIG-7":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        """Return the UUID of a GPU."""
        if handle == self.lost:
            raise self.NVMLError("GPU is lost")
        return self._uuids[handle]
