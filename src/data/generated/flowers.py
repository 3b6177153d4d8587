"""Write a stand-in for the flower photographs of TensorFlow's tutorials in their format: a tar of JPEGs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from src.data.generated.archive_files import write_tar_gz
from src.data.generated.photographs import photographs
from src.data.generated.randomness import Stream
from src.data.generated.scenes import Difficulty
from src.data.generated.split_sizes import scaled, share

ARCHIVE = "flower_photos.tgz"
# The official number of images of each class. A fifth of them is for testing.
IMAGES = {"daisy": 633, "dandelion": 898, "roses": 641, "sunflowers": 699, "tulips": 799}
TRAIN = 2935
# Sizes that are frequent among medium-sized photographs of Flickr.
SIZES = ((320, 240), (240, 320), (320, 213), (500, 333), (333, 500), (500, 375), (240, 180), (320, 320))
LICENCE = "These images are generated. They show no flowers, and stand in for flower_photos.tgz.\n"
DIFFICULTY = Difficulty(values=(2, 2, 2, 2), shade=37, noise=16, figures=1)


def write(target: Path, *, fraction: float, seed: int, options: dict[str, Any]) -> None:
    """Write flower_photos.tgz to the folder `target`: a folder of JPEGs for each class, and LICENSE.txt.

    It has `fraction` of the official images, but at least 2,503, of which 2,004 are for training.
    """
    write_tar_gz(target / ARCHIVE, _members(fraction, seed))


def _members(fraction: float, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield the archive's members."""
    part = share(fraction, TRAIN)
    yield "flower_photos/LICENSE.txt", LICENCE.encode()
    for label, (name, official) in enumerate(IMAGES.items()):
        stream = Stream(seed, f"flowers {name}")
        images = photographs(stream, [label] * scaled(official, part), SIZES, DIFFICULTY)
        for place, content in enumerate(images):
            yield f"flower_photos/{name}/{place:010d}_{label:010x}.jpg", content
