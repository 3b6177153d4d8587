"""Files of the idx format are read as they are, or refused with a sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from src.data.errors import DataError
from src.data.readers.idx import read, read_array


def write_idx(path: Path, array: np.ndarray, kind: int = 0x08) -> None:
    header = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.tobytes())


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for prefix, count in (("train", 5), ("t10k", 2)):
        images = np.arange(count * 6, dtype=np.uint8).reshape(count, 2, 3)
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8))
    return tmp_path


def test_images_come_as_rows_of_height_width_channel(raw: Path) -> None:
    splits = read(raw, {})
    train, test = (split.read(0, len(split)) for split in (splits.train, splits.test))
    assert (train.inputs[0].shape, test.inputs[0].shape) == ((5, 2, 3, 1), (2, 2, 3, 1))
    assert train.inputs[0][1, :, :, 0].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert train.targets[0].tolist() == [0, 1, 2, 3, 4]
    assert train.targets[0].dtype == np.int64
    assert splits.names == ("0", "1", "2", "3", "4")


def test_classes_can_be_named(raw: Path) -> None:
    assert read(raw, {"names": list("abcde")}).names == tuple("abcde")


def test_images_stay_on_disk(raw: Path) -> None:
    assert isinstance(read(raw, {}).train.read(0, 2).inputs[0], np.memmap)


@pytest.mark.parametrize("length", [0, 3, 9, 15, 16, 45])
def test_a_file_cut_anywhere_is_refused(raw: Path, length: int) -> None:
    path = raw / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is (cut short|no idx file)"):
        read(raw, {})


def test_a_file_with_bytes_to_spare_is_refused(raw: Path) -> None:
    path = raw / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataError, match="has 47 bytes, its header promises 46"):
        read(raw, {})


def test_another_format_and_another_type_are_refused(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_bytes(b"<!DOCTYPE html>")
    with pytest.raises(DataError, match="begins with 3c 21 44 4f, not 00 00 08 01"):
        read_array(page, dimensions=1)
    write_idx(tmp_path / "floats", np.zeros(3, dtype=">f4"), kind=0x0D)
    with pytest.raises(DataError, match="begins with 00 00 0d 01"):
        read_array(tmp_path / "floats", dimensions=1)


def test_images_and_labels_must_be_as_many(raw: Path) -> None:
    write_idx(raw / "train-labels-idx1-ubyte", np.zeros(4, dtype=np.uint8))
    with pytest.raises(DataError, match="5 train images but 4 train labels"):
        read(raw, {})
