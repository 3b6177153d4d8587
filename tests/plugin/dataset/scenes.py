"""A dataset from outside of small scenes with words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from src.data.generated.randomness import Draws
from src.data.generated.text_scene import Style, draw_scene
from src.data.samples import ArraySource, Splits

HEIGHT, WIDTH = 96, 128
MOST = 16
STYLE = Style(upright=False, sizes=(120, 260), signs=(1, 2), unreadable=1)


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Images [96, 128, 3] with their words, as ICDAR's datasets have them."""

    def split(name: str, samples: int) -> ArraySource:
        images = np.zeros((samples, HEIGHT, WIDTH, 3), np.uint8)
        corners = np.zeros((samples, MOST, 4, 2), np.float32)
        numbers = np.zeros(samples, np.int64)
        ignored = np.zeros((samples, MOST), np.uint8)
        for sample in range(samples):
            images[sample], words = draw_scene(Draws(0, f"{name} {sample}"), HEIGHT, WIDTH, STYLE)
            numbers[sample] = len(words)
            for place, word in enumerate(words):
                corners[sample, place] = word.corners
                ignored[sample, place] = word.text is None
        return ArraySource((images,), (corners, numbers, ignored))

    return Splits(split("train", 80), split("test", 41), names=("text",))
