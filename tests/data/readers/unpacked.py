"""Make archives by hand, and unpack them as a dataset's preparation does: a folder for each."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from PIL import Image


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
        target = raw / archive.name.removesuffix(".zip").removesuffix(".tgz").removesuffix(".tar.gz")
        target.mkdir(parents=True)
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(target)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter="data")
    return raw


def encoded(image: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    """Return the image as a file's content."""
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()
