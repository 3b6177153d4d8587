"""Write JPEG files of scenes in the sizes of photographs."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from src.data.generated.randomness import Stream
from src.data.generated.scenes import Difficulty, draw, grain

# A scene is drawn this many times smaller and enlarged, because photographs have little fine detail.
ENLARGED = 3
# The encoder's settings are part of what is generated; 2 is 4:2:0, as most cameras and sites write.
QUALITY, SUBSAMPLING = 88, 2


def photographs(
    stream: Stream,
    labels: Sequence[int] | np.ndarray,
    sizes: Sequence[tuple[int, int]],
    difficulty: Difficulty,
) -> Iterator[bytes]:
    """Yield a JPEG file's content for each label, each of a random one of the `sizes` (width, height)."""
    for label in labels:
        width, height = sizes[int(stream.integers(0, len(sizes), (1,))[0])]
        shape = (height // ENLARGED, width // ENLARGED)
        [small] = draw(stream, np.array([label], dtype=np.int64), *shape, difficulty)
        large = Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(large, dtype=np.int16) + grain(stream, (height, width, 1), difficulty.noise)
        content = io.BytesIO()
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(
            content, "JPEG", quality=QUALITY, subsampling=SUBSAMPLING, optimize=False
        )
        yield content.getvalue()
