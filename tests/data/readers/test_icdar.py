"""The archives of ICDAR 2015 and 2013 are read as they are published; what can't be used is named."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from src.data.errors import DataError
from src.data.readers import icdar
from src.data.samples import SampleSource, Splits
from tests.support import ROOT

RED, BLUE = (220, 30, 30), (20, 40, 200)
# A photograph's tag that says that it is to be turned by 90 degrees.
TURNED = Image.Exif()
TURNED[0x0112] = 6


def options(name: str, **others: Any) -> dict[str, Any]:
    """Return the options of a dataset's file, for a split of any number of images."""
    dataset = yaml.safe_load((ROOT / "conf/dataset" / f"{name}.yaml").read_text())
    return {**dataset["options"], "size": None, "source": "generated", **others}


def jpeg(width: int = 1280, height: int = 720, mode: str = "RGB", form: str = "JPEG", **saved: Any) -> bytes:
    """Return an image whose left half is red and whose right half is blue."""
    image = Image.new("RGB", (width, height), BLUE)
    image.paste(RED, (0, 0, width // 2, height))
    file = io.BytesIO()
    image.convert(mode).save(file, form, **saved)
    return file.getvalue()


def unpacked(folder: Path, archives: Mapping[str, Mapping[str, bytes | str]]) -> Path:
    """Write archives, zip as the published ones, and unpack each to a folder of its name."""
    for name, files in archives.items():
        with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file, content in files.items():
                archive.writestr(file, content)
        with zipfile.ZipFile(folder / f"{name}.zip") as archive:
            archive.extractall(folder / "raw" / name)
    return folder / "raw"


def icdar2015(folder: Path, truth: str | bytes, image: bytes | None = None, **others: Any) -> SampleSource:
    """Return the test split of ICDAR 2015 with one image and its words."""
    archives = {
        "ch4_training_images": {"img_1.jpg": jpeg()},
        "ch4_training_localization_transcription_gt": {"gt_img_1.txt": ""},
        "ch4_test_images": {"img_1.jpg": jpeg() if image is None else image},
        "Challenge4_Test_Task4_GT": {"gt_img_1.txt": truth},
    }
    return icdar.read(unpacked(folder, archives), options("icdar2015", **others)).test


@pytest.fixture
def splits2015(tmp_path: Path) -> Splits:
    first = "\ufeff377,117,463,117,465,130,378,130,Genaxis Theatre\r\n493,115,519,115,519,131,493,131,###\r\n"
    raw = unpacked(
        tmp_path,
        {
            "ch4_training_images": {"img_1.jpg": jpeg(), "img_10.jpg": jpeg(), "img_2.jpg": jpeg()},
            "ch4_training_localization_transcription_gt": {
                "gt_img_1.txt": first,
                "gt_img_2.txt": "\ufeff",
                "gt_img_10.txt": "\ufeff0,0,20,0,20,10,0,10,1,250,Yên\n\n30,0,40,0,40,10,30,10,\n",
            },
            "ch4_test_images": {"img_1.jpg": jpeg()},
            "Challenge4_Test_Task4_GT": {"gt_img_1.txt": "\ufeff640,360,1280,360,1280,720,640,720,Exit\n"},
        },
    )
    return icdar.read(raw, options("icdar2015"))


def test_icdar_2015_is_read_as_it_is_published(splits2015: Splits) -> None:
    train = splits2015.train.read(0, 3)
    (pixels,), (corners, numbers, ignored) = train.inputs, train.targets
    assert (pixels.shape, pixels.dtype) == ((3, 384, 640, 3), np.uint8)
    assert (corners.shape, corners.dtype) == ((3, 256, 4, 2), np.float32)
    assert (numbers.dtype, ignored.dtype, ignored.shape) == (np.int64, np.uint8, (3, 256))
    # By number: 1, 2, 10. A text may hold commas, or be empty.
    assert numbers.tolist() == [2, 0, 2]
    assert ignored.sum(axis=1).tolist() == [1, 0, 0] and ignored[0, 1] == 1
    # 1280x720 pixels become 640x384.
    first = np.array([[377, 117], [463, 117], [465, 130], [378, 130]]) * [640 / 1280, 384 / 720]
    assert np.allclose(corners[0, 0], first)
    assert np.allclose(corners[2, 0], [[0, 0], [10, 0], [10, 16 / 3], [0, 16 / 3]])
    assert not corners[1].any() and not corners[0, 2:].any()
    test = splits2015.test.read(0, 1)
    assert test.targets[0][0, 0].tolist() == [[320, 192], [640, 192], [640, 384], [320, 384]]
    # The quadrilateral's pixels are those that it was drawn around.
    assert np.abs(test.inputs[0][0, 200:380, 330:630].astype(int) - BLUE).max() <= 4
    assert np.abs(test.inputs[0][0, :, :310].astype(int) - RED).max() <= 4
    assert splits2015.names == ("text",)


def test_any_range_of_a_split_can_be_read_in_another_process(splits2015: Splits) -> None:
    source = pickle.loads(pickle.dumps(splits2015.train))
    assert len(source) == 3
    whole, part = source.read(0, 3), source.read(1, 3)
    for all_of, some_of in zip(whole.inputs + whole.targets, part.inputs + part.targets, strict=True):
        assert np.array_equal(all_of[1:], some_of)


def test_icdar_2013_is_read_with_both_of_its_separators(tmp_path: Path) -> None:
    raw = unpacked(
        tmp_path,
        {
            "Challenge2_Training_Task12_Images": {"100.jpg": jpeg(640, 480)},
            "Challenge2_Training_Task1_GT": {
                "gt_100.txt": '158 128 411 181 "Foot path"\r\n443 128 501 169 "To"\r\n'
            },
            "Challenge2_Test_Task12_Images": {"img_1.jpg": jpeg(1280, 960)},
            "Challenge2_Test_Task1_GT": {"gt_img_1.txt": '38, 43, 920, 215, "Tired, 5 times"\r\n'},
        },
    )
    splits = icdar.read(raw, options("icdar2013"))
    corners, numbers, ignored = splits.train.read(0, 1).targets
    assert numbers.tolist() == [2] and not ignored.any()
    assert corners[0, 0].tolist() == [[158, 128], [411, 128], [411, 181], [158, 181]]
    corners, numbers, _ = splits.test.read(0, 1).targets
    assert numbers.tolist() == [1]
    assert corners[0, 0].tolist() == [[19, 21.5], [460, 21.5], [460, 107.5], [19, 107.5]]


def test_size_makes_images_square(tmp_path: Path) -> None:
    source = icdar2015(tmp_path, "0,0,1280,0,1280,720,0,720,all", size=64)
    samples = source.read(0, 1)
    assert samples.inputs[0].shape == (1, 64, 64, 3)
    assert samples.targets[0][0, 0].tolist() == [[0, 0], [64, 0], [64, 64], [0, 64]]


def test_words_over_an_edge_are_cut_and_all_run_clockwise(tmp_path: Path) -> None:
    lines = [
        "-20,-10,100,0,100,50,0,50,over",
        "200,100,200,150,300,150,300,100,reversed",
        "5,5,5,5,9,9,9,9,none",
    ]
    corners, numbers, ignored = icdar2015(tmp_path, "\n".join(lines)).read(0, 1).targets
    scale = [0.5, 384 / 720]
    assert np.allclose(corners[0, 0], np.array([[0, 0], [100, 0], [100, 50], [0, 50]]) * scale)
    assert np.allclose(corners[0, 1], np.array([[200, 100], [300, 100], [300, 150], [200, 150]]) * scale)
    # Nothing can be seen of a word without an area.
    assert numbers.tolist() == [3] and ignored[0, :3].tolist() == [0, 0, 1]


def test_corners_by_rows_or_in_another_order_that_crosses_itself_make_the_word(tmp_path: Path) -> None:
    order = [[10, 20], [90, 22], [88, 60], [12, 58]]
    lines = []
    for corners in ([0, 1, 2, 3], [0, 1, 3, 2], [0, 2, 1, 3], [0, 3, 1, 2], [0, 2, 3, 1]):
        lines.append(",".join(str(value) for corner in corners for value in order[corner]) + ",word")
    corners, _, ignored = icdar2015(tmp_path, "\n".join(lines)).read(0, 1).targets
    assert np.allclose(corners[0, :5], np.array(order) * [0.5, 384 / 720])
    assert not ignored[0, :5].any()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "377,117,463,117,465,130,Genaxis",
            r"'377.*Genaxis' begins with 6 numbers, but a line must be `x1,y1,x2",
        ),
        ("377,117,463,117,465,130", r"begins with 6 numbers"),
        ("377,117,463,x,465,130,378,130,Genaxis", r"begins with 3 numbers"),
        ("377,117,463,nan,465,130,378,130,Genaxis", r"begins with 3 numbers"),
        ("377,117,463,117,465,130,378,130", r"begins with 8 numbers, but a line must be .*,text`"),
        ("1300,117,1400,117,1400,130,1300,130,out", r"1300,117 .* lies outside its image of 1280x720"),
        ("5,-30,50,-30,50,0,5,0,above", r"5,-30 .* lies outside its image"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    source = icdar2015(tmp_path, f"0,0,20,0,20,10,0,10,good\n{line}\n")
    with pytest.raises(DataError, match=rf"Task4_GT/gt_img_1\.txt, line 2: .*{message}"):
        source.read(0, 1)


def test_a_file_of_words_in_another_encoding_is_named(tmp_path: Path) -> None:
    source = icdar2015(tmp_path, "0,0,20,0,20,10,0,10,café".encode("latin-1"))
    with pytest.raises(DataError, match=r"gt_img_1\.txt is no UTF-8 text: .* at byte 23"):
        source.read(0, 1)


def test_more_words_than_there_is_room_for_are_refused(tmp_path: Path) -> None:
    source = icdar2015(tmp_path, "0,0,20,0,20,10,0,10,word\n" * 3, most=2)
    with pytest.raises(DataError, match=r"gt_img_1\.txt has 3 words, and options\.most is 2"):
        source.read(0, 1)


@pytest.mark.parametrize(
    ("images", "truths", "message"),
    [
        (["img_1.jpg", "img_2.jpg"], ["gt_img_1.txt"], r"gt_img_2\.txt, the words of img_2\.jpg, is missing"),
        (["img_1.jpg"], ["gt_img_1.txt", "gt_img_7.txt"], r"gt_img_7\.txt has no image in .*ch4_test_images"),
        (["notes.txt"], ["gt_img_1.txt"], r"ch4_test_images has no images"),
        (["img_1.jpg"], ["gt_img_1.txt"], r"test: 1 found, 500 are published"),
    ],
)
def test_files_that_lack_their_partner_are_named(
    tmp_path: Path, images: list[str], truths: list[str], message: str
) -> None:
    raw = unpacked(
        tmp_path,
        {
            "ch4_training_images": {"img_1.jpg": b""},
            "ch4_training_localization_transcription_gt": {"gt_img_1.txt": ""},
            "ch4_test_images": dict.fromkeys(images, b""),
            "Challenge4_Test_Task4_GT": dict.fromkeys(truths, ""),
        },
    )
    with pytest.raises(DataError, match=message):
        icdar.read(raw, options("icdar2015", source="original", counts={"train": 1, "test": 500}))


def test_what_systems_add_to_archives_is_left_aside(tmp_path: Path) -> None:
    raw = unpacked(
        tmp_path,
        {
            "ch4_training_images": {"inner/img_1.jpg": jpeg(), "__MACOSX/._img_1.jpg": b"", "Thumbs.db": b""},
            "ch4_training_localization_transcription_gt": {"gt_img_1.txt": "", ".gt_img_2.txt": ""},
            "ch4_test_images": {"img_1.jpg": jpeg()},
            "Challenge4_Test_Task4_GT": {"gt_img_1.txt": "", "readme.txt": ""},
        },
    )
    assert len(icdar.read(raw, options("icdar2015")).train.read(0, 1)) == 1


def _claims(width: int, height: int) -> bytes:
    """Return a PNG of a few bytes that says to be of this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    data = b"IDAT" + zlib.compress(b"")
    return body + struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is no JPEG"),
        (b"\xff\xd8\xff\xe0 no image", "runcated"),
        (jpeg()[:2000], "truncated"),
        (_claims(10000, 9000), "more than"),
        (_claims(60000, 60000), "more than"),
    ],
)
def test_an_image_that_cannot_be_decoded_is_left_out_and_named(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    samples = icdar2015(tmp_path, "0,0,20,0,20,10,0,10,word", content).read(0, 1)
    assert len(samples) == 0 and samples.targets[0].shape == (0, 256, 4, 2)
    assert len(samples.damaged) == 1
    assert samples.damaged[0].startswith("img_1.jpg: ") and reason in samples.damaged[0]


@pytest.mark.parametrize(
    ("mode", "form", "saved"),
    [
        ("L", "JPEG", {}),
        ("CMYK", "JPEG", {}),
        ("P", "PNG", {"transparency": 0}),
        ("RGB", "JPEG", {"exif": TURNED.tobytes()}),
    ],
)
def test_every_kind_of_image_becomes_rgb_as_stored(
    tmp_path: Path, mode: str, form: str, saved: dict[str, Any]
) -> None:
    image = jpeg(mode=mode, form=form, **saved)
    samples = icdar2015(tmp_path, "0,0,640,0,640,720,0,720,left", image).read(0, 1)
    left, right = samples.inputs[0][0, 100, 100].astype(int), samples.inputs[0][0, 100, 600].astype(int)
    colours = (RED, BLUE)
    if mode == "L":
        colours = tuple((round(0.299 * r + 0.587 * g + 0.114 * b),) * 3 for r, g, b in colours)
    # The palette's colours, and those of JPEG, are near.
    assert np.abs(left - colours[0]).max() <= 30 and np.abs(right - colours[1]).max() <= 30
    assert not samples.damaged
