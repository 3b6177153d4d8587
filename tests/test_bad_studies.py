"""A study that can't be composed or run ends with a sentence; a cell that can't be run costs only itself."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.support import ROOT
from tests.test_pipeline import Tree
from tests.test_study_datasets import CODE

pytestmark = pytest.mark.slow

STUDY = """
name: {name}
datasets: [mnist]
grid: {grid}
"""
CELL = "strategy: single, model: mlp, dataset: mnist"
# Grids with a mistake, and what the line says.
GRIDS = {
    "no such strategy": ("[{strategy: dpp, model: mlp, dataset: mnist}]", "did you mean ddp?"),
    "no number": (f"[{{{CELL}, batch: [64, many]}}]", "batch=many: must be a whole number"),
    "no such key": (f"[{{{CELL}, bacth: 64}}]", "did you mean batch?"),
    "a cell twice": (f"[{{{CELL}}}, {{{CELL}}}]", "names a cell twice"),
    "no dataset": ("[{strategy: single, model: mlp}]", "block 1 lacks `dataset`"),
    "no list": (f"{{{CELL}}}", "must be a list of blocks"),
    "a text": ("everything", "must be a list of blocks"),
    "empty": ("[]", "must be a list of blocks"),
    "nothing": ("null", "must be a list of blocks"),
    "an empty block": ("[{}]", "block 1 is {}"),
    "no block": ("[single, ddp]", "block 1 is 'single'"),
    "an empty list": (f"[{{{CELL}, batch: []}}]", "an empty list gives no cell"),
    "a dataset that isn't listed": (
        "[{strategy: single, model: mlp, dataset: fashion_mnist}]",
        "lacks fashion_mnist, which the grid uses",
    ),
    "a batch that doesn't divide": (
        "[{strategy: ddp, workers: 2, model: mlp, dataset: mnist, batch: 127}]",
        "the nearest is 126",
    ),
    "its own directory": (f"[{{{CELL}, out: here}}]", "is the study's to set"),
}
# Grids of which dvc is asked for real.
TYPED = ("no such strategy", "nothing", "a batch that doesn't divide")
RUN = ("dvc", "exp", "run", "-S")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, mnist: None) -> Tree:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    made = Tree(tmp_path_factory.mktemp("studies"))
    del made.environment["SCALEGUIDE_MAX_CELLS"]
    return made


def compose(tree: Tree, name: str, grid: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tree.folder / f"conf/study/{name}.yaml").write_text(STUDY.format(name=name, grid=grid))
    before = dict(tree.environment)
    tree.environment |= environment
    try:
        return tree.run(*RUN, f"study={name}")
    finally:
        tree.environment = before
        (tree.folder / f"conf/study/{name}.yaml").unlink()


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What is said of each grid while it is composed."""
    studies = {
        name: {"datasets": ["mnist"], "grid": yaml.safe_load(grid)} for name, (grid, _) in GRIDS.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, input=json.dumps(studies), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_with_a_mistake_is_told_in_a_sentence(name: str, told: dict[str, Any]) -> None:
    assert isinstance(told[name], str) and GRIDS[name][1] in told[name] and "\n" not in told[name]


@pytest.mark.parametrize("name", TYPED)
def test_a_grid_with_a_mistake_is_one_line_of_dvc(name: str, tree: Tree) -> None:
    grid, says = GRIDS[name]
    completed = compose(tree, "tried", grid)
    (line,) = completed.stderr.splitlines()
    assert line.startswith("error: study tried: ") and says in line, line
    assert completed.returncode == 255 and completed.stdout == ""
    assert tree.run("git", "status", "--porcelain").stdout == ""


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SCALEGUIDE_MAX_CELLS", "0"), ("SCALEGUIDE_MAX_MINUTES", "nan")],
)
def test_a_cap_that_is_no_number_is_one_line(variable: str, value: str, tree: Tree) -> None:
    completed = compose(tree, "tried", f"[{{{CELL}}}]", **{variable: value})
    (line,) = completed.stderr.splitlines()
    assert f"{variable}={value}: must be" in line and completed.returncode == 255


def test_names_for_no_folder_are_refused(tree: Tree) -> None:
    (tree.folder / "conf/study/evil.yaml").write_text(STUDY.format(name="../../evil", grid=f"[{{{CELL}}}]"))
    completed = tree.run(*RUN, "study=evil")
    (tree.folder / "conf/study/evil.yaml").unlink()
    assert "study.name=../../evil: must be a word" in completed.stderr
    assert completed.returncode == 255


@pytest.mark.parametrize(
    ("name", "text"), [("nosuch", None), ("broken", "name: broken\ndatasets: [mnist\ngrid:\n")]
)
def test_a_study_that_cannot_be_read_is_told_of_by_dvc(name: str, text: str | None, tree: Tree) -> None:
    file = tree.folder / f"conf/study/{name}.yaml"
    if text is not None:
        file.write_text(text)
    completed = tree.run(*RUN, f"study={name}")
    file.unlink(missing_ok=True)
    assert completed.returncode == 255 and "Traceback" not in completed.stderr
    assert name in completed.stderr.splitlines()[0] + completed.stderr.splitlines()[1]


@pytest.mark.parametrize("text", ["study: [\n", "", "study: 5\n"])
def test_a_damaged_params_file_is_told_of_by_dvc(text: str, tree: Tree) -> None:
    (tree.folder / "params.yaml").write_text(text)
    completed = tree.run("dvc", "repro")
    tree.run("git", "checkout", "-q", "params.yaml")
    assert completed.returncode == 255 and "Traceback" not in completed.stderr
    for module in ("src.fetch", "src.aggregate"):
        (tree.folder / "params.yaml").write_text(text)
        said = tree.run("python", "-m", module)
        tree.run("git", "checkout", "-q", "params.yaml")
        assert said.returncode == 2 and len(said.stderr.splitlines()) == 1, said.stderr


def test_an_edited_cell_with_a_mistake_ends_dvc_after_our_line(tree: Tree) -> None:
    params = tree.folder / "params.yaml"
    params.write_text(params.read_text().replace("batch=128", "batch=abc"))
    completed = tree.run("dvc", "repro", "train")
    tree.run("git", "checkout", "-q", "params.yaml")
    assert completed.returncode == 255 and "Traceback" not in completed.stderr
    assert "error: batch=abc: must be a whole number" in completed.stderr.splitlines()


def test_a_cell_that_the_machine_cannot_run_is_skipped_with_its_reason(tree: Tree) -> None:
    grid = f"[{{{CELL}}}, {{strategy: ddp, workers: 1000, batch: 1000, model: mlp, dataset: mnist}}]"
    completed = compose(tree, "skipping", grid)
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-2000:]
    reason = "workers=1000: there are"
    assert any(line.startswith(f"skipped: {reason}") for line in completed.stderr.splitlines())
    results = tree.folder / "results/skipping"
    cells = yaml.safe_load((tree.folder / "params.yaml").read_text())["study"]["cells"]
    good, bad = cells
    with (results / "tables/scaling.csv").open() as file:
        statuses = {row["cell"]: row["status"] for row in csv.DictReader(file)}
    assert statuses[good] in ("ok", "time_limit") and statuses[bad] == "skipped"
    metrics = json.loads((results / "runs" / bad / "metrics.json").read_text())
    assert metrics["workers"] == 1000 and metrics["samples_per_second"] is None
    for shown in (completed.stdout, (results / "report.html").read_text()):
        assert reason in shown and "skipped" in shown
    assert tree.run("python", "-m", "src.aggregate", "--failed").stdout == f"{bad}\n"
    tree.run("git", "checkout", "-q", "params.yaml")
