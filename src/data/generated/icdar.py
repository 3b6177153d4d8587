"""Write stand-ins for the archives of ICDAR 2015 and 2013: scenes with made-up words, and where they are."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from src.data.generated.archive_files import write_zip
from src.data.generated.randomness import Draws
from src.data.generated.split_sizes import LEAST_TEST, LEAST_TRAIN, scaled, share
from src.data.generated.text_scene import Style, Word, draw_scene
from src.data.readers.icdar import UNREADABLE
from src.machine.devices import usable_cores

LEAST = {"train": LEAST_TRAIN, "test": LEAST_TEST}
JPEG_QUALITY = 80
# Scenes that are drawn at once; they wait in memory until they are written.
BATCH = 64

STYLES = {
    "quadrilaterals": Style(upright=False, sizes=(28, 76), signs=(3, 6), unreadable=3),
    "boxes": Style(upright=True, sizes=(40, 150), signs=(1, 4), unreadable=0),
}
# Width and height. ICDAR 2015 is by one camera; 2013's sizes are a choice of the original's.
SIZES = {
    "quadrilaterals": ((1280, 720),),
    "boxes": ((640, 480), (1024, 768), (1280, 960), (960, 1280), (1600, 1200)),
}


def write(target: Path, *, fraction: float, seed: int, options: Mapping[str, Any]) -> None:
    """Write the four archives to the folder `target`.

    Of `options`, `folders`, `counts` and `layout` are as the reader takes them. The splits have `fraction` of
    the original's numbers of images, but at least 2,000 to train on and 200 to test, or all.
    """
    official = options["counts"]
    part = share(fraction, official["train"])
    target.mkdir(parents=True, exist_ok=True)
    for split, (images, truths) in options["folders"].items():
        count = scaled(official[split], part, LEAST[split])
        texts: list[tuple[str, bytes]] = []
        write_zip(target / f"{images}.zip", _images(seed, options["layout"], split, count, texts))
        write_zip(target / f"{truths}.zip", texts)


def _images(
    seed: int, layout: str, split: str, count: int, texts: list[tuple[str, bytes]]
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each image, and add those of its text file to `texts`."""
    with ThreadPoolExecutor(len(usable_cores())) as pool:
        for first in range(0, count, BATCH):
            places = range(first, min(count, first + BATCH))
            for place, (jpeg, text) in zip(
                places, pool.map(partial(_draw, seed, layout, split), places), strict=True
            ):
                # Images are called so in the original.
                name = f"{place + 100}" if (layout, split) == ("boxes", "train") else f"img_{place + 1}"
                texts.append((f"gt_{name}.txt", text))
                yield f"{name}.jpg", jpeg


def _draw(seed: int, layout: str, split: str, place: int) -> tuple[bytes, bytes]:
    """Return a scene as a JPEG, and the text file of its words."""
    # A stream of its own, so that it doesn't depend on which thread is first.
    draws = Draws(seed, f"{layout} {split} {place}")
    width, height = draws.pick(SIZES[layout])
    pixels, words = draw_scene(draws, height, width, STYLES[layout])
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY, subsampling="4:2:0")
    lines = "".join(_line(word, layout, split) + "\r\n" for word in words)
    return file.getvalue(), lines.encode("utf-8-sig" if layout == "quadrilaterals" else "ascii")


def _line(word: Word, layout: str, split: str) -> str:
    """Return the line of a word as the original's text files write it."""
    text = word.text or UNREADABLE
    if layout == "quadrilaterals":
        return ",".join(str(each) for corner in word.corners for each in corner) + f",{text}"
    (left, top), _, (right, bottom), _ = word.corners
    separator = " " if split == "train" else ", "
    return separator.join(map(str, (left, top, right, bottom, f'"{text}"')))
