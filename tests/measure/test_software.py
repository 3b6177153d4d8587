"""What a run's software is: what is executed, and of that what can touch its figures."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config import python_source
from src.measure import parent_code, software
from src.measure.software import own_files, software_of
from tests.support import ROOT, config

PLAIN = '''
"""Half of a thing."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from a import B

def half(x: float, by: int = 2) -> "B":
    """Return a half."""
    if x:
        return x / by
    return 0

class Half:
    """A half."""
    key = "it's"
'''


def digest(folder: Path, content: str | bytes) -> str:
    path = folder / "module.py"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return python_source.read(path).digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return 0", "    # By default.\n    return 0"),
        ("Half of a thing.", "Another word."),
        ("    from a import B\n", "    from a.b import B\n    from c import d\n"),
        ('    """Return a half."""\n', ""),
        ('    """A half."""\n', '    """Something else."""\n'),
        ("x / by", "(\n            x / by\n        )"),
        ('"it\'s"', "'it\\'s'"),
        ("\n", "\r\n"),
        ("\n\n", "\n\n\n"),
    ],
)
def test_comments_docstrings_and_layout_make_no_other_software(tmp_path: Path, old: str, new: str) -> None:
    assert old in PLAIN
    assert digest(tmp_path, PLAIN.replace(old, new)) == digest(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [("x / by", "x // by"), ("= 2", "= 3"), ("int", "float"), ("it's", "its"), ("Half:", "Half(int):")],
)
def test_what_is_executed_makes_other_software(tmp_path: Path, old: str, new: str) -> None:
    assert digest(tmp_path, PLAIN.replace(old, new)) != digest(tmp_path, PLAIN)


def test_what_is_no_python_is_known_by_its_bytes(tmp_path: Path) -> None:
    for content in (b"def (:  # a comment\n", b"\xff\n", b"a\0b"):
        assert digest(tmp_path, content) == hashlib.sha256(content).hexdigest()


def test_a_file_of_a_former_run_is_never_taken_for_a_present_ones() -> None:
    """Former runs have recorded the sha256 of each file's bytes, under the same name."""
    files = software_of(config())["files"]
    assert "src/worker.py" in files
    for name, known in files.items():
        assert known != hashlib.sha256((ROOT / name).read_bytes()).hexdigest()


def test_imports_are_followed_wherever_they_stand_and_however_they_are_written(tmp_path: Path) -> None:
    files = {
        "own/start.py": "import own.plain as p\nfrom own import sub\nCOMMAND = ['-m', 'own.command']\n",
        "own/plain.py": "def f():\n    try:\n        import lib.inner\n    finally:\n        pass\n",
        "own/command.py": "match 1:\n    case 1:\n        from own.package import relative\n",
        "own/sub.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import own.typed, typedlib\n",
        "own/typed.py": "",
        "own/unused.py": "",
        "own/package/__init__.py": "from .first import a\n",
        "own/package/first.py": "from . import second\n",
        "own/package/second.py": "from ..above import *\n",
        "own/package/relative.py": "text = 'no.module'\n",
        "own/above.py": "'own.unused'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found, elsewhere = python_source.reach(["own.start.train", "far.away"], [tmp_path])
    names = {str(path.relative_to(tmp_path)) for path in found.values()}
    assert names == files.keys() - {"own/typed.py", "own/unused.py"}
    assert found["own.package"].name == "__init__.py"
    assert elsewhere == {"typing", "lib", "far"}


def choices(group: str) -> Iterator[dict[str, Any]]:
    for path in (ROOT / "conf" / group).glob("*.yaml"):
        yield yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def of_ranks() -> set[str]:
    """The modules that any rank of the project's own strategies, models, tasks and datasets can import."""
    paths = [software.RANK]
    for strategy in choices("strategy"):
        paths += [
            strategy.get("entry"),
            strategy.get("serve"),
            (strategy.get("exchange") or {}).get("profile"),
        ]
    for choice in (*choices("model"), *choices("task"), *choices("dataset")):
        paths += [choice.get(key) for key in ("torch", "tensorflow", "reader", "in_memory", "generator")]
    return set(python_source.reach(filter(None, paths), [ROOT])[0])


@pytest.fixture(scope="module")
def of_parent() -> set[str]:
    """The modules to which the imports of the parent, any launcher and any engine lead."""
    paths = [choice["launcher"] for choice in choices("strategy")]
    paths += [choice["engine"] for choice in choices("hardware") if "engine" in choice]
    return set(python_source.reach(["src.train", *paths], [ROOT])[0])


def test_of_each_module_of_the_parent_it_is_known_whether_it_touches_figures(
    of_ranks: set[str], of_parent: set[str]
) -> None:
    """Add a module that this names to the table of `src/measure/parent_code.py` where it belongs."""
    listed = {*parent_code.FIGURES, *parent_code.SOMETIMES, *parent_code.NO_FIGURE}
    launchers = {choice["launcher"].rpartition(".")[0] for choice in choices("strategy")}
    # A package is listed by its modules.
    packages = {name.rpartition(".")[0] for name in listed}

    def is_listed(module: str) -> bool:
        return module in listed or ("." in module and is_listed(module.rpartition(".")[0]))

    assert {each for each in of_parent - of_ranks - launchers - packages if not is_listed(each)} == set()


def test_the_tables_name_what_there_is_and_nothing_twice(of_parent: set[str]) -> None:
    every = [*parent_code.FIGURES, *parent_code.SOMETIMES, *parent_code.NO_FIGURE]
    assert len(every) == len(set(every))
    assert set(every) - of_parent == set()


def test_no_module_that_a_rank_can_import_is_said_to_touch_no_figure(of_ranks: set[str]) -> None:
    """Packages may be, of which ranks import a part."""
    assert of_ranks & parent_code.NO_FIGURE.keys() == {"src.compat", "src.config"}


LOCAL = ("strategy=ddp", "workers=1")


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (
            ("hardware.probe=true",),
            {
                "src/launch/supervise/exchange_benchmark.py",
                "src/launch/supervise/substitute.py",
                "src/runtime/torch/exchange_profile.py",
            },
        ),
        (("profiler=true",), {"src/runtime/torch/step_profiler.py"}),
        (("strategy=mpi",), {"src/launch/mpi/agent.py", "src/launch/mpi/agents.py"}),
        (("strategy=tf_multiworker",), {"src/launch/tf_workers.py", "src/compat/keras.py"}),
        (("model=lstm",), {"src/models/torch/lstm.py"}),
        (("dataset=cifar10", "dataset.source=generated"), {"src/data/generated/cifar10.py"}),
    ],
)
def test_code_counts_where_a_run_uses_it(words: tuple[str, ...], there: set[str]) -> None:
    plain, files = (software_of(config(*LOCAL, *more))["files"].keys() for more in ((), words))
    assert there <= files
    assert not there & plain


def test_code_of_emulated_hosts_and_clusters_counts_there_alone() -> None:
    local = config(*LOCAL)
    links = {
        "src/launch/emulated/switch.py",
        "src/launch/emulated/router.py",
        "src/launch/emulated/link_probe.py",
    }
    cluster = {"src/launch/cluster/agent.py", "src/launch/cluster/ray_engine.py"}

    def files(**hardware: Any) -> set[str]:
        changed = replace(local, hardware=replace(local.hardware, **hardware))
        return set(software_of(changed)["files"])

    assert not files() & (links | cluster)
    assert files() | links <= files(links={}) and not files(links={}) & cluster
    engine = "src.launch.cluster.ray_engine.connect"
    assert files() | cluster <= files(engine=engine) and not files(engine=engine) & links


def test_libraries_are_those_that_what_counts_imports() -> None:
    torch, tensorflow = (
        software_of(config(f"strategy={name}"))["libraries"] for name in ("mpi", "tf_single")
    )
    assert {"python", "torch", "pytorch_lightning", "mpi4py", "mpich", "numpy", "pyyaml"} <= torch.keys()
    assert {"python", "tensorflow", "keras", "numpy"} <= tensorflow.keys()
    assert not {"mlflow", "hydra-core", "omegaconf", "requests", "rich", "dvc"} & (torch | tensorflow).keys()
    assert not {"tensorflow", "keras"} & torch.keys() and not {"torch", "mpi4py"} & tensorflow.keys()


def test_the_users_own_code_counts_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the working directory, or on PYTHONPATH; what its files import there belongs to it."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "mine").mkdir(parents=True)
    (here / "mine" / "tiny.py").write_text("from mine.layers import layer\n\n\ndef build(**options): ...\n")
    (here / "mine" / "layers.py").write_text("import einops\nimport more.parts\n\nlayer = 1\n")
    (there / "more").mkdir(parents=True)
    (there / "more" / "__init__.py").write_text("")
    (there / "more" / "parts.py").write_text("part = 1\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", f"{there}")
    monkeypatch.syspath_prepend(here)
    chosen = config("model=custom", "model.path=mine.tiny.build")
    files = software_of(chosen)["files"]
    assert {"mine.tiny", "mine.layers", "more", "more.parts"} <= files.keys()
    assert own_files(chosen) == {
        "mine/tiny.py": here / "mine" / "tiny.py",
        "mine/layers.py": here / "mine" / "layers.py",
        "more/__init__.py": there / "more" / "__init__.py",
        "more/parts.py": there / "more" / "parts.py",
    }
    (there / "more" / "parts.py").write_text("# A part.\npart = 1\n")
    assert software_of(chosen)["files"] == files
    (there / "more" / "parts.py").write_text("part = 2\n")
    changed = software_of(chosen)["files"]
    assert {name for name in files if files[name] != changed[name]} == {"more.parts"}
    # Another clone in another folder computes by the same software.
    shutil.copytree(here, tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert software_of(chosen)["files"] == changed
