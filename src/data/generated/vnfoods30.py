"""Write a stand-in for 30VNFoods in its format: a zip of folders Train, Validate and Test of JPEGs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from src.data.generated.archive_files import write_zip
from src.data.generated.photographs import photographs
from src.data.generated.randomness import Stream
from src.data.generated.scenes import Difficulty
from src.data.generated.split_sizes import LEAST_TEST, scaled, share, spread

ARCHIVE = "archive.zip"
IMAGES = {"Train": 17_581, "Validate": 2_515, "Test": 5_040}
NAMES = (
    "Banh beo", "Banh bot loc", "Banh can", "Banh canh", "Banh chung", "Banh cuon", "Banh duc", "Banh gio",
    "Banh khot", "Banh mi", "Banh pia", "Banh tet", "Banh trang nuong", "Banh xeo", "Bun bo Hue",
    "Bun dau mam tom", "Bun mam", "Bun rieu", "Bun thit nuong", "Ca kho to", "Canh chua", "Cao lau",
    "Chao long", "Com tam", "Goi cuon", "Hu tieu", "Mi quang", "Nem chua", "Pho", "Xoi xeo",
)  # fmt: skip
# Sizes of pictures on the web.
SIZES = ((480, 360), (360, 480), (500, 333), (400, 300), (300, 300), (500, 280), (400, 400), (275, 183))
DIFFICULTY = Difficulty(values=(10, 2, 2, 1), shade=20, noise=10, figures=1)


def write(target: Path, *, fraction: float, seed: int, options: dict[str, Any]) -> None:
    """Write archive.zip to the folder `target`: in each split a folder of JPEGs for each of 30 classes.

    It has `fraction` of the official images, but at least 2,000 to train on and 200 to test. Each class has
    equally many, which the original's classes haven't.
    """
    write_zip(target / ARCHIVE, _members(fraction, seed))


def _members(fraction: float, seed: int) -> Iterator[tuple[str, bytes | Path]]:
    """Yield the archive's members."""
    part = share(fraction, IMAGES["Train"])
    for split, official in IMAGES.items():
        counts = spread(scaled(official, part, LEAST_TEST), len(NAMES))
        for label, (name, count) in enumerate(zip(NAMES, counts, strict=True)):
            stream = Stream(seed, f"vnfoods30 {split} {name}")
            images = photographs(stream, [label] * count, SIZES, DIFFICULTY)
            for place, content in enumerate(images):
                yield f"Images/{split}/{name}/{place}.jpg", content
