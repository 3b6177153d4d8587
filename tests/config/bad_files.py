"""Files that a user may bring, and that aren't what they should be: YAML, modules, checkpoints, studies."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from tests.support import ROOT

MODULES = {
    "mods/__init__.py": "",
    "mods/syntax.py": "def x(:\n    pass\n",
    "mods/importing.py": "import nothing_of_this_name\n",
    "mods/stops.py": "import sys\n\nsys.exit(5)\n",
    "mods/reader.py": "def badreader(raw, options):\n    raise RuntimeError('reader broke')\n",
    "mods/generator.py": "def bad(target, **options):\n    raise RuntimeError('generator broke')\n",
    "mods/bad.py": """
import sys
import time

notcallable = 5
calls = []


def raises(**options):
    raise ValueError("model broke")


def exits(**options):
    sys.exit(0)


def exits3(**options):
    sys.exit(3)


def nothing(**options):
    return None


def hangs(**options):
    time.sleep(1000)


def takes_width(width, classes):
    import torch

    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, classes))
""",
    "mods/worse.py": """
import os


def exit0(**options):
    os._exit(0)


def exit79(**options):
    os._exit(79)
""",
}


class Bomb:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self._mark}'",)


def make(folder: Path) -> Path:
    """Write all of them into `folder`; a bomb that goes off leaves the file `exploded` there."""
    for name, text in MODULES.items():
        _write(folder / name, text)
    _checkpoints(folder)
    _choices(folder)
    return folder


def _write(path: Path, content: str | dict[str, Any] | list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))


def _checkpoints(folder: Path) -> None:
    bomb = Bomb(folder / "exploded")
    (folder / "garbage.pt").write_bytes(b"no checkpoint " * 100)
    (folder / "empty.pt").write_bytes(b"")
    (folder / "bomb.pt").write_bytes(pickle.dumps(bomb))
    torch.save({"model": bomb}, folder / "bomb2.pt")
    torch.save([1, 2, 3], folder / "list.pt")
    torch.save({"epoch": 0, "step": 1}, folder / "short.pt")
    whole = {"model": {}, "optimizer": {"name": "sgd", "state": {}}, "seed": 0, "global_batch": 128}
    torch.save({**whole, "epoch": "one", "step": None}, folder / "words.pt")
    torch.save({**whole, "epoch": 0, "step": 1, "optimizer": 7}, folder / "seven.pt")
    objects = np.empty(1, object)
    objects[0] = bomb
    np.savez(folder / "obj.npz", epoch=objects, allow_pickle=True)
    with zipfile.ZipFile(folder / "bomb.npz", "w") as archive:
        archive.writestr("epoch.npy", pickle.dumps(bomb))


def _choices(folder: Path) -> None:
    mnist = yaml.safe_load((ROOT / "conf/dataset/mnist.yaml").read_text())
    single = yaml.safe_load((ROOT / "conf/strategy/single.yaml").read_text())
    mlp = yaml.safe_load((ROOT / "conf/model/mlp.yaml").read_text())
    first = next(iter(mnist["files"]))
    small = {"reader": "mods.reader.badreader", "source": "generated", "files": {}, "sources": []}
    limits = {"options": {}, "limit": None, "test_limit": None}
    nowhere = [{"path": "/nonexistent/{file}"}]
    registered = {
        **{"reader": "mods.reader.badreader", "source": "original", "generator": "mods.generator.bad"},
        **{"files": {"a.zip": None, "b.zip": f"md5:{'0' * 32}"}, "sources": [], "unpack": None},
        **{"registration": "Register, and download both.", "page": "https://data.example"},
        **{"data_dir": None, "fraction": 0.02, "generator_seed": 0, "size": None},
    }
    datasets: dict[str, Any] = {
        "registered": registered,
        "nogenerator": {**registered, "generator": "mods.generator.bda"},
        "badunpack": {**registered, "unpack": {"bytes": 5}},
        "badmd5": {**registered, "files": {"a.zip": "md5:123"}},
        "othersource": {**registered, "source": "made"},
        "wrongsha": {**mnist, "files": {first: "0" * 64}, "sources": [{"path": str(folder / "garbage.pt")}]},
        "noreader": {**small, "reader": "nothere.read"},
        "badreader": small,
        "nofile": {**small, "files": {"f.txt": "0" * 64}, "sources": nowhere},
        "evilname": {**small, "name": "../../../../evil", "files": {"f.txt": "0" * 64}, "sources": nowhere},
        "evilfile": {**small, "files": {"../../x": "0" * 64}, "sources": [{"path": "/etc/passwd"}]},
        "badsha": {**small, "files": {"f.txt": 5}, "sources": nowhere},
        "badsource": {**small, "files": {"f.txt": "0" * 64}, "sources": ["/etc/passwd"]},
        "listfiles": {**small, "files": ["f.txt"]},
        "attribute": {**small, "reader": "mods.reader.badreadr"},
    }
    for name, content in datasets.items():
        _write(
            folder / f"conf/dataset/{name}.yaml",
            {"name": name, **limits, **content} | ({"name": name} if name != "evilname" else {}),
        )
    _write(folder / "conf/model/broken.yaml", "name: broken\ntorch: a: b\n")
    _write(folder / "conf/model/tabs.yaml", "name: tabs\n\ttorch: x\n")
    (folder / "conf/model/latin.yaml").write_bytes(b"name: caf\xe9\n")
    _write(
        folder / "conf/model/nowhere.yaml", {**mlp, "name": "nowhere", "torch": "src.models.torch.mpl.build"}
    )
    _write(folder / "conf/model/none.yaml", {**mlp, "name": "none", "torch": None, "tensorflow": None})
    _write(folder / "conf/model/number.yaml", {**mlp, "name": 5, "torch": 7})
    _write(folder / "conf/hardware/nameless.yaml", {"cores_per_device": 1})
    _write(folder / "conf/hardware/misspelt.yaml", {"name": "misspelt", "cores_per_devise": 1})
    _write(folder / "conf/hardware/words.yaml", {"name": "words", "cores_per_device": "many"})
    supports = single["supports"]
    strategies: dict[str, Any] = {
        "lacks": {key: value for key, value in single.items() if key != "supports"},
        "lacks2": {**single, "supports": {k: v for k, v in supports.items() if k != "workers"}},
        "lacks3": {**single, "supports": {**supports, "workers": {"default": 1}}},
        "listsupports": {**single, "supports": ["cpu"]},
        "otherframework": {**single, "framework": "jax"},
        "nolaunch": {**single, "launcher": "src.launch.nosuch.Launcher"},
        "nolauncher": {key: value for key, value in single.items() if key != "launcher"},
        "noentry": {**single, "entry": "src.strategies.torch.single.nothere"},
        "numberentry": {**single, "entry": 5},
        "needsnothing": {**single, "supports": {**supports, "needs": [{"key": "bacth", "is": 1}]}},
    }
    for name, content in strategies.items():
        _write(folder / f"conf/strategy/{name}.yaml", {**content, "name": name})
    _write(folder / "conf/strategy/empty.yaml", "")
    _write(folder / "conf/strategy/listy.yaml", ["name", "listy"])
    _write(folder / "conf/strategy/text.yaml", "just a text")
