"""Folders of image files are read as flower_photos and 30VNFoods are published."""

from __future__ import annotations

import pickle
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from src.data.errors import DataError
from src.data.readers import image_folders
from src.data.readers.class_folders import classes_in
from tests.data.readers.unpacked import encoded, pack, unpack

COLOURS = {"daisy": (250, 250, 240), "roses": (200, 20, 40), "tulips": (240, 160, 20)}
DISHES = {"Banh mi": (180, 120, 60), "Pho": (90, 60, 30)}


def plain(colour: tuple[int, int, int], width: int = 20, height: int = 12) -> bytes:
    return encoded(Image.new("RGB", (width, height), colour), quality=95)


def flowers() -> dict[str, bytes]:
    files = {
        f"flower_photos/{name}/{n}_n.jpg": plain(colour, 20 + n)
        for name, colour in COLOURS.items()
        for n in range(10)
    }
    return {**files, "flower_photos/LICENSE.txt": b"CC-BY", "flower_photos/roses/.DS_Store": b"x"}


def dishes() -> dict[str, bytes]:
    return {
        f"Images/{split}/{name}/{n}.jpg": plain(colour)
        for split, count in {"Train": 4, "Validate": 1, "Test": 2}.items()
        for name, colour in DISHES.items()
        for n in range(count)
    }


def read(tmp_path: Path, archive: str, files: dict[str, bytes], **options: Any) -> image_folders.Splits:
    (tmp_path / "archives").mkdir()
    pack(tmp_path / "archives" / archive, files)
    return image_folders.read(unpack(tmp_path / "archives", tmp_path / "raw"), {"size": 8, **options})


def assert_colours(source: Any, colours: list[tuple[int, int, int]]) -> None:
    """Each image has the colour of its label, as far as JPEG keeps it."""
    samples = source.read(0, len(source))
    assert samples.inputs[0].shape == (len(source), 8, 8, 3)
    assert samples.targets[0].dtype == np.int64
    for image, label in zip(samples.inputs[0], samples.targets[0], strict=True):
        assert np.abs(image.astype(int) - colours[label]).max() <= 6


def test_a_fifth_of_each_class_of_flowers_is_for_testing(tmp_path: Path) -> None:
    counts = {"images": 30, "classes": 3}
    splits = read(tmp_path, "flower_photos.tgz", flowers(), test_share=0.2, counts=counts)
    assert splits.names == ("daisy", "roses", "tulips")
    for source, count in ((splits.train, 8), (splits.test, 2)):
        assert_colours(pickle.loads(pickle.dumps(source)), list(COLOURS.values()))
        assert np.bincount(source.read(0, len(source)).targets[0]).tolist() == [count] * 3
    assert isinstance(splits.train, image_folders.PictureFiles)
    assert isinstance(splits.test, image_folders.PictureFiles)
    assert len({*splits.train.files, *splits.test.files}) == 30
    # By sha256sum: those of "daisy/6_n.jpg" and "daisy/5_n.jpg" begin with 0223 and 14a6, no other as low.
    assert sorted(file for file in splits.test.files if "daisy" in file) == ["daisy/5_n.jpg", "daisy/6_n.jpg"]


def test_the_first_samples_are_of_all_classes(tmp_path: Path) -> None:
    splits = read(tmp_path, "flower_photos.tgz", flowers(), test_share=0.2)
    assert set(splits.train.read(0, 12).targets[0].tolist()) == {0, 1, 2}


def test_folders_train_and_test_are_as_published_and_validate_is_left_out(tmp_path: Path) -> None:
    counts = {"train": 8, "validate": 2, "test": 4, "classes": 2}
    splits = read(tmp_path, "archive.zip", dishes(), test_share=None, counts=counts)
    assert splits.names == ("Banh mi", "Pho")
    assert (len(splits.train), len(splits.test)) == (8, 4)
    for source in (splits.train, splits.test):
        assert_colours(source, list(DISHES.values()))


def test_names_of_folders_may_be_in_any_case(tmp_path: Path) -> None:
    files = {name.replace("Images/", "").replace("Test/Pho", "TEST/PHO"): c for name, c in dishes().items()}
    files = {name.replace("Test/", "TEST/"): content for name, content in files.items()}
    splits = read(tmp_path, "archive.zip", {**files, "__MACOSX/Train/._1.jpg": b"x"})
    assert splits.names == ("Banh mi", "Pho")
    assert_colours(splits.test, list(DISHES.values()))


def test_damaged_images_are_left_out_and_named(tmp_path: Path) -> None:
    files = dishes()
    files["Images/Train/Pho/0.jpg"] = encoded(Image.radial_gradient("L"))[:-1000]
    files["Images/Train/Pho/1.jpg"] = b"<html>not found</html>"
    train = read(tmp_path, "archive.zip", files).train
    samples = train.read(0, len(train))
    assert (len(train), len(samples), len(samples.targets[0])) == (8, 6, 6)
    cut, other = sorted(samples.damaged)
    assert cut.startswith("Train/Pho/0.jpg: ")
    assert "truncated" in cut
    assert other == "Train/Pho/1.jpg: it is no JPEG, PNG, GIF, BMP, WEBP, TIFF image"


def test_images_are_told_by_their_content_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    roses = {
        f"flower_photos/roses/{name}": plain(COLOURS["roses"])
        for name in ("a.jfif", "b", "c.jpg_large", "2019/d.jpg", "2019/May/e.JPE")
    }
    tiff = encoded(Image.new("RGB", (20, 12), COLOURS["daisy"]), "TIFF")
    others = {
        "flower_photos/roses/notes.txt": b"of June",
        "flower_photos/roses/table": b"BMI,age\n",
        "flower_photos/roses/raw.nef": encoded(Image.new("RGB", (9, 9)), "TIFF"),
        "flower_photos/daisy/f.heic": b"heic",
        "flower_photos/daisy/g.HEIC": b"heic",
        "flower_photos/daisy/Thumbs.db": b"x",
        "flower_photos/loose.jpg": plain((0, 0, 0)),
    }
    counts = {"images": 36, "classes": 3}
    files = {**flowers(), **roses, "flower_photos/daisy/h.tif": tiff, **others}
    splits = read(tmp_path, "flower_photos.tgz", files, test_share=0.2, counts=counts)
    for source in (splits.train, splits.test):
        assert_colours(source, list(COLOURS.values()))
    assert splits.warnings == (
        "left out 6 files that are no images of a class: 2 .heic, 1 .jpg, 1 .txt, 1 .nef, and others; "
        "the first is daisy/f.heic",
    )


def test_a_class_has_one_name_however_its_accents_are_written(tmp_path: Path) -> None:
    files = {
        f"{split}/{unicodedata.normalize(form, dish)}/{n}.jpg": plain(colour)
        for split, form in (("Train", "NFC"), ("Test", "NFD"))
        for dish, colour in (("Phở", DISHES["Pho"]), ("Bánh mì", DISHES["Banh mi"]))
        for n in range(3)
    }
    splits = read(tmp_path, "archive.zip", files)
    assert splits.names == ("Bánh mì", "Phở")
    for source in (splits.train, splits.test):
        assert_colours(source, list(DISHES.values()))
    decomposed = {unicodedata.normalize("NFD", name): content for name, content in files.items()}
    (tmp_path / "other").mkdir()
    other = read(tmp_path / "other", "archive.zip", decomposed)
    order = [unicodedata.normalize("NFC", file) for file in other.train.files]
    assert order == list(splits.train.files)


def test_pixels_of_an_unknown_range_are_damage(tmp_path: Path) -> None:
    files = dishes()
    files["Images/Train/Pho/0.tif"] = encoded(Image.new("F", (9, 9), 4000.0), "TIFF")
    train = read(tmp_path, "archive.zip", files).train
    (said,) = train.read(0, len(train)).damaged
    assert "numbers of 32 bits" in said


FLOWERS, DISHES_ZIP = "flower_photos.tgz", "archive.zip"
FIFTH = {"test_share": 0.2}


@pytest.mark.parametrize(
    ("archive", "more", "options", "sentence"),
    [
        (DISHES_ZIP, {}, {"size": None}, "set `dataset.size`"),
        (DISHES_ZIP, {"Images/Train/Nem/a.txt": b"x"}, {}, "Train/Nem has no images; each class needs some"),
        (DISHES_ZIP, {"Images/Test/Nem/1.jpg": b"x"}, {}, "test and train have .* 'nem' is in one"),
        (DISHES_ZIP, {"Images/Train/pho/1.jpg": b"x"}, {}, "the class 'Pho' twice: Pho, pho"),
        (DISHES_ZIP, {}, {"counts": {"train": 9}}, "train: 8 found, 9 are published"),
        (DISHES_ZIP, {}, {"counts": {"train": 8, "validate": 3}}, "validate: 2 found, 3 are published"),
        (DISHES_ZIP, {}, {"counts": {"classes": 30}}, "classes: 2 found, 30 are published"),
        (FLOWERS, {}, {}, "has no folder Train: it has daisy, roses, tulips"),
        (FLOWERS, {}, {**FIFTH, "counts": {"images": 3670}}, "30 found, 3,670 are published"),
        (FLOWERS, {"flower_photos/violets/1.jpg": b"x"}, FIFTH, "violets has one image alone"),
        (FLOWERS, {"flower_photos/violets/LICENSE.txt": b"x"}, FIFTH, "violets has no images"),
    ],
)
def test_what_is_not_the_dataset_is_refused(
    tmp_path: Path, archive: str, more: dict[str, bytes], options: dict[str, Any], sentence: str
) -> None:
    files = flowers() if archive == FLOWERS else dishes()
    with pytest.raises(DataError, match=sentence) as failure:
        read(tmp_path, archive, {**files, **more}, **options)
    assert "\n" not in str(failure.value)


def test_a_folder_without_folders_of_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(plain((0, 0, 0)))
    with pytest.raises(DataError, match=r"has no folders of classes$"):
        classes_in(tmp_path)
