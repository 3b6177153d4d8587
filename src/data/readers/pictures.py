"""Decode image files, and bring images to the size at which they are trained on."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# A JPEG may be decoded at a half, a quarter or an eighth of its size, but not below this many times the
# size that is asked for, so that the loss of detail can't be seen (Pillow's `reducing_gap`).
REDUCING_GAP = 2
# Pillow knows more, some of which start other programs; files of datasets are these, whatever their names.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
WHITE = (255, 255, 255, 255)


class DamagedPicture(Exception):
    """An image file that can't be decoded; its text is the reason, a few words."""


def decode(content: bytes, size: int) -> np.ndarray:
    """Decode an image file to uint8 [size, size, 3] in RGB.

    The image is turned as its EXIF orientation says; its shorter side is resized to `size`, by bilinear
    interpolation over all pixels that count, and the middle of its longer side is kept. Grey images, palettes
    and CMYK become RGB; what is transparent becomes white.

    Raises:
        DamagedPicture: for a file that is cut short or corrupt, in none of FORMATS, or of so many pixels
            that it must be a decompression bomb.
    """
    with opened(content) as image:
        image.draft(None, (REDUCING_GAP * size, REDUCING_GAP * size))
        return np.asarray(fit(to_rgb(ImageOps.exif_transpose(image)), size))


def is_picture(file: Path) -> bool:
    """Return whether a file begins as an image in one of FORMATS does, whatever its name; but for TIFF.

    Raw files of cameras begin as TIFF does, and are no images yet.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file, formats=FORMATS[:-1]):
                return True
    except Image.DecompressionBombError:
        return True
    except Exception:
        return False


@contextmanager
def opened(content: bytes) -> Iterator[Image.Image]:
    """Open an image file, to be decoded within; raise DamagedPicture, as `decode`, where that fails."""
    try:
        with warnings.catch_warnings():
            # Pillow warns of many pixels and refuses twice as many; here both are refused.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                yield image
    except MemoryError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DamagedPicture(f"it has more than {Image.MAX_IMAGE_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise DamagedPicture(f"it is no {', '.join(FORMATS)} image") from error
    # A decoder that meets corrupt bytes fails in many ways: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise DamagedPicture(f"{error}" or type(error).__name__) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in RGB, what is transparent on white."""
    if image.mode.startswith("I;16"):
        # Pillow would clip 16 bits to 8, not scale them.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        # It would clip these, too.
        raise DamagedPicture("its pixels are numbers of 32 bits, of which nobody knows the greatest")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        ground = Image.new("RGBA", image.size, WHITE)
        return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def fit(image: Image.Image, size: int) -> Image.Image:
    """Return the middle square of the image, resized to `size` pixels a side."""
    return ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


def resized(images: np.ndarray, size: int | None) -> np.ndarray:
    """Return images, uint8 [n, height, width, 3], as uint8 [n, size, size, 3], or as they are for `None`."""
    if size is None or images.shape[1:3] == (size, size):
        return images
    return np.stack([np.asarray(fit(Image.fromarray(image), size)) for image in images])
