"""Write archives whose bytes depend on their members alone, not on the time, the user or the machine."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from src.run.tables import written_whole

# Photographs and noise hardly shrink.
LEVEL = 1
MODE = 0o644


def write_tar_gz(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Write a gzipped tar archive of (name, content) members to `path`, which appears once it is whole."""
    with (
        written_whole(path) as partial,
        partial.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=LEVEL, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), MODE
            archive.addfile(member, io.BytesIO(content))


def write_zip(path: Path, members: Iterable[tuple[str, bytes | Path]]) -> None:
    """Write a deflated zip archive to `path`, which appears once it is whole.

    Members are (name, content) or (name, path of a file that has it).
    """
    with (
        written_whole(path) as partial,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive,
    ):
        for name, content in members:
            source = content.open("rb") if isinstance(content, Path) else io.BytesIO(content)
            # A member that is opened by its name has the date 1980-01-01.
            with source, archive.open(name, "w", force_zip64=isinstance(content, Path)) as member:
                shutil.copyfileobj(source, member)
