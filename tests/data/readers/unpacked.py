"""Make archives by hand, and unpack them as a dataset's preparation does: a folder for each."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from PIL import Image

from src.data import archives

MOST_BYTES, MOST_FILES = 1 << 32, 1 << 16


def pack(archive: Path, members: dict[str, bytes]) -> Path:
    """Write a zip or a gzipped tar, as the archive's name says."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in members.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(archive, "w:gz") as tar:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return archive


def unpack(folder: Path, raw: Path) -> Path:
    """Unpack each archive in `folder` to a folder of its name without its suffix in `raw`."""
    for archive in folder.iterdir():
        name = archive.name.removesuffix(".zip").removesuffix(".tgz").removesuffix(".tar.gz")
        archives.unpack(archive, raw / name, most_bytes=MOST_BYTES, most_files=MOST_FILES)
    return raw


def encoded(image: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    """Return the image as a file's content."""
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()
