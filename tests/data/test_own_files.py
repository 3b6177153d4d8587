"""Files that the user brings are taken as they are; stand-ins come only where asked for, and whole."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from src.data.catalog import configure, folder_name
from src.data.errors import DataError, DataMistake
from src.data.sources import fetch
from src.fetch import main

FILES = {"images.zip": b"images", "labels/all.txt": b"labels"}


def dataset(**keys: Any) -> dict[str, Any]:
    """A dataset that needs a registration, and has a generator."""
    sums = {name: hashlib.sha256(body).hexdigest() for name, body in FILES.items()}
    return {
        "name": "toy",
        "reader": "a.read",
        "source": "original",
        "generator": f"{__name__}.write",
        "files": sums | {"labels/all.txt": None},
        "sources": [],
        "page": "https://data.example/toy",
        "licence": "for research alone",
        "registration": "Register, and download both.",
        **{"data_dir": None, "fraction": 0.02, "generator_seed": 0, "size": None, "options": {"side": 8}},
        **keys,
    }


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with the files."""
    for name, body in FILES.items():
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_bytes(body)
    return tmp_path / "own"


def write(target: Path, *, fraction: float, seed: int, options: dict[str, Any]) -> None:
    (target / "labels").mkdir()
    (target / "labels/all.txt").write_text(f"{fraction} {seed} {options}")
    (target / "images.zip").write_bytes(b"made")
    (target / "scratch").write_bytes(b"left behind")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("linked", [False, True])
def test_files_of_the_users_folder_are_taken_and_left_as_they_are(
    linked: bool, own: Path, tmp_path: Path
) -> None:
    before = {path: path.stat() for path in own.rglob("*")}
    fetch(dataset(data_dir=str(own)), tmp_path / "raw", tmp_path / "cache", linked=linked)
    assert contents(tmp_path / "raw") == FILES
    assert (tmp_path / "raw/images.zip").is_symlink() == linked
    # Not even the number of its hard links: what DVC does to its own files would be done to these.
    assert {path: path.stat()[:6] for path in own.rglob("*")} == {p: s[:6] for p, s in before.items()}


def test_a_compressed_file_will_do(own: Path, tmp_path: Path) -> None:
    (own / "images.zip").rename(own / "kept")
    (own / "images.zip.gz").write_bytes(gzip.compress(FILES["images.zip"]))
    fetch(dataset(data_dir=str(own)), tmp_path / "raw", tmp_path / "cache", linked=True)
    assert contents(tmp_path / "raw") == FILES


def test_a_wrong_file_of_the_users_is_named_with_both_sums(own: Path, tmp_path: Path) -> None:
    (own / "images.zip").write_bytes(b"others")
    with pytest.raises(DataError, match=r"own/images.zip: its bytes have sha256 .*dataset.source=generated"):
        fetch(dataset(data_dir=str(own)), tmp_path / "raw", tmp_path / "cache")
    assert contents(tmp_path / "raw") == {}


def test_a_file_that_has_gone_is_named_with_where_to_get_it(own: Path, tmp_path: Path) -> None:
    (own / "labels/all.txt").unlink()
    with pytest.raises(DataMistake, match=r"lacks labels/all.txt; Register, .* \(https://data.example/toy\)"):
        fetch(dataset(data_dir=str(own)), tmp_path / "raw", tmp_path / "cache")


def test_mirrors_out_of_reach_are_no_reason_to_take_a_stand_in_but_to_offer_it(tmp_path: Path) -> None:
    toy = dataset(sources=[{"path": "/nonexistent/{file}"}])
    with pytest.raises(
        DataError, match=r"could not be fetched .*, or dataset\.source=generated for a stand-in"
    ):
        fetch(toy, tmp_path / "raw", tmp_path / "cache")
    assert contents(tmp_path / "raw") == {}


def test_the_licence_is_shown_when_the_first_original_is_fetched(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(dataset(source="generated"), tmp_path / "raw", tmp_path / "cache")
    assert "licence" not in capsys.readouterr().err
    toy = dataset(data_dir=str(own))
    fetch(toy, tmp_path / "raw", tmp_path / "cache")
    line = "toy: licence: for research alone (https://data.example/toy)\n"
    assert capsys.readouterr().err == line
    fetch(toy, tmp_path / "other", tmp_path / "cache")
    assert capsys.readouterr().err == ""


def test_a_stand_in_is_written_by_its_generator_with_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = dataset(source="generated", fraction=0.5, generator_seed=3)
    fetch(toy, tmp_path / "raw", tmp_path / "cache")
    assert contents(tmp_path / "raw") == {"images.zip": b"made", "labels/all.txt": b"0.5 3 {'side': 8}"}
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("toy: generating a stand-in (fraction 0.5, seed 3)")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def fails(target: Path, **options: Any) -> None:
    (target / "images.zip").write_bytes(b"half")
    raise RuntimeError("no ink")


def stops_short(target: Path, **options: Any) -> None:
    (target / "images.zip").write_bytes(b"half")


@pytest.mark.parametrize(
    ("generator", "says"),
    [("fails", f"{__name__}.fails: RuntimeError: no ink"), ("stops_short", "wrote no labels/all.txt")],
)
def test_a_generator_that_fails_leaves_nothing(generator: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=says):
        fetch(
            dataset(source="generated", generator=f"{__name__}.{generator}"),
            tmp_path / "raw",
            tmp_path / "cache",
        )
    assert not list(tmp_path.rglob("*.zip")) and [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_a_generator_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(DataMistake, match=r"generator 'nothing.write' can't be imported"):
        fetch(dataset(source="generated", generator="nothing.write"), tmp_path / "raw", tmp_path / "cache")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    Path("conf/dataset").mkdir(parents=True)
    Path("conf/dataset/toy.yaml").write_text(json.dumps(dataset()))
    return tmp_path


def study(*entries: Any) -> None:
    Path("params.yaml").write_text(json.dumps({"study": {"datasets": list(entries)}}))


def test_original_and_stand_in_have_folders_of_their_own(project: Path, own: Path) -> None:
    study({"name": "toy", "data_dir": str(own)}, {"name": "toy", "source": "generated", "size": 64})
    assert main([]) == 0
    assert contents(Path("downloads/toy")) == FILES
    assert contents(Path("downloads/toy-generated-size=64"))["images.zip"] == b"made"
    assert len(list(Path("downloads").iterdir())) == 2


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"name": "toy", "source": "made"}, "must be one of original, generated; did you mean original?"),
        ({"name": "toy", "sorce": "generated"}, "did you mean source?"),
        ({"name": "toy", "reader": "b.read"}, "a study's dataset has source, data_dir"),
        ({"name": "toy", "fraction": 2}, "dataset.fraction=2: must be at most 1"),
        ({"name": "toy", "data_dir": "/nowhere"}, "dataset.data_dir=/nowhere: no such folder"),
        ({"name": "toy", "data_dir": "/usr"}, "lacks images.zip, labels/all.txt; Register"),
        ("toy", "images.zip, labels/all.txt can't be fetched: Register"),
        ({"source": "generated"}, "unknown dataset ''"),
    ],
)
def test_a_study_that_asks_for_what_there_is_not_is_told_in_a_line(
    entry: Any, says: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study(entry)
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and says in line
    assert not list(Path().glob("downloads/*/*"))


def test_folders_say_what_differs_from_the_datasets_file(project: Path) -> None:
    def name(**options: Any) -> str:
        return folder_name(configure({"name": "toy", **options}))

    assert name() == name(size=None) == name(fraction=0.5) == "toy"
    assert name(size=64) == "toy-size=64"
    assert name(source="generated", fraction=0.02) == "toy-generated"
    assert (
        name(source="generated", fraction=0.5, generator_seed=1)
        == "toy-generated-fraction=0.5-generator_seed=1"
    )
