"""Prepared data are found where they are, made where they aren't, and never half there."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from src.config.dataset_content import content_of
from src.data.arrays import load
from src.data.available import ensure, locate
from src.data.catalog import cache_folder, choice, fingerprint
from src.data.errors import DataError
from src.data.sources import holds
from src.preprocess import prepare

pytestmark = pytest.mark.timed

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory and an empty cache."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def toy(tmp_path: Path) -> dict[str, Any]:
    """A dataset in idx files on the local disk: 6 training and 6 test images of 2 by 2."""
    header = bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 2])
    images = header + bytes(range(24))
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 6]) + bytes([0, 1, 2, 0, 1, 2])
    files = {}
    (tmp_path / "own").mkdir()
    for prefix in ("train", "t10k"):
        for name, body in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
            (tmp_path / "own" / name).write_bytes(body)
            files[name] = hashlib.sha256(body).hexdigest()
    return {
        "name": "toy",
        "reader": "src.data.readers.idx.read",
        "source": "original",
        "files": files,
        "sources": [{"path": f"{tmp_path}/own/{{file}}"}],
        "options": {},
        "limit": None,
    }


def test_what_is_missing_is_made_in_the_cache_and_then_found(toy: dict[str, Any]) -> None:
    assert locate(toy) is None
    folder = ensure(toy)
    assert folder == cache_folder() / "prepared" / f"toy-{fingerprint(toy)}"
    assert locate(toy) == folder
    assert load(folder, limit=None).train.inputs[0][5][:, :, 0].tolist() == [[20, 21], [22, 23]]
    assert list(folder.parent.iterdir()) == [folder]
    assert not list(Path.cwd().iterdir()), "nothing is written into the project"


def test_the_projects_own_prepared_data_come_first(toy: dict[str, Any], tmp_path: Path) -> None:
    ensure(toy)
    prepare(toy, tmp_path / "own", Path("prepared/toy"))
    assert locate(toy) == Path("prepared/toy")


def test_stale_and_incomplete_data_are_passed_over(toy: dict[str, Any], tmp_path: Path) -> None:
    prepare(toy, tmp_path / "own", Path("prepared/toy"))
    named = toy | {"options": {"names": ["a", "b", "c"]}}
    assert locate(named) is None
    assert load(ensure(named), limit=None).names == ("a", "b", "c")
    Path("prepared/toy/test-targets-0-00000.npy").unlink()
    assert locate(toy) is None
    Path("prepared/toy/meta.json").write_text("{")
    assert locate(toy) is None


def test_a_damaged_cache_folder_is_made_anew(toy: dict[str, Any]) -> None:
    (ensure(toy) / "train-inputs-0-00000.npy").unlink()
    assert load(ensure(toy), limit=None).train_samples == 6


def test_neither_the_limit_nor_the_mirrors_make_prepared_data_stale(toy: dict[str, Any]) -> None:
    same = toy | {"limit": 3, "sources": []}
    assert fingerprint(same) == fingerprint(toy)
    for change in (
        {"files": {}},
        {"options": {"a": 8}},
        {"size": 8},
        {"reader": "a.b"},
        {"source": "generated"},
    ):
        assert fingerprint(toy | change) != fingerprint(toy)


def test_files_without_a_checksum_are_told_apart_by_what_they_hold(
    toy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = toy | {"files": dict.fromkeys(toy["files"]), "sources": [], "data_dir": str(tmp_path / "own")}
    assert content_of(toy) is None and content_of(toy | {"data_dir": mine["data_dir"]}) is None
    first = mine | {"content": content_of(mine)}
    folder = ensure(first)
    shutil.copytree(tmp_path / "own", tmp_path / "same")
    assert content_of(mine | {"data_dir": str(tmp_path / "same")}) == first["content"]
    labels = tmp_path / "own/train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + bytes([0]))
    second = mine | {"content": content_of(mine)}
    assert second["content"] != first["content"] and locate(second) is None
    assert load(ensure(second), limit=None).train.targets[0][:].tolist() == [0, 1, 2, 0, 1, 0]
    assert load(folder, limit=None).train.targets[0][:].tolist() == [0, 1, 2, 0, 1, 2]
    # What is unchanged isn't read again.
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert content_of(mine) == second["content"]


def test_what_a_stand_in_is_generated_from_makes_it_another_dataset(toy: dict[str, Any]) -> None:
    generated = toy | {"source": "generated", "fraction": 0.1, "generator_seed": 0}
    for change in ({"fraction": 0.2}, {"generator_seed": 1}, {"generator": "a.write"}):
        assert fingerprint(generated | change) != fingerprint(generated)
        assert fingerprint(toy | change) == fingerprint(toy)


def test_processes_that_ensure_at_once_all_find_whole_data_that_one_has_made(toy: dict[str, Any]) -> None:
    code = (
        "import json, sys; from src.data.available import ensure; from src.data.arrays import load;"
        "print(load(ensure(json.load(sys.stdin)), None).train.inputs[0][:].sum())"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(json.dumps(toy))
        racer.stdin.close()
        racer.stdin = None  # communicate would close it once more
    ended = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * len(racers)
    assert {out.strip() for out, _ in ended} == {str(sum(range(24)))}
    assert sum("fetching train-images" in err for _, err in ended) == 1
    assert [path.name for path in (cache_folder() / "prepared").iterdir()] == [f"toy-{fingerprint(toy)}"]


def test_asking_costs_no_heavy_import() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from src.data.available import locate;"
        "locate({'name': 'toy'});"
        "print({'numpy', 'requests', 'torch', 'tensorflow', 'hydra', 'omegaconf'} & sys.modules.keys())"
    )
    durations = []
    for _ in range(3):
        start = time.monotonic()
        asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert asked.stdout == "set()\n"
        durations.append(time.monotonic() - start)
    assert min(durations) < 2


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SCALEGUIDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/scaleguide")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "scaleguide"


@pytest.mark.parametrize(
    "text", ["name: other", "[]", "name: toy", "{name: toy, reader: a, source: a, files: 1}"]
)
def test_a_dataset_file_that_is_wrong_is_named(text: str) -> None:
    Path("conf/dataset").mkdir(parents=True)
    Path("conf/dataset/toy.yaml").write_text(text)
    with pytest.raises(DataError, match=r"conf/dataset/toy\.yaml"):
        choice("toy")


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_committed_datasets_pin_four_files_with_several_sources(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    dataset = choice(name)
    assert len(dataset["files"]) == 4
    assert all(len(sha256) == 64 for sha256 in dataset["files"].values())
    assert len(dataset["sources"]) >= 2


def test_real_mnist_is_the_published_one(capsys: pytest.CaptureFixture[str]) -> None:
    mnist = yaml.safe_load((ROOT / "conf/dataset/mnist.yaml").read_text())
    try:
        folder = ensure(mnist)
    except DataError as error:
        if "could not be fetched from any source" not in str(error) or "sha256" in str(error):
            raise
        pytest.skip(str(error))
    cached = {path.name.partition("-")[2]: path for path in (cache_folder() / "files").iterdir()}
    assert all(holds(cached[file], sha256) for file, sha256 in mnist["files"].items())
    arrays = load(folder, limit=None)
    assert (arrays.shape, arrays.classes, arrays.data_source) == ((28, 28, 1), 10, "original")
    assert (arrays.train_samples, arrays.test_samples) == (60_000, 10_000)
    assert arrays.mean[0] == pytest.approx(0.1307, abs=5e-5)
    assert arrays.std[0] == pytest.approx(0.3081, abs=5e-5)
    assert np.bincount(arrays.test.targets[0]).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]
