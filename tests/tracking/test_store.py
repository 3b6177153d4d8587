"""Which store a run goes to; that two may begin there at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from src.tracking import store as tracking_store
from src.tracking.names import EXPERIMENT
from src.tracking.store import default_uri, open_store
from tests.support import ROOT

OPEN = """
import sys
from src.tracking.store import open_store
client, experiment = open_store(sys.argv[1])
client.create_run(experiment)
"""


def test_the_store_is_the_projects_wherever_a_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert default_uri() == f"sqlite:///{ROOT}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///own.db")
    assert default_uri() == f"sqlite:///{tmp_path}/own.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert default_uri() == "http://localhost:5000"


@pytest.mark.parametrize("copy", ["standalone/tmpa1b2", "tmpa1b2"])
def test_an_experiment_in_a_copy_of_dvcs_goes_to_the_projects_store(tmp_path: Path, copy: str) -> None:
    assert store_folder_of(tmp_path / "scaleguide/.dvc/tmp/exps" / copy) == tmp_path / "scaleguide"


def test_a_project_below_a_folder_of_dvcs_has_a_store_of_its_own(tmp_path: Path) -> None:
    assert store_folder_of(tmp_path / ".dvc/scaleguide") == tmp_path / ".dvc/scaleguide"


def store_folder_of(project: Path) -> Path:
    """Put the code into the folder `project`, and return the folder that it takes for its store's."""
    project.mkdir(parents=True)
    (project / "src").symlink_to(ROOT / "src")
    code = "from src.tracking.store import project_folder; print(project_folder())"
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=environment, stdout=subprocess.PIPE, check=True
    )
    return Path(completed.stdout.decode().rstrip())


def test_dvc_names_its_copies_as_this_project_expects() -> None:
    from dvc.repo import Repo
    from dvc.repo.experiments.utils import EXEC_TMP_DIR

    assert tracking_store.DVC_COPIES[::2] == (Repo.DVC_DIR, EXEC_TMP_DIR)


def test_an_earlier_experiment_is_described_too(store: MlflowClient, tmp_path: Path) -> None:
    # As an earlier version made it.
    store.create_experiment(EXPERIMENT)
    _, experiment = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    tags = store.get_experiment(experiment).tags
    assert tags["mlflow.note.content"].startswith("Trainings by Scaleguide")
    # The address that `make ui` prints names this view.
    shown = json.loads(tags["mlflow.sharedViewState.scaleguide"])["selectedColumns"]
    assert {"tags.`strategy`", "metrics.`evaluation/accuracy`", "tags.`verdict`"} <= set(shown)


@pytest.mark.slow
def test_two_first_runs_at_once_both_find_a_store(tmp_path: Path) -> None:
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        uri = f"sqlite:///{folder}/mlflow.db"
        both = [
            subprocess.Popen([sys.executable, "-c", OPEN, uri], cwd=ROOT, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        errors = [process.communicate(timeout=120)[1] for process in both]
        assert [process.returncode for process in both] == [0, 0], errors
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        assert len(client.search_runs([experiment.experiment_id])) == 2
