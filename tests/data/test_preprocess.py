"""Prepared arrays are what the reader gave, whole or not there, with statistics worked by hand."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import src.data.prepare
import src.data.shard_writer
from src.data.arrays import load
from src.data.catalog import fingerprint
from src.data.errors import DataError
from src.data.prepare import prepare
from src.data.samples import ArraySource, Samples, Splits
from src.preprocess import main
from tests.support import fill

IMAGES = np.array([[[[0, 255]]], [[[255, 255]]], [[[0, 255]]], [[[255, 255]]]], dtype=np.uint8)
LABELS = np.array([0, 1, 2, 1], dtype=np.int64)
TEST_IMAGES = np.array([[[[7, 8]]]], dtype=np.uint8)


def splits(
    images: np.ndarray = IMAGES,
    labels: np.ndarray | None = LABELS,
    test_images: np.ndarray = TEST_IMAGES,
    test_label: int = 2,
    names: tuple[str, ...] = ("cat", "dog", "emu"),
) -> Splits:
    """Return a dataset of a few samples; one without labels, where `labels` is `None`."""
    targets = () if labels is None else (labels,)
    train, test = ArraySource((images,), targets), ArraySource((test_images,), (np.array([test_label]),))
    return Splits(train, test, names)


SPLITS = splits()
TOY: dict[str, Any] = {
    "name": "toy",
    "reader": f"{__name__}.read",
    "source": "generated",
    "files": {},
    "sources": [],
    "options": {},
    "limit": None,
}


# What `read` returns, once a test has said so.
GIVEN: list[Any] = []


def read(raw: Path, options: dict[str, Any]) -> Any:
    """Return the arrays that the test gives, as the reader of its dataset."""
    return GIVEN[-1]


@pytest.fixture
def reads() -> Iterator[Callable[[Any], None]]:
    """Makes `read` return the given arrays."""
    GIVEN.append(SPLITS)
    yield GIVEN.append
    GIVEN.clear()


SEEN: list[Any] = []


def read_unpacked(folder: Path, options: dict[str, Any]) -> Splits:
    """Check that an archive is unpacked, note the options in `SEEN`, and return images of 8 x 8."""
    SEEN.append(options)
    assert (folder / "pictures/pictures/1.txt").read_text() == "one"
    assert (folder / "labels.mat").read_text() == "two"
    given = (IMAGES, LABELS, TEST_IMAGES)
    return splits(*(np.zeros((len(a), 8, 8, 2), np.uint8) if a.ndim > 1 else a for a in given))


@pytest.mark.usefixtures("reads")
def test_arrays_come_back_mapped_and_equal(tmp_path: Path) -> None:
    prepare(TOY, tmp_path, tmp_path / "toy")
    arrays = load(tmp_path / "toy", limit=None)
    given = [IMAGES, LABELS, TEST_IMAGES, np.array([2])]
    maps = [array for split in (arrays.train, arrays.test) for array in (*split.inputs, *split.targets)]
    for mapped, array in zip(maps, given, strict=True):
        assert not mapped[:].flags.owndata
        assert not mapped[:].flags.writeable
        assert (mapped.dtype, mapped.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(mapped, array)
    mapped_files = Path("/proc/self/maps").read_text()
    paths = list((tmp_path / "toy").glob("*.npy"))
    assert len(paths) == len(given) and all(str(path) in mapped_files for path in paths)
    assert (arrays.shape, arrays.classes, arrays.names) == ((1, 1, 2), 3, ("cat", "dog", "emu"))
    assert (arrays.train_samples, arrays.test_samples, arrays.data_source) == (4, 1, "generated")
    assert json.loads((tmp_path / "toy" / "meta.json").read_text())["fingerprint"] == fingerprint(TOY)


@pytest.mark.usefixtures("reads")
def test_mean_and_deviation_are_by_channel_and_a_constant_channel_divides_harmlessly(tmp_path: Path) -> None:
    prepare(TOY, tmp_path, tmp_path / "toy")
    arrays = load(tmp_path / "toy", limit=None)
    assert arrays.mean == (0.5, 1.0)
    assert arrays.std == (0.5, 1.0)


def test_statistics_and_arrays_do_not_depend_on_chunks_and_shards(
    reads: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (101, 5, 4, 3), dtype=np.uint8)
    # Neither contiguous nor in C order: what a reader slices and turns is written as it looks.
    turned = images.transpose(0, 2, 1, 3)[::-1]
    reads(splits(turned, np.arange(101) % 3, turned[:1], 0))
    monkeypatch.setattr(src.data.shard_writer, "CHUNK_BYTES", 7 * 60)
    monkeypatch.setattr(src.data.prepare, "SHARD_BYTES", 30 * 68)
    prepare(TOY, tmp_path, tmp_path / "toy")
    arrays = load(tmp_path / "toy", limit=None)
    assert len(list((tmp_path / "toy").glob("train-inputs-0-*.npy"))) == 4
    np.testing.assert_array_equal(arrays.train.inputs[0], turned)
    np.testing.assert_allclose(arrays.mean, (turned / 255).mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(arrays.std, (turned / 255).std(axis=(0, 1, 2)), rtol=1e-12)


@pytest.mark.usefixtures("reads")
def test_a_limit_takes_the_first_training_samples_only(tmp_path: Path) -> None:
    prepare(TOY, tmp_path, tmp_path / "toy")
    arrays = load(tmp_path / "toy", limit=3)
    assert arrays.train.targets[0][:].tolist() == [0, 1, 2]
    assert (arrays.train_samples, len(arrays.train.inputs[0]), arrays.test_samples) == (3, 3, 1)
    assert load(tmp_path / "toy", limit=99).train_samples == 4
    with pytest.raises(DataError, match="at least 1"):
        load(tmp_path / "toy", limit=0)


def test_prepared_data_are_replaced_at_once_or_not_at_all(
    reads: Callable[[Any], None], tmp_path: Path
) -> None:
    target = tmp_path / "prepared" / "toy"
    prepare(TOY, tmp_path, target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    class Breaking(ArraySource):
        """A split on a disk that fails when its second half is read."""

        def read(self, start: int, stop: int) -> Samples:
            if start:
                raise OSError(5, "Input/output error")
            return super().read(start, stop)

    # Two samples are more than is read at once.
    large = np.zeros((2, 2048, 2048, 3), np.uint8)
    broken = splits(large, LABELS[:2], large[:1])
    reads(dataclasses.replace(broken, train=Breaking((large,), (LABELS[:2],))))
    with pytest.raises(DataError, match="Input/output"):
        prepare(TOY, tmp_path, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert list(target.parent.iterdir()) == [target], "no temporary folder is left"

    reads(splits(test_label=0))
    prepare(TOY, tmp_path, target)
    assert load(target, limit=None).test.targets[0][:].tolist() == [0]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.usefixtures("reads")
def test_a_full_disk_names_its_mount_point(tmp_path: Path, disk: Path) -> None:
    filler = fill(disk)
    with pytest.raises(DataError, match=f"the file system {disk} is full"):
        prepare(TOY, tmp_path, disk / "toy")
    assert list(disk.iterdir()) == [filler]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": IMAGES.astype(np.float32)}, "train images must be uint8 .* got float32"),
        ({"images": IMAGES[:, 0]}, r"got uint8 \[samples, 1, 2\]$"),
        ({"labels": LABELS[:3]}, "4 inputs but 3 targets"),
        (
            {"labels": np.eye(3, dtype=np.int64)[LABELS]},
            r"int64 \[samples, 3\], one-hot; return labels.argmax",
        ),
        ({"labels": LABELS[:, np.newaxis]}, r"int64 \[samples, 1\], a column; return labels\[:, 0\]$"),
        (
            {"labels": LABELS.astype(np.uint8)},
            r"got uint8 \[samples\], of another type; return labels.astype",
        ),
        ({"labels": LABELS / 2}, r"labels must be int64 \[samples\], got float64 .*, no numbers of classes"),
        (
            {"labels": LABELS.astype(">i8")},
            r"int64 \[\] in the other byte order; return array.astype\('int64'\)",
        ),
        ({"labels": np.array([*"abca"])}, "an array of <U1, which are no numbers"),
        ({"names": ("cat",), "labels": LABELS * 0}, "of one class alone; a classification has two or more"),
        (
            {"labels": None},
            r"samples have no labels; Samples.targets must hold them, int64 \[samples\]$",
        ),
        ({"test_images": TEST_IMAGES[:0]}, "the test split has no samples"),
        (
            {"test_images": TEST_IMAGES[..., :1]},
            r"training samples are uint8 \[1, 1, 2\] .*, test samples uint8 \[1, 1, 1\]",
        ),
        ({"names": ("cat", "dog")}, "train labels run from 0 to 2, but there are names for classes 0 to 1"),
        ({"test_label": -1}, "test labels run from -1 to -1"),
        ({"names": ("cat", "dog", "emu", "fox")}, "no training sample is of class 'fox'$"),
        ({"labels": LABELS * 0}, "no training sample is of class 'dog', nor of 1 of the others"),
    ],
)
def test_arrays_that_break_the_contract_are_refused(
    reads: Callable[[Any], None], tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    reads(splits(**change))
    with pytest.raises(DataError, match=f"^toy: .*{sentence}"):
        prepare(TOY, tmp_path, tmp_path / "toy")
    assert not list(tmp_path.iterdir())


def test_channels_that_seem_to_come_first_are_warned_of(
    reads: Callable[[Any], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = np.zeros((4, 3, 8, 9), np.uint8)
    reads(splits(images=first, test_images=first[:1]))
    prepare(TOY, tmp_path, tmp_path / "toy")
    assert (
        "toy: warning: images are 3 x 8 pixels with 9 channels; if they are [channels"
        in capsys.readouterr().err
    )


def test_missing_raw_data_name_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"raw/a is missing; `dvc repro fetch data.dvc preprocess` makes it"):
        prepare(TOY | {"files": {"a": "0"}}, tmp_path / "raw", tmp_path / "toy")
    with pytest.raises(DataError, match=r"`dvc repro fetch data.dvc preprocess`"):
        load(tmp_path / "toy", limit=None)


@pytest.mark.parametrize("reader", ["no_such_module.read", "src.data.readers.idx.no_such_function", "read"])
def test_a_reader_that_cannot_be_imported_is_named(tmp_path: Path, reader: str) -> None:
    with pytest.raises(DataError, match=f"reader '{reader}' can't be imported"):
        prepare(TOY | {"reader": reader}, tmp_path, tmp_path / "toy")


def test_inputs_of_other_tasks_need_not_be_images(reads: Callable[[Any], None], tmp_path: Path) -> None:
    def source(count: int) -> ArraySource:
        generator = np.random.default_rng(count)
        numbers, images = generator.random((count, 3), np.float32), np.zeros((count, 2, 2, 1), np.uint8)
        return ArraySource((numbers, images), (generator.random((count, 2)),))

    given = Splits(source(5), source(2), ("height", "width"))
    reads(given)
    prepare(TOY | {"task": "regression"}, tmp_path, tmp_path / "toy")
    arrays = load(tmp_path / "toy")
    assert (arrays.shape, arrays.names, arrays.mean, arrays.std) == ((3,), ("height", "width"), (), ())
    for split, kept in ((given.train, arrays.train), (given.test, arrays.test)):
        samples = split.read(0, len(split))
        for array, mapped in zip(
            (*samples.inputs, *samples.targets), (*kept.inputs, *kept.targets), strict=True
        ):
            np.testing.assert_array_equal(mapped, array)


@pytest.mark.usefixtures("reads")
def test_a_size_that_the_reader_does_not_make_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"^toy: dataset.size=8, but reader tests.data.test_preprocess.read gives .* 1 x 1$"
    ):
        prepare(TOY | {"size": 8}, tmp_path, tmp_path / "toy")


def test_a_reader_is_told_size_and_source_and_reads_unpacked_archives(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    (tmp_path / "pictures").mkdir(parents=True)
    (tmp_path / "pictures" / "1.txt").write_text("one")
    shutil.make_archive(str(raw / "pictures"), "gztar", tmp_path, "pictures")
    (raw / "labels.mat").write_text("two")
    SEEN.clear()
    archived = {
        "reader": f"{__name__}.read_unpacked",
        "files": {"pictures.tar.gz": None, "labels.mat": None},
        "unpack": {"bytes": 99, "files": 9},
    }
    prepare(TOY | archived | {"size": 8, "options": {"a": 1}}, raw, tmp_path / "toy")
    assert SEEN == [{"a": 1, "size": 8, "source": "generated"}]
    assert load(tmp_path / "toy").shape == (8, 8, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pictures", "raw", "toy"]


@pytest.mark.usefixtures("reads")
def test_a_truncated_array_is_refused(tmp_path: Path) -> None:
    prepare(TOY, tmp_path, tmp_path / "toy")
    path = tmp_path / "toy" / "train-inputs-0-00000.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="holds no complete prepared dataset"):
        load(tmp_path / "toy", limit=None)


@pytest.mark.usefixtures("reads")
def test_the_command_prepares_from_data_into_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf/dataset").mkdir(parents=True)
    Path("conf/dataset/toy.yaml").write_text(json.dumps(TOY))
    assert main(["toy"]) == 0
    assert load(Path("prepared/toy-generated"), limit=None).train_samples == 4
    assert main(["tyo"]) == 2
    assert "did you mean 'toy'?" in capsys.readouterr().err
    Path("conf/dataset/toy.yaml").write_text(json.dumps(TOY | {"files": {"a": "0" * 64}}))
    assert main(["toy"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
