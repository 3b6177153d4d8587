"""Read the rows of an array that is kept in several files, its shards, one after the other.

    row      | 0 1 2 3 4 | 5 6 7 8 9 | 10 11
    file     |  00000    |  00001    | 00002      each mapped into memory, none loaded

Shards are of bounded size, so that a preparation that is cut short keeps those that are finished.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

# Below so many rows a shard, copying row by row beats numpy's indexed read, which needs a second copy here.
FEW_ROWS = 64


class Rows(Protocol):
    """An array [rows, ...] that is read by rows: numpy's, or one in shards."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of rows, and the shape of each."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the elements."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class ShardedArray:
    """An array [rows, ...] in shards, which is read by a number, a slice or indices of rows as numpy's is."""

    def __init__(self, shards: Sequence[np.ndarray], *, announced: bool = False) -> None:
        """Join `shards`, one or more arrays of the same type whose rows have the same shape.

        `announced` says that they are maps which memory may not hold all of: the kernel is then told which
        rows are about to be read. It reads each as a whole, and not by the page as it is missed, which in a
        cgroup that is full takes thirty times as long.
        """
        self._shards = tuple(shards)
        self._announced = announced
        self._addresses = [shard.ctypes.data for shard in self._shards]
        self._row_bytes = self._shards[0].strides[0]
        self._ends = np.cumsum([len(shard) for shard in self._shards])
        self._starts = self._ends - [len(shard) for shard in self._shards]
        self.shape: tuple[int, ...] = (int(self._ends[-1]), *self._shards[0].shape[1:])
        self.dtype = self._shards[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> Any:
        """Return a row [...], or the rows [rows, ...] of a slice, or [*indices, ...] of an array of indices.

        A slice within one shard is a view of its file; all else is a copy.

        Raises:
            IndexError: for a row that isn't there, or anything else than whole numbers.
        """
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                return self[np.arange(start, stop, step)]
            shards = self._cut(start, stop)
            if self._announced:
                for shard in shards:
                    _announce(shard.ctypes.data, shard.nbytes)
            return shards[0] if len(shards) == 1 else np.concatenate(shards)
        indices = np.asarray(rows)
        if isinstance(rows, tuple) or (indices.size and indices.dtype.kind not in "iu"):
            raise IndexError(f"rows are read by whole numbers or slices of them, not by {rows!r}")
        indices = indices.astype(np.int64, copy=False)
        if len(self._shards) == 1 and not self._announced:
            return self._shards[0][indices]
        return self._gather(indices.ravel()).reshape(*indices.shape, *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Load all rows, for numpy's functions."""
        return np.array(self[:], dtype=dtype, copy=copy)

    def part(self, rows: slice) -> ShardedArray:
        """Return the array of a contiguous part of the rows; none is read."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"a part is contiguous, got {rows}")
        return ShardedArray(self._cut(start, stop), announced=self._announced)

    def _cut(self, start: int, stop: int) -> list[np.ndarray]:
        """Return the parts of the shards that hold the rows from `start` to before `stop`; at least one."""
        inside = [
            shard[max(start - first, 0) : stop - first]
            for shard, first, end in zip(self._shards, self._starts, self._ends, strict=True)
            if max(first, start) < min(end, stop)
        ]
        return inside or [self._shards[0][:0]]

    def _gather(self, indices: np.ndarray) -> np.ndarray:
        """Copy the rows [indices, ...] of indices [indices] out of several shards."""
        count = len(self)
        if indices.size and not -count <= indices.min() <= indices.max() < count:
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {count}")
        indices = np.where(indices < 0, indices + count, indices)
        shards = np.searchsorted(self._ends, indices, side="right")
        inside = indices - self._starts[shards] if indices.size else indices
        if self._announced:
            for shard, row in zip(shards.tolist(), inside.tolist(), strict=True):
                _announce(self._addresses[shard] + row * self._row_bytes, self._row_bytes)
        used = np.unique(shards)
        if len(used) == 1:
            return self._shards[used[0]][inside]
        read = np.empty((len(indices), *self.shape[1:]), self.dtype)
        if len(indices) < FEW_ROWS * len(used):
            for place, (shard, row) in enumerate(zip(shards.tolist(), inside.tolist(), strict=True)):
                read[place] = self._shards[shard][row]
        else:
            for shard in used:
                places = np.flatnonzero(shards == shard)
                read[places] = self._shards[shard][inside[places]]
        return read


def _announce(address: int, size: int) -> None:
    """Tell the kernel by madvise(2) that a part of a map is about to be read."""
    begin = address - address % mmap.PAGESIZE
    # It is advice: what the kernel answers changes no result.
    _madvise(begin, address + size - begin, mmap.MADV_WILLNEED)


_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
