"""A user's own folder of images: its layouts, its splits, what is left out, and that its content is known."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from src.config.dataset_content import content_of
from src.data.available import ensure
from src.data.catalog import choice
from src.data.errors import DataError, DataMistake
from src.data.prepared import load
from tests.data.readers.unpacked import encoded
from tests.support import ROOT

Give = Callable[..., dict[str, Any]]
SIZE = 8


def picture(shade: int, kind: str = "JPEG") -> bytes:
    return encoded(Image.new("RGB", (20, 12), (shade, 0, 0)), kind)


@pytest.fixture
def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Give:
    """Writes files, which are images unless there is a content, and returns the dataset of their folder."""
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)
    found = choice("folder")
    monkeypatch.chdir(tmp_path)

    def dataset(*images: str, options: dict[str, Any] | None = None, **contents: Any) -> dict[str, Any]:
        folder = tmp_path / "own"
        for number, name in enumerate(images):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(picture(number % 256))
        keys = {key: contents.pop(key) for key in ("skip_damaged",) if key in contents}
        for name, content in contents.pop("files", {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        chosen = {**found, "data_dir": str(folder), "size": SIZE, **keys}
        chosen["options"] = {**found["options"], **(options or {})}
        return {**chosen, "content": content_of(chosen)}

    return dataset


def prepared(dataset: dict[str, Any]) -> tuple[list[int], list[int], tuple[str, ...]]:
    """Prepare a dataset; return the labels of both splits, and the names of the classes."""
    ensure(dataset)
    arrays = load(dataset)
    assert arrays.shape == (SIZE, SIZE, 3)
    labels = [sorted(split.targets[0][:].tolist()) for split in (arrays.train, arrays.test)]
    return labels[0], labels[1], arrays.names


def shades_of(dataset: dict[str, Any]) -> list[int]:
    return load(dataset).test.inputs[0][:][:, 0, 0, 0].tolist()


def some(folder: str, count: int) -> list[str]:
    return [f"{folder}/{number}.jpg" for number in range(count)]


@pytest.mark.parametrize("test", ["val", "test", "Validation"])
def test_imagenets_layout_is_read_as_it_is(give: Give, test: str) -> None:
    images = [*some("train/cat", 4), *some("train/dog", 3), *some(f"{test}/cat", 2), *some(f"{test}/dog", 1)]
    assert prepared(give(*images)) == ([0] * 4 + [1] * 3, [0, 0, 1], ("cat", "dog"))


def test_of_two_folders_to_test_by_one_is_used_and_the_other_named(
    give: Give, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [
        f"{split}/{name}/{n}.jpg" for split in ("train", "val", "test") for name in "ab" for n in range(2)
    ]
    assert prepared(give(*images))[1] == [0, 0, 1, 1]
    assert "folder: warning: val/ isn't used: test/ is tested by" in capsys.readouterr().err


def test_classes_alone_are_divided_by_the_seed(give: Give) -> None:
    images = [*some("cat", 10), *some("train", 10)]
    first = give(*images)
    assert prepared(first) == ([0] * 8 + [1] * 8, [0, 0, 1, 1], ("cat", "train"))
    shades = shades_of(first)
    other = give(options={"seed": 1})
    prepared(other)
    assert shades_of(other) != shades


@pytest.mark.parametrize("nested", [True, False])
def test_folders_within_a_class_are_read_or_counted(
    give: Give, capsys: pytest.CaptureFixture[str], nested: bool
) -> None:
    images = [*some("cat", 5), *some("cat/more/deep", 5), *some("dog", 5)]
    train, test, _ = prepared(give(*images, options={"nested": nested}))
    assert len(train) + len(test) == (15 if nested else 10)
    said = "left out 5 files that are no images of a class: 5 .jpg; the first is cat/more/deep/0.jpg"
    assert (said in capsys.readouterr().err) is not nested


def test_a_class_that_is_a_link_is_read(give: Give, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "cats"
    elsewhere.mkdir(parents=True)
    for number in range(5):
        (elsewhere / f"{number}.png").write_bytes(picture(9, "PNG"))
    give(*some("dog", 5))
    (tmp_path / "own" / "cat").symlink_to(elsewhere)
    before = give()
    assert prepared(before)[2] == ("cat", "dog")
    (elsewhere / "0.png").write_bytes(picture(200, "PNG"))
    assert give()["content"] != before["content"]


def test_damaged_images_are_named_and_left_out_where_asked(
    give: Give, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"cat/bad.jpg": picture(3)[:200], "dog/none.png": b""}
    images = [*some("cat", 5), *some("dog", 5)]
    with pytest.raises(DataError) as refused:
        prepared(give(*images, files=files))
    text = str(refused.value)
    assert text.startswith("folder: 2 image(s) can't be read: ")
    assert "cat/bad.jpg: " in text and "dog/none.png: " in text
    assert text.endswith("; mend or remove them, or leave them out by dataset.skip_damaged=true")
    train, test, _ = prepared(give(skip_damaged=True))
    assert len(train) + len(test) == 10
    assert capsys.readouterr().err.count("warning: left out ") == 2


def test_the_content_is_known_and_read_once(
    give: Give, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [*some("cat", 3), *some("dog", 3)]
    first = give(*images)
    # A file whose size and time are the same isn't read again.
    monkeypatch.setattr("src.config.dataset_content.hashlib.file_digest", None)
    assert give()["content"] == first["content"]
    monkeypatch.undo()
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    shutil.move(tmp_path / "own/cat/0.jpg", tmp_path / "own/dog/9.jpg")
    moved = content_of(first)
    (tmp_path / "own/.hidden").touch()
    assert moved not in (first["content"], None) and content_of(first) == moved


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (["1.jpg", "2.jpg"], "has no folders of classes"),
        ([*some("cat", 3), "dog/1.jpg"], "dog has one image alone, which can't be divided"),
        ([*some("train/cat", 3), *some("train/dog", 3), *some("val/cat", 2)], "'dog' is in one alone"),
        ([*some("cat", 3)], "of one class alone"),
    ],
)
def test_what_is_no_folder_of_classes_is_answered(give: Give, images: list[str], says: str) -> None:
    with pytest.raises(DataError, match=says):
        prepared(give(*images))


def test_the_folder_must_be_given(give: Give) -> None:
    with pytest.raises(DataMistake, match=r"^dataset=folder: needs your folder: dataset.data_dir=FOLDER$"):
        ensure({**give(*some("cat", 2)), "data_dir": None, "content": None})
