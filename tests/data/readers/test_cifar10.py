"""CIFAR-10's binary version is read as it is published, and what isn't it is refused in a sentence."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from src.data.errors import DataError
from src.data.readers import cifar10
from tests.data.readers.unpacked import pack, unpack

NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
COUNTS = {"train": 10, "test": 3}


def record(label: int, red: int, green: int, blue: int) -> bytes:
    """A record of one colour, but for the first pixel of the second row, which is white."""
    planes = np.repeat(np.array([red, green, blue], dtype=np.uint8), 1024)
    planes[[32, 1024 + 32, 2048 + 32]] = 255
    return bytes([label]) + planes.tobytes()


def members() -> dict[str, bytes]:
    folder = "cifar-10-batches-bin"
    files = {
        f"{folder}/data_batch_{n}.bin": record(n, n, 20, 30) + record(n + 4, 100 + n, 0, 200)
        for n in range(1, 6)
    }
    files[f"{folder}/test_batch.bin"] = record(9, 1, 2, 3) + record(0, 4, 5, 6) + record(1, 7, 8, 9)
    files[f"{folder}/batches.meta.txt"] = "\n".join([*NAMES.split(), "", ""]).encode()
    files[f"{folder}/readme.html"] = b"<html/>"
    return files


def read(tmp_path: Path, files: dict[str, bytes], **options: object) -> cifar10.Splits:
    (tmp_path / "archives").mkdir()
    pack(tmp_path / "archives" / "cifar-10-binary.tar.gz", files)
    return cifar10.read(unpack(tmp_path / "archives", tmp_path / "raw"), {"counts": COUNTS, **options})


def test_records_of_all_files_become_images_and_labels(tmp_path: Path) -> None:
    splits = pickle.loads(pickle.dumps(read(tmp_path, members())))
    assert splits.names == tuple(NAMES.split())
    assert (len(splits.train), len(splits.test)) == (10, 3)
    train = splits.train.read(0, 10)
    assert train.targets[0].dtype == np.int64
    assert train.targets[0].tolist() == [1, 5, 2, 6, 3, 7, 4, 8, 5, 9]
    assert train.inputs[0].shape == (10, 32, 32, 3)
    assert train.inputs[0][3, 0, 0].tolist() == [102, 0, 200]
    assert train.inputs[0][3, 1, 0].tolist() == [255, 255, 255]
    assert train.inputs[0][3, 0, 1].tolist() == [102, 0, 200]
    across = splits.train.read(3, 7)
    np.testing.assert_array_equal(across.inputs[0], train.inputs[0][3:7])
    assert across.targets[0].tolist() == [6, 3, 7, 4]
    assert splits.test.read(1, 3).targets[0].tolist() == [0, 1]


def test_images_are_resized_as_asked(tmp_path: Path) -> None:
    [images] = read(tmp_path, members(), size=8).train.read(1, 3).inputs
    assert images.shape == (2, 8, 8, 3)
    assert images[0, 7, 7].tolist() == [101, 0, 200]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data_batch_3.bin": None}, "has no data_batch_3.bin"),
        ({"data_batch_3.bin": record(1, 2, 3, 4)[:-1]}, "3,072 bytes, which is no whole number of records"),
        ({"data_batch_3.bin": b""}, "0 bytes, which is no whole number of records"),
        (
            {"test_batch.bin": record(0, 1, 2, 3) + record(10, 1, 2, 3)},
            "sample 1 has the label 10; .* 0 to 9",
        ),
        ({"batches.meta.txt": b"cat\ndog\n"}, "names 2 classes, not 10"),
        ({"data_batch_1.bin": record(1, 2, 3, 4)}, "train: 9 found, 10 are published"),
    ],
)
def test_what_is_not_the_dataset_is_refused(
    tmp_path: Path, change: dict[str, bytes | None], sentence: str
) -> None:
    changed = {f"cifar-10-batches-bin/{name}": content for name, content in change.items()}
    files = {name: content for name, content in {**members(), **changed}.items() if content is not None}
    with pytest.raises(DataError, match=sentence) as failure:
        read(tmp_path, files)
    assert "\n" not in str(failure.value)


def test_a_stand_in_need_not_have_the_published_numbers(tmp_path: Path) -> None:
    official = {"train": 50_000, "test": 10_000}
    assert len(read(tmp_path, members(), counts=official, source="generated").train) == 10


def test_a_file_that_is_there_twice_is_named(tmp_path: Path) -> None:
    files = members()
    files["copy/test_batch.bin"] = files["cifar-10-batches-bin/test_batch.bin"]
    with pytest.raises(DataError, match=re.escape("test_batch.bin twice")):
        read(tmp_path, files)
