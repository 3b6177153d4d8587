"""A few samples that can't be read are left out; many, and what doesn't fit the disk, are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.data import prepare
from src.data.arrays import load
from src.data.errors import DataError, mount_point
from src.data.prepare import prepare as prepare_dataset
from tests.data.test_preparation import SHARD_BYTES, tiles


def prepared(folder: Path, samples: int, damaged: list[int]) -> dict[str, Any]:
    """Prepare so many tiles and return the meta-data."""
    prepare_dataset(tiles(folder, samples=samples, damaged=damaged), folder, folder / "tiles")
    return json.loads((folder / "tiles" / "meta.json").read_text())


def test_damaged_samples_are_named_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "SHARD_BYTES", SHARD_BYTES)
    # The first sample, a whole shard and one more.
    damaged = [0, *range(20, 30), 1199]
    meta = prepared(tmp_path, 1200, damaged)
    assert (meta["train_samples"], meta["test_samples"]) == (1188, 10)
    assert meta["damaged"] == {"train": 12, "test": 0}
    assert meta["shards"]["train"][:4] == [9, 10, 0, 10]
    arrays = load(tmp_path / "tiles")
    kept = [number for number in range(1200) if number not in damaged]
    assert arrays.train.inputs[0][:][:, 0, 0, 0].tolist() == [number % 251 for number in kept]
    assert arrays.train.targets[0][:].tolist() == [number % 2 for number in kept]
    assert arrays.mean[0] == pytest.approx(np.mean([number % 251 for number in kept]) / 255)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"tiles: warning: left out tile {number}: cut short" for number in damaged]


def test_of_many_warnings_the_first_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepared(tmp_path, 2500, list(range(100, 125)))["damaged"]["train"] == 25
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "tiles: warning: left out 5 more damaged samples"


@pytest.mark.parametrize("first", [0, 100])
def test_more_than_one_in_a_hundred_are_refused_by_the_firsts_name(tmp_path: Path, first: int) -> None:
    sentence = (
        f"tiles: 26 of 2500 train samples can't be read, more than 1%; the first is tile {first}: cut short"
    )
    with pytest.raises(DataError, match=f"^{sentence}$"):
        prepared(tmp_path, 2500, list(range(first, first + 26)))
    assert [path.name for path in tmp_path.iterdir()] == ["read"]


def test_arrays_that_do_not_fit_the_disk_are_refused_before_any_is_written(tmp_path: Path) -> None:
    sentence = (
        rf"tiles: its arrays take 2,000,000\.0 MB more and the file system {mount_point(tmp_path)} "
        rf"has [\d,]+\.. MB left: {tmp_path}/tiles can't be written"
    )
    with pytest.raises(DataError, match=f"^{sentence}$"):
        prepare_dataset(tiles(tmp_path, samples=10**10), tmp_path, tmp_path / "tiles")
    assert [path.name for path in tmp_path.iterdir()] == ["read"]
