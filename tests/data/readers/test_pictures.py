"""Image files of every kind that datasets hold become RGB of one size, and bad ones say why."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from src.data.readers.pictures import DamagedPicture, decode
from tests.data.readers.unpacked import encoded

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def assert_near(pixel: np.ndarray, colour: tuple[int, int, int], most: int = 4) -> None:
    assert np.abs(pixel.astype(int) - colour).max() <= most, pixel


@pytest.mark.parametrize(
    ("image", "form", "expected"),
    [
        (Image.new("L", (20, 10), 77), "JPEG", (77, 77, 77)),
        (Image.new("CMYK", (20, 10), (0, 255, 255, 0)), "JPEG", RED),
        (Image.new("RGB", (20, 10), GREEN).convert("P", palette=Image.Palette.ADAPTIVE), "PNG", GREEN),
        (Image.new("RGB", (20, 10), GREEN).convert("P", palette=Image.Palette.ADAPTIVE), "GIF", GREEN),
        (Image.new("1", (20, 10), 1), "PNG", (255, 255, 255)),
        (Image.new("LA", (20, 10), (0, 0)), "PNG", (255, 255, 255)),
        (Image.new("RGBA", (20, 10), (0, 0, 255, 128)), "PNG", (127, 127, 255)),
        (Image.fromarray(np.full((10, 20), 77 * 256, dtype=np.uint16)), "PNG", (77, 77, 77)),
    ],
)
def test_every_mode_becomes_rgb(image: Image.Image, form: str, expected: tuple[int, int, int]) -> None:
    pixels = decode(encoded(image, form), 8)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (8, 8, 3)
    for pixel in pixels.reshape(-1, 3):
        assert_near(pixel, expected)


def test_a_palettes_transparent_colour_becomes_white() -> None:
    image = Image.new("P", (20, 10), 0)
    image.putpalette([*RED, *BLUE])
    image.paste(1, (10, 0, 20, 10))
    pixels = decode(encoded(image, "PNG", transparency=0), 10)
    assert_near(pixels[5, 1], (255, 255, 255))
    assert_near(pixels[5, 8], BLUE)


def test_the_orientation_that_a_camera_wrote_is_followed() -> None:
    # Red above blue; 6 means that the camera was turned: the first row is the picture's right side.
    image = Image.new("RGB", (32, 32), RED)
    image.paste(BLUE, (0, 16, 32, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = decode(encoded(image, quality=95, subsampling=0, exif=exif), 16)
    assert_near(pixels[8, 2], BLUE, 30)
    assert_near(pixels[8, 13], RED, 30)


@pytest.mark.parametrize("size", [(90, 30), (30, 90)])
def test_the_middle_of_the_longer_side_is_kept(size: tuple[int, int]) -> None:
    # Thirds of red, green and blue along the longer side.
    stripes = np.repeat(np.array([RED, GREEN, BLUE], dtype=np.uint8), 30, axis=0)
    wide = np.broadcast_to(stripes, (30, 90, 3)).copy()
    image = Image.fromarray(wide if size == (90, 30) else wide.transpose(1, 0, 2).copy())
    assert image.size == size
    pixels = decode(encoded(image, "PNG"), 10)
    assert pixels.shape == (10, 10, 3)
    # Pixels at the edge are interpolated with what is cut off.
    assert (pixels[1:-1, 1:-1] == GREEN).all()


def test_a_large_jpeg_decoded_at_reduced_size_looks_as_decoded_whole() -> None:
    y, x = np.mgrid[:800, :1200]
    image = Image.fromarray(
        np.stack([x * 255 // 1200, y * 255 // 800, (x + y) % 256 // 4], axis=2).astype(np.uint8)
    )
    whole = image.crop((200, 0, 1000, 800)).resize((50, 50), Image.Resampling.BOX)
    pixels = decode(encoded(image, quality=95), 50)
    assert np.abs(pixels.astype(int) - np.asarray(whole, dtype=int)).mean() < 2


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header promises far more pixels than it has bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def scribble(form: str) -> bytes:
    pixels = np.arange(100 * 100 * 3, dtype=np.uint32).reshape(100, 100, 3) * 7919 % 251
    return encoded(Image.fromarray(pixels.astype(np.uint8)), form)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is no JPEG"),
        (b"GIF89a", "."),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is no JPEG"),
        (scribble("JPEG")[:300], "."),
        (scribble("JPEG")[:-3000], "truncated"),
        (bomb(10_000, 9_500), "more than 89,478,485 pixels"),
        (bomb(60_000, 60_000), "more than 89,478,485 pixels"),
        (scribble("PNG")[:-600], "truncated"),
    ],
)
def test_a_file_that_is_no_whole_image_says_why(content: bytes, reason: str) -> None:
    with pytest.raises(DamagedPicture, match=reason) as failure:
        decode(content, 8)
    assert " at 0x" not in str(failure.value)
