"""Prepared data are of the reader as it is: an edit of it, or of what it imports, makes them anew."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from src.config.dataset_content import code_of
from src.data.catalog import configure, fingerprint
from tests.conftest import Commands
from tests.support import ROOT

DATASET = {"name": "bars", "source": "original", "reader": "own.bars.read"}
READER = """
    import numpy as np

    from own.shade import LEVEL
    from src.data.samples import ArraySource, Splits


    def read(raw, options):
        def split(count):
            labels = np.arange(count) % 2
            images = np.zeros((count, 8, 8, 1), np.uint8)
            images[labels == 0, ::2] = LEVEL
            return ArraySource((images,), (labels,))

        return Splits(split(256), split(64), names=("bars", "none"))
"""
FILE = """
    name: bars
    reader: own.bars.read
    source: original
    files: {}
    sources: []
    options: {}
    allowed: {}
"""


def write(folder: Path, *, level: int = 200, reader: str = READER) -> None:
    """A package with a reader, and what that imports."""
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own/bars.py").write_text(textwrap.dedent(reader))
    (folder / "own/shade.py").write_text(f"LEVEL = {level}\n")
    (folder / "own/other.py").write_text("print('not imported')\n")
    (folder / "conf/dataset").mkdir(parents=True, exist_ok=True)
    (folder / "conf/dataset/bars.yaml").write_text(textwrap.dedent(FILE))


def test_what_a_reader_executes_counts_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    first = code_of(DATASET)
    assert first is not None and len(first) == 12
    write(tmp_path, reader="# Of a comment nothing is made.\n" + textwrap.dedent(READER))
    (tmp_path / "own/other.py").write_text("print('another')\n")
    assert code_of(DATASET) == first
    write(tmp_path, level=100)
    assert code_of(DATASET) != first
    write(tmp_path, reader=READER.replace("::2", "::4"))
    assert code_of(DATASET) != first


def test_a_generator_counts_where_it_makes_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    with_generator = {**DATASET, "generator": "own.other.make"}
    assert code_of(with_generator) == code_of(DATASET)
    assert code_of({**with_generator, "source": "generated"}) != code_of(DATASET)
    assert code_of({**DATASET, "reader": None}) is None


def test_the_projects_own_readers_count_too() -> None:
    mnist = configure("mnist")
    assert mnist["code"] is not None and mnist["code"] != configure("flowers")["code"]
    assert fingerprint(mnist) != fingerprint({**mnist, "code": "another"})


def test_an_edited_reader_is_trained_on(module_commands: Callable[[], Commands], tmp_path: Path) -> None:
    """The images, as the run's configuration knows them, were those of the first reader."""
    commands = module_commands()
    words = ("--config-dir", "conf", "dataset=bars", "model=mlp", "batch=64", "tracking.backend=none")
    words = (*words, "hardware.device=cpu", "hardware.share_devices=true", "epochs=1", "out=run")
    shell = {"PYTHONPATH": f"{ROOT}:{commands.folder}", "SCALEGUIDE_CACHE": str(tmp_path)}
    for level in (200, 100):
        write(commands.folder, level=level)
        completed = commands.run(*words, **shell)
        assert completed.returncode == 0, completed.stderr
    prepared = list((tmp_path / "prepared").glob("bars-*/meta.json"))
    assert len(prepared) == 2 and prepared[0].read_text() != prepared[1].read_text()
