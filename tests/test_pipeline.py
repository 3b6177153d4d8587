"""Studies compose, the graph runs what is stale and nothing else, and a failed cell costs only itself."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo
from dvc.repo.reproduce import plan_repro

from src.config import compose, python_source
from src.measure.metrics import KEYS
from src.report import findings, tables
from src.report.runs import StudyRun, labels
from src.run.variables import FORK_SERVERS
from tests.report.recompute import differences
from tests.report.recompute_page import wrong_figures, wrong_numbers
from tests.support import ROOT, instances

pytestmark = pytest.mark.timed

STUDIES = sorted(path.stem for path in (ROOT / "conf" / "study").glob("*.yaml"))
# Studies that stand for all: `make bench` looks at the others.
QUICK = ("quick", "tensorflow", "unequal")
LIMIT_SECONDS = 240
CAPS = ("SCALEGUIDE_MAX_CELLS", "SCALEGUIDE_MAX_MINUTES", "MLFLOW_TRACKING_URI")
REPEAT_SECONDS = 5
# A study whose second cell's rank fails as soon as it builds its model.
BROKEN = """
name: broken
datasets: [mnist, fashion_mnist]
grid:
  - {strategy: single, model: mlp, dataset: mnist, batch: 128}
  - {strategy: single, model: custom, model.path: math.pi, dataset: mnist, batch: 128}
cells: ${cells:${study.grid}}
published: []
findings: []
"""
# A study of short cells with enough steps for a throughput.
TINY = """
name: tiny
datasets: [mnist, fashion_mnist]
grid:
  - {strategy: [single, ddp], workers: 1, model: mlp, dataset: mnist, batch: 32, dataset.limit: 4096}
repeat: 1
cells: ${cells:${study.grid},${study.repeat}}
"""
# A study of one cell, known by its number of samples.
QUEUED = """
name: queued
datasets: [mnist, fashion_mnist]
grid: [{strategy: single, model: mlp, dataset: mnist, dataset.limit: 2048}]
cells: ${cells:${study.grid}}
"""


@pytest.fixture(autouse=True)
def uncapped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CAPS:
        monkeypatch.delenv(name, raising=False)


def composed(folder: Path, *studies: str) -> list[dict[str, Any]]:
    """What DVC writes into params.yaml for each of the studies, or for `quick` with an override."""
    conf = str(ROOT / "conf")
    code = "from dvc.utils.hydra import compose_and_dump\n"
    for name in studies:
        words = [f"study={name}"] if "=" not in name else ["study=quick", name]
        arguments = (str(folder / f"{name}.yaml"), conf, None, "study", conf, words)
        code += f"compose_and_dump(*{arguments!r})\n"
    # In a process of its own: Hydra looks for plugins once in each.
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS, capture_output=True, text=True)
    return [yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in studies]


class Studies(dict[str, dict[str, Any]]):
    """Studies' compositions without caps: of the quick ones, and of all once another is asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> dict[str, Any]:
        names = QUICK if name in QUICK else STUDIES
        with pytest.MonkeyPatch.context() as patch:
            for cap in CAPS:
                patch.delenv(cap, raising=False)
            self.update(zip(names, composed(self._folder, *names), strict=True))
        return self[name]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    return Studies(tmp_path_factory.mktemp("composed"))


def test_the_committed_params_are_the_default_studys(tmp_path: Path) -> None:
    shown = subprocess.run(["git", "show", "HEAD:params.yaml"], cwd=ROOT, capture_output=True, text=True)
    if shown.returncode:
        pytest.skip("not a git checkout")
    assert [yaml.safe_load(shown.stdout)] == composed(tmp_path, "quick")


@pytest.mark.parametrize("name", instances(STUDIES, *QUICK))
def test_every_study_composes_into_cells(name: str, studies: Studies) -> None:
    study = studies[name]["study"]
    assert study["name"] == name
    cells = study["cells"]
    different = {cell["overrides"] for cell in cells.values()}
    # Where workers share devices, nothing is timed that could be repeated.
    shared = {words for words in different if "'hardware.share_devices=true'" in words}
    assert len(cells) == study["repeat"] * len(different - shared) + len(shared) > 0
    for cell in cells.values():
        assert (ROOT / "src" / "runtime" / cell["framework"]).is_dir()
        assert cell["dataset"] == study["folders"][cell["folder"]]["name"]


def test_cells_are_capped_in_the_grids_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, studies: Studies
) -> None:
    whole = list(studies["quick"]["study"]["cells"])
    monkeypatch.setenv("SCALEGUIDE_MAX_CELLS", "2")
    (capped,) = composed(tmp_path, "quick")
    configurations = {cell["configuration"] for cell in capped["study"]["cells"].values()}
    assert configurations == set(whole[:2])


def test_minutes_are_capped_in_name_and_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A capped result must not be taken for an uncapped one from DVC's cache.
    monkeypatch.setenv("SCALEGUIDE_MAX_MINUTES", "0.25")
    (capped,) = composed(tmp_path, "quick")
    assert capped["study"]["cells"]
    for cell in capped["study"]["cells"].values():
        assert "-max_minutes=0.25" in cell["configuration"]
        assert "'max_minutes=0.25'" in cell["overrides"]


class Tree:
    """A copy of the working tree as its own repository, with the commands of this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tree"
        names = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(names, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in listed.split("\0"):
            # dvc.lock belongs to whoever measures.
            if name and name != "dvc.lock" and (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)
        who = {"NAME": "tester", "EMAIL": "tester@localhost"}
        self.environment = {
            **os.environ,
            **{f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DVC_SITE_CACHE_DIR": str(folder / "site"),
            "SCALEGUIDE_MAX_MINUTES": "0.03",
            "SCALEGUIDE_MAX_CELLS": "2",
        }
        # Their code is the repository's.
        self.environment.pop(FORK_SERVERS, None)
        # Stages leave bytecode beside the code that they depend on.
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "copy"]):
            assert self.run("git", *words).returncode == 0

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return Tree(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def quick(tree: Tree) -> subprocess.CompletedProcess[str]:
    """The default study, capped, run as a DVC experiment."""
    completed = tree.run("dvc", "exp", "run", "-S", "study=quick", "-S", "study.repeat=1")
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-4000:]
    return completed


@pytest.mark.parametrize(
    ("edited", "stale"),
    [
        ("conf/model/mlp.yaml", lambda cell: cell["model"] == "mlp"),
        ("conf/strategy/tf_mirrored.yaml", lambda cell: cell["strategy"] == "tf_mirrored"),
        ("conf/config.yaml", lambda cell: True),
    ],
)
def test_an_edit_makes_only_the_cells_that_read_the_file_stale(
    tmp_path: Path,
    studies: Studies,
    edited: str,
    stale: Callable[[dict[str, Any]], bool],
) -> None:
    cells = studies["tensorflow"]["study"]["cells"]
    stages = deps_of_stages(tmp_path, studies["tensorflow"])
    trains = {name.partition("@")[2]: deps for name, deps in stages.items() if name.startswith("train@")}
    assert trains.keys() == cells.keys()
    holding = {edited, *map(str, Path(edited).parents)}
    dependents = {name for name, deps in trains.items() if holding & deps}
    assert dependents == {name for name, cell in cells.items() if stale(cell)} != set()


def deps_of_stages(folder: Path, params: dict[str, Any]) -> dict[str, set[str]]:
    """The dependencies of each stage. The graph alone: neither code nor data are needed to ask for them."""
    graph = folder / "graph"
    subprocess.run(["git", "init", "-q", graph], check=True)
    (graph / ".dvc").mkdir()
    shutil.copy2(ROOT / ".dvc" / "config", graph / ".dvc")
    shutil.copy2(ROOT / "dvc.yaml", graph)
    (graph / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    with Repo(str(graph)) as repo:
        return {
            stage.name: {dep.def_path for dep in stage.deps}
            for stage in repo.index.stages
            if getattr(stage, "name", "")
        }


def test_each_other_stage_depends_on_all_code_that_it_imports(tmp_path: Path, studies: Studies) -> None:
    deps = deps_of_stages(tmp_path, studies["quick"])
    for stage in ("fetch", "preprocess@mnist", "aggregate", "software"):
        found, _ = python_source.reach([f"src.{stage.partition('@')[0]}"], [ROOT])
        files = {path: str(path.relative_to(ROOT)) for path in found.values() if path.name != "__init__.py"}
        uncovered = [
            file for path, file in files.items() if not {file, *map(str, Path(file).parents)} & deps[stage]
        ]
        assert uncovered == []


def test_a_repetition_is_a_stage_of_its_own_and_rounds_are_walked_one_after_the_other(
    tmp_path: Path,
) -> None:
    once, thrice = composed(tmp_path, "study.repeat=1", "study.repeat=3")
    alone, cells = (known["study"]["cells"] for known in (once, thrice))
    # One repetition more leaves the stages of the others as they were: name, command, dependencies.
    assert {name: cells[name] for name in alone} == alone
    assert all(cells[f"{name}-r{n}"] == {**cells[name], "repetition": n} for name in alone for n in (2, 3))
    planned = [name.removeprefix("train@") for name in walked(tmp_path, thrice) if name.startswith("train@")]
    assert planned == list(cells)
    count = len(alone)
    assert [cells[name]["repetition"] for name in planned] == [1] * count + [2] * count + [3] * count
    named = [cells[name]["configuration"] for name in planned]
    second, third = named[count : 2 * count], named[2 * count :]
    assert sorted(second) == sorted(third) == sorted(alone) and second != list(alone)


def walked(folder: Path, params: dict[str, Any]) -> list[str]:
    """The stages in the order in which `dvc repro` runs them."""
    deps_of_stages(folder, params)
    with Repo(str(folder / "graph")) as repo:
        stages = [stage for stage in repo.index.stages if getattr(stage, "name", "")]
        return [getattr(stage, "name", "") for stage in plan_repro(repo.index.graph, stages)]


@pytest.mark.parametrize("name", instances(STUDIES, *QUICK))
def test_no_finding_of_a_study_mixes_unlike_runs(name: str, studies: Studies) -> None:
    study = studies[name]["study"]
    words = [shlex.split(cell["overrides"]) for cell in study["cells"].values()]
    seen = {"software": {"files": {"src/worker.py": "f00"}}, "started": 1.0}
    metrics = {**dict.fromkeys(KEYS, 1.0), **dict.fromkeys(("status", "data_source"), "ok")}
    runs = []
    for cell, (_, raw, _) in zip(study["cells"], compose.name_rows(words), strict=True):
        supports = raw["strategy"]["supports"]
        config = {**raw, "workers": raw["workers"] or supports["workers"]["default"]}
        known = {"strategy": raw["strategy"]["name"], "framework": raw["strategy"]["framework"]}
        known |= {group: raw[group]["name"] for group in ("model", "dataset", "hardware")} | {
            "seed": raw["seed"]
        }
        known |= {key: config[key] for key in ("workers", "batch", "scaling")}
        known["microbatches"] = config["microbatches"] or supports["microbatches"]["default"]
        declared = study["cells"][cell]
        whole = {**metrics, **known, "shared_device": False}
        runs.append(StudyRun(cell, "ok", Path("nowhere"), declared, config, whole, seen))
    scaled = {"scaling": tables.scaling(runs, study.get("baseline"))}
    rows = tables.merged(runs, scaled, labels(runs))
    for claim in study.get("findings") or []:
        assert "unlike" not in findings.check(claim, rows).numbers, claim
    # Each has its baseline in the study, but for L-BFGS on whole epochs.
    alone = {row["strategy"] for row in rows if not row["baseline"]}
    # Speeds of runs that are predicted, and steps to a target, are held against no baseline.
    without = name in ("predicted", "predicted_others", "batches_to_target")
    assert without or alone == ({"sandblaster_lbfgs"} if name == "asynchronous" else set())


@pytest.mark.parametrize("repeat", ["0", "1.5", "true"])
def test_a_wrong_number_of_repetitions_is_answered_in_a_sentence(tmp_path: Path, repeat: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        composed(tmp_path, "quick", f"study.repeat={repeat}")
    assert f"study.repeat={repeat.capitalize()}: must be a whole number, at least 1" in error.value.stderr


def test_no_stage_has_more_of_a_study_as_parameters_than_its_name_and_repetitions(
    tmp_path: Path, studies: Studies
) -> None:
    """Each would be a column of `dvc exp show`."""
    deps = deps_of_stages(tmp_path, studies["quick"])
    assert "software/study.yaml" in deps["aggregate"] and "params.yaml" in deps["software"]
    with Repo(str(tmp_path / "graph")) as repo:
        assert {key for dep in repo.index.params for key in dep.params} == {"study.name", "study.repeat"}


def test_dvc_finds_a_studys_figures_and_plots_where_it_finds_those_of_every_other() -> None:
    graph = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    shown = [*graph["metrics"], *graph["plots"]]
    assert {str(Path(path).parent) for path in shown} == {"summary"}
    assert "summary" in graph["stages"]["aggregate"]["outs"]


@pytest.mark.slow
def test_a_study_runs_from_fetching_to_its_report(
    tree: Tree, quick: subprocess.CompletedProcess[str]
) -> None:
    results = tree.folder / "results" / "quick"
    for name in ("scaling", "accuracy", "utilization"):
        # A line of headings, and one a cell.
        assert len((results / "tables" / f"{name}.csv").read_text().splitlines()) == 3
    assert "<html" in (results / "report.html").read_text()
    assert len(list((results / "runs").iterdir())) == 2
    verdict = quick.stdout.partition("verdict by throughput: cnn on mnist: ")[2]
    # A slow machine has no throughput in the time.
    said = " ".join(verdict.split())
    assert "make study NAME=quick REPEAT=3" in said or "has no rate of enough steps" in said


@pytest.mark.slow
def test_dvc_lists_a_studys_figures_in_120_columns(
    tree: Tree, quick: subprocess.CompletedProcess[str]
) -> None:
    shown = tree.run("dvc", "metrics", "show")
    listed = tree.run("env", "COLUMNS=120", "make", "-o", ".venv/.installed", "experiments")
    for command in (shown, listed):
        assert command.returncode == 0, command.stderr
        assert max(map(len, command.stdout.rstrip().splitlines())) <= 120, command.stdout
        # A throughput, and so a speed-up, needs more steps than a slow machine takes in the time.
        for figure in ("measured", "failed", "accuracy", "parity_gap", "hours"):
            assert figure in command.stdout
    (row,) = [line for line in listed.stdout.splitlines() if "└──" in line]
    assert row.split()[-1] == "quick" and row.split("]")[1].split()[2:4] == ["2", "0"], row


@pytest.mark.slow
def test_plots_are_pictures_that_no_network_is_needed_for(
    tree: Tree, quick: subprocess.CompletedProcess[str]
) -> None:
    for words in (["show"], ["diff", "HEAD"]):
        drawn = tree.run("dvc", "plots", *words, "-o", "drawn")
        assert drawn.returncode == 0, drawn.stderr
        page = (tree.folder / "drawn" / "index.html").read_text()
        assert "//" not in page and "<script" not in page
        sources = re.findall(r'<img src="([^"]*)"', page)
        assert {Path(source).suffix for source in sources} == {".png"}
        assert all((tree.folder / "drawn" / source).read_bytes()[:4] == b"\x89PNG" for source in sources)
        assert any("learning" in source for source in sources)


@pytest.mark.slow
def test_a_second_repro_runs_nothing_and_is_quick(
    tree: Tree, quick: subprocess.CompletedProcess[str]
) -> None:
    durations = []
    for _ in range(2):
        start = time.monotonic()
        completed = tree.run("dvc", "repro")
        durations.append(time.monotonic() - start)
        assert completed.returncode == 0, completed.stderr
        assert "Running stage" not in completed.stdout
        assert "Data and pipelines are up to date." in completed.stdout
    assert min(durations) < REPEAT_SECONDS
    assert not tree.run("git", "status", "--porcelain", "data.dvc").stdout, "the data are as pinned"


@pytest.mark.slow
def test_one_repetition_more_runs_no_other_again_and_its_ratios_are_the_runs_own(
    tree: Tree, quick: subprocess.CompletedProcess[str]
) -> None:
    (tree.folder / "conf" / "study" / "tiny.yaml").write_text(TINY)
    for repeat, new in ((1, [1]), (3, [2, 3])):
        completed = tree.run("dvc", "exp", "run", "-S", "study=tiny", "-S", f"study.repeat={repeat}")
        assert completed.returncode == 0, completed.stderr[-3000:]
        ran = [line for line in completed.stdout.splitlines() if line.startswith("Running stage 'train@")]
        assert len(ran) == 2 * len(new), ran
        assert all(sum(f"-r{number}'" in line for line in ran) == 2 for number in new if number > 1), ran
    results = tree.folder / "results" / "tiny"
    assert differences(results, completed.stdout) == []
    assert wrong_numbers(results) == []
    page = results / "report.html"
    honest = page.read_text()
    for number in re.finditer(r'<td class="n[^>]*>[^<\d]*(\d)', honest):
        place, digit = number.start(1), int(number.group(1))
        page.write_text(f"{honest[:place]}{(digit + 1) % 10}{honest[place + 1 :]}")
        assert wrong_numbers(results), f"a wrong {honest[place - 60 : place + 10]} isn't found"
    page.write_text(honest)
    # And in what charts draw: of each number the first digit.
    charts = re.compile(
        r'download="(throughput|speed-up|what-speed-costs)\.csv" href="data:text/csv[^,]*,([^"]*)"'
    )
    drawn = {chart[1]: chart for chart in charts.finditer(honest)}
    assert "throughput" in drawn
    for chart in drawn.values():
        for number in re.finditer(r",(\d)[\d.]*(?=%0A|,)", chart[2]):
            place, digit = chart.start(2) + number.start(1), int(number.group(1))
            assert wrong_figures(results, f"{honest[:place]}{(digit + 1) % 10}{honest[place + 1 :]}")
    with (results / "tables" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    ordered = sorted(rows, key=lambda row: int(row["order"]))
    assert [row["repetition"] for row in ordered] == ["1", "1", "2", "2", "3", "3"]
    assert all(row["samples_per_second"] and row["speedup"] for row in rows)


@pytest.mark.slow
def test_a_queued_study_runs_in_a_copy_and_so_does_a_temporary_one(
    tree: Tree, quick: subprocess.CompletedProcess[str]
) -> None:
    # Not committed, as a study that somebody is writing.
    (tree.folder / "conf" / "study" / "queued.yaml").write_text(QUEUED)
    before = {name: (tree.folder / name).read_bytes() for name in ("params.yaml", "dvc.lock", "dvc.yaml")}
    ran = {}
    for name, *commands in (
        ("queued", ["--queue", "-n", "queued", "-S", "study=queued"], ["--run-all"]),
        ("temporary", ["--temp", "-n", "temporary", "-S", "study=queued"]),
    ):
        for words in commands:
            completed = tree.run("dvc", "exp", "run", *words)
            assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-3000:]
        ran[name] = completed.stdout
    assert ran["queued"].count("Running stage 'train@") == 1
    # Copies share DVC's cache with the project.
    assert "Running stage 'train@" not in ran["temporary"]
    assert {name: (tree.folder / name).read_bytes() for name in before} == before
    assert not (tree.folder / "results" / "queued").exists()
    with contextlib.closing(sqlite3.connect(tree.folder / "mlflow.db")) as store:
        runs = store.execute(
            "select status, artifact_uri from runs where name like '%limit=2048%'"
        ).fetchall()
    ((status, address),) = runs
    assert status == "FINISHED" and address.startswith((tree.folder / "mlartifacts").as_uri())
    assert tree.run("dvc", "exp", "apply", "temporary").returncode == 0
    assert (tree.folder / "results" / "queued" / "report.html").exists()


@pytest.mark.slow
def test_a_failed_cell_leaves_the_others_tables_and_says_how_to_run_it_again(
    tree: Tree, quick: subprocess.CompletedProcess[str]
) -> None:
    (tree.folder / "conf" / "study" / "broken.yaml").write_text(BROKEN)
    completed = tree.run("dvc", "exp", "run", "-S", "study=broken")
    assert completed.returncode != 0
    cells = yaml.safe_load((tree.folder / "params.yaml").read_text())["study"]["cells"]
    good, bad = cells
    assert f"dvc repro -f -s train@{bad}" in completed.stdout, (
        completed.stdout[-3000:] + completed.stderr[-3000:]
    )
    assert "math.pi: is a float, not a callable" in completed.stdout + completed.stderr
    table = (tree.folder / "results" / "broken" / "tables" / "accuracy.csv").read_text()
    rows = {line.split(",")[0]: line for line in table.splitlines()[1:]}
    assert rows.keys() == {good, bad}
    assert "failed" in rows[bad] and "failed" not in rows[good]
    assert (tree.folder / "results" / "broken" / "report.html").exists()
