"""Write stand-ins for the archives of ICDAR 2015 and 2013: scenes with made-up words, and where they are."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from src.data.generated.draws import Draws
from src.data.generated.text_scene import Style, Word, draw_scene
from src.data.readers.icdar_truth import UNREADABLE
from src.machine.devices import usable_cores

LEAST_TRAINING_IMAGES = 2000
JPEG_QUALITY = 80
MADE = (1980, 1, 1, 0, 0, 0)  # the date of each file in an archive
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
# What images are called, and how a line of a text file is written.
NAMES = {
    ("quadrilaterals", "train"): lambda place: f"img_{place + 1}",
    ("quadrilaterals", "test"): lambda place: f"img_{place + 1}",
    ("boxes", "train"): lambda place: f"{place + 100}",
    ("boxes", "test"): lambda place: f"img_{place + 1}",
}


def write(target: Path, *, fraction: float, seed: int, options: Mapping[str, Any]) -> None:
    """Write the four archives to the folder `target`.

    Of `options`, `folders`, `images` and `layout` are as the reader takes them. The splits have `fraction` of
    the original's numbers of images, but the training split at least 2,000 images or all.
    """
    official = options["images"]
    training = min(official["train"], max(LEAST_TRAINING_IMAGES, round(fraction * official["train"])))
    target.mkdir(parents=True, exist_ok=True)
    for number, (split, folders) in enumerate(options["folders"].items()):
        count = max(1, round(official[split] * training / official["train"]))
        # A stream of random numbers for each image, so that none depends on which thread is first.
        streams = range(number << 32, (number << 32) + count)
        images, truths = (target / f"{folder}.zip" for folder in folders)
        _write_split(images, truths, seed, streams, options["layout"], split)


def _write_split(images: Path, truths: Path, seed: int, streams: range, layout: str, split: str) -> None:
    name = NAMES[layout, split]
    with (
        zipfile.ZipFile(images, "w") as pictures,
        zipfile.ZipFile(truths, "w") as texts,
        ThreadPoolExecutor(len(usable_cores())) as pool,
    ):
        for first in range(0, len(streams), BATCH):
            scenes = pool.map(partial(_draw, seed, layout, split), streams[first : first + BATCH])
            for place, (jpeg, text) in enumerate(scenes, start=first):
                pictures.writestr(zipfile.ZipInfo(f"{name(place)}.jpg", MADE), jpeg)
                texts.writestr(zipfile.ZipInfo(f"gt_{name(place)}.txt", MADE), text)


def _draw(seed: int, layout: str, split: str, stream: int) -> tuple[bytes, bytes]:
    """Return a scene as a JPEG, and the text file of its words."""
    draws = Draws(seed, stream)
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
