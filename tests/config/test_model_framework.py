"""Which framework a model is of is told from its path and its file, without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from src.config import ConfigError, import_paths
from src.config.model_framework import framework_of
from tests.support import config


@pytest.mark.parametrize(
    ("path", "framework"),
    [
        ("torchvision.models.resnet34", "torch"),
        ("torchvision.models.alexnet", "torch"),
        ("keras.applications.MobileNetV2", "tensorflow"),
        ("tests.partition.models.Tied", "torch"),
        ("tests.models.own_keras.unbuilt", "tensorflow"),
        ("json.dumps", None),
        ("nowhere.at.all", None),
    ],
)
def test_the_framework_of_a_model(path: str, framework: str | None) -> None:
    before = set(sys.modules)
    assert framework_of(path) == framework
    assert not {"torch", "tensorflow", "keras"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    ("strategy", "path", "told"),
    [
        (
            "tf_single",
            "torchvision.models.resnet34",
            "is a model of torch, and strategy=tf_single trains",
        ),
        ("single", "tests.models.own_keras.unbuilt", "strategies of tensorflow are tf_custom, tf_mirrored"),
    ],
)
def test_a_model_of_the_other_framework_is_said_to_be(strategy: str, path: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config(f"strategy={strategy}", "model=custom", f"model.path={path}")


def test_a_path_that_is_also_a_modules_names_what_can_be_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchvision.models.alexnet does: the function is in the module of its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "zoo_of_ours"
    package.mkdir()
    (package / "__init__.py").write_text("from zoo_of_ours.net import net\n")
    (package / "net.py").write_text("def net(): return 1\n")
    (package / "plain.py").write_text("def plain(): return 2\nother = 3\n")
    (package / "empty.py").write_text("other = 3\n")
    for name, result in (("net", 1), ("plain", 2)):
        import_paths.check("model.path", f"zoo_of_ours.{name}")
        assert import_paths.resolve("model.path", f"zoo_of_ours.{name}")() == result
    assert import_paths.resolve("model.path", "zoo_of_ours.net.net")() == 1
    with pytest.raises(ConfigError, match="is a module"):
        import_paths.check("model.path", "zoo_of_ours.empty")
