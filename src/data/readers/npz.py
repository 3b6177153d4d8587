"""Map arrays of npz files into memory, or stream them onto the disk first where they are compressed."""

from __future__ import annotations

import shutil
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from src.data.errors import DataError
from src.run.tables import written_whole

# A zip member's own header: 26 bytes, then the lengths of its name and of its extra field
# ("APPNOTE.TXT - .ZIP File Format Specification", PKWARE, section 4.3.7).
LOCAL_HEADER = struct.Struct("<26xHH")
UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, KeyError, ValueError, EOFError)


@dataclass(frozen=True)
class MappedArray:
    """An array in C order that lies in a file; it can be pickled, and is mapped by whoever reads it.

    Attributes:
        path: the file.
        offset: the first byte of its values.
        shape: its shape.
        dtype: the type of its values, as numpy writes it: "|u1".
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def map(self) -> np.ndarray:
        """Map the array, read-only."""
        return np.memmap(self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=self.shape)


def map_member(npz: Path, name: str) -> MappedArray:
    """Return the array called `name` of an npz file, without loading it.

    A compressed one is written to NPZ.NAME.npy beside the npz file first, unless it is there already.

    Raises:
        DataError: if the file is no npz file, has no such array, or one of Python objects or in Fortran's
            order, or ends before its last value.
    """
    try:
        with zipfile.ZipFile(npz) as archive:
            member = archive.getinfo(f"{name}.npy")
            if member.compress_type == zipfile.ZIP_STORED:
                return _header(npz, _first_byte(npz, member), member.file_size)
            unpacked = npz.with_name(f"{npz.name}.{name}.npy")
            if not unpacked.exists() or unpacked.stat().st_size != member.file_size:
                with (
                    archive.open(member) as source,
                    written_whole(unpacked) as partial,
                    partial.open("wb") as target,
                ):
                    shutil.copyfileobj(source, target, 1 << 20)
            return _header(unpacked, 0, member.file_size)
    except UNREADABLE as error:
        raise DataError(f"{npz} has no readable array {name!r}: {error}") from error


def load_member(npz: Path, name: str) -> np.ndarray:
    """Load the array called `name` of an npz file; raise DataError as `map_member` does."""
    try:
        # np.load never runs what a pickle says unless it is told to.
        with np.load(npz, allow_pickle=False) as arrays:
            return arrays[name]
    except UNREADABLE as error:
        raise DataError(f"{npz} has no readable array {name!r}: {error}") from error


def _first_byte(npz: Path, member: zipfile.ZipInfo) -> int:
    """Return where a stored member's content begins in the npz file."""
    with npz.open("rb") as file:
        file.seek(member.header_offset)
        name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    return member.header_offset + LOCAL_HEADER.size + name + extra


def _header(path: Path, start: int, length: int) -> MappedArray:
    """Read the npy header at byte `start` of a file, of an array that is `length` bytes long with it."""
    with path.open("rb") as file:
        file.seek(start)
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"npy files of version {version} aren't read")
        shape, fortran, dtype = read(file)
        offset = file.tell()
    if dtype.hasobject or (fortran and len(shape) > 1):
        raise ValueError(f"it holds {'Python objects' if dtype.hasobject else 'columns first'}")
    needed = offset - start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if needed != length or start + length > path.stat().st_size:
        raise ValueError(f"its header promises {needed:,} bytes, it has {length:,}")
    return MappedArray(path, offset, shape, dtype.str)
