"""ImageNet 64x64 is read from npz files, stored or compressed, without loading its images."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.data.errors import DataError
from src.data.readers import imagenet64, planes
from tests.data.readers.unpacked import pack, unpack

PER_FILE = 3
COUNTS = {"train": 10 * PER_FILE, "test": 2}
Arrays = dict[str, Any]


def images(first: int, count: int) -> np.ndarray:
    """Images of a red plane of `first` + number, a green one of rows 0 to 63, and a blue one of columns."""
    rows, columns = np.mgrid[:64, :64]
    planes = [np.stack([np.full((64, 64), first + n), rows, columns]) for n in range(count)]
    return np.stack(planes).reshape(count, 12288).astype(np.uint8)


def arrays() -> dict[str, Arrays]:
    files: dict[str, Arrays] = {
        f"train_data_batch_{n}.npz": {
            "data": images(10 * n, PER_FILE),
            "labels": np.array([n, 1000, 500 + n]),
            "mean": np.zeros(12288),
        }
        for n in range(1, 11)
    }
    files["val_data.npz"] = {"data": images(200, 2), "labels": np.array([1, 1000], dtype=np.int32)}
    return files


def read(
    tmp_path: Path, files: dict[str, Arrays], save: Callable[..., None] = np.savez, **options: Any
) -> imagenet64.Splits:
    contents = {}
    for name, content in files.items():
        file = io.BytesIO()
        save(file, **content)
        contents[name] = file.getvalue()
    folder = tmp_path / "archives"
    folder.mkdir()
    part1 = {name: content for name, content in contents.items() if name[17:-4] in set("12345")}
    part2 = {name: content for name, content in contents.items() if name[17:-4] in {*"6789", "10"}}
    pack(folder / "Imagenet64_train_part1_npz.zip", part1)
    pack(folder / "Imagenet64_train_part2_npz.zip", part2)
    pack(folder / "Imagenet64_val_npz.zip", {"val_data.npz": contents["val_data.npz"]})
    return imagenet64.read(unpack(folder, tmp_path / "raw"), {"counts": COUNTS, **options})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_planes_become_images_and_labels_begin_at_0(tmp_path: Path, save: Callable[..., None]) -> None:
    splits = pickle.loads(pickle.dumps(read(tmp_path, arrays(), save)))
    assert len(splits.names) == 1000
    assert splits.names[0] == "1"
    train = splits.train.read(0, len(splits.train))
    assert train.inputs[0].shape == (30, 64, 64, 3)
    assert train.inputs[0].dtype == np.uint8
    assert train.inputs[0][4, 7, 11].tolist() == [21, 7, 11]
    assert train.targets[0][:6].tolist() == [0, 999, 500, 1, 999, 501]
    assert train.targets[0].dtype == np.int64
    across = splits.train.read(28, 30)
    assert across.inputs[0][:, 0, 0, 0].tolist() == [101, 102]
    assert splits.test.read(0, 2).targets[0].tolist() == [0, 999]
    unpacked = sorted(path.name for path in (tmp_path / "raw").rglob("*.npy"))
    assert len(unpacked) == (11 if save is np.savez_compressed else 0)
    assert not list((tmp_path / "raw").rglob(".*"))


def test_stored_images_are_mapped_and_not_loaded(tmp_path: Path) -> None:
    source = read(tmp_path, arrays()).test
    assert isinstance(source, planes.PlaneImages)
    assert isinstance(source.rows.map(), np.memmap)
    assert len(pickle.dumps(source)) < 1000


class Ran:
    """An object whose unpickling would write a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


TWO = np.array([1, 1000])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"data": images(0, 2), "labels": TWO - 1}, "sample 0 has the label 0; labels run from 1 to 1000"),
        ({"data": images(0, 2), "labels": TWO[:1]}, r"2 images, but labels are int64 \[1\]"),
        ({"data": images(0, 2), "labels": TWO / 2}, r"2 images, but labels are float64 \[2\]"),
        ({"data": images(0, 2)[:, :-1], "labels": TWO}, r"data must be uint8 \[images, 12288\]"),
        ({"data": images(0, 2).astype(np.int64), "labels": TWO}, r"data must be uint8 \[images, 12288\]"),
        ({"data": images(0, 2)}, "no readable array 'labels'"),
        ({"data": np.array([Ran()]), "labels": TWO[:1]}, "no readable array 'data'"),
        ({"data": images(0, 2), "labels": np.array([Ran(), 1])}, "no readable array 'labels'"),
        ({"data": images(0, 1), "labels": TWO[:1]}, "test: 1 found, 2 are published"),
    ],
)
def test_what_is_not_the_dataset_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Arrays, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=sentence) as failure:
        read(tmp_path, {**arrays(), "val_data.npz": content})
    assert "\n" not in str(failure.value)
    assert not Path("ran").exists()


def test_a_missing_part_and_a_cut_file_are_named(tmp_path: Path) -> None:
    read(tmp_path, arrays())
    raw = tmp_path / "raw"
    cut = next(raw.rglob("train_data_batch_7.npz"))
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"train_data_batch_7.npz has no readable array"):
        imagenet64.read(raw, {})
    cut.unlink()
    with pytest.raises(DataError, match=r"has no train_data_batch_7.npz"):
        imagenet64.read(raw, {})
