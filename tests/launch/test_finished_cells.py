"""Of a sweep that was interrupted, what is finished is taken as it is, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config import Config
from src.launch.finished_cells import is_finished
from src.measure import environment
from src.measure.software import software_of as run_software
from tests.conftest import Commands
from tests.support import SHORT, config

Until = Callable[[Callable[[], object], float, str], float]
WORDS = ("model=mlp", "tracking.backend=none")


def write(
    out: Path, run: Config, *, status: str = "ok", figures: dict[str, Any] | None = None, **changed: Any
) -> None:
    """A run's directory as far as it tells whether the run is finished."""
    out.mkdir(exist_ok=True)
    (out / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(run)))
    (out / "metrics.json").write_text(json.dumps({"status": status, **(figures or {})}))
    (out / "environment.json").write_text(json.dumps({**environment.describe(run), **changed}))


@pytest.mark.parametrize("status", ["ok", "time_limit", "diverged", "failed", "out_of_memory"])
def test_a_run_with_figures_is_finished(tmp_path: Path, status: str) -> None:
    run = config(*WORDS, f"out={tmp_path}/run")
    assert not is_finished(run)
    write(tmp_path / "run", run, status=status)
    assert is_finished(run) is (status in ("ok", "time_limit", "diverged"))


@pytest.mark.parametrize("word", ["overwrite=true", "epochs=7", "checkpoint_every=5", "profiler=true"])
def test_what_was_not_asked_for_then_is_measured(tmp_path: Path, word: str) -> None:
    write(tmp_path / "run", config(*WORDS, f"out={tmp_path}/run"))
    assert not is_finished(config(*WORDS, f"out={tmp_path}/run", word))


def test_what_is_tracked_only_now_is_measured(tmp_path: Path) -> None:
    run = config(*WORDS, f"out={tmp_path}/run")
    write(tmp_path / "run", run)
    assert not is_finished(dataclasses.replace(run, tracking={**run.tracking, "backend": "sqlite"}))


@pytest.mark.parametrize(
    "changed",
    [
        {"software": {"files": {"src/worker.py": "another"}, "libraries": {}}},
        {"processors": {"model": "another"}},
        {"driver": "570.1"},
    ],
    ids=["software", "processor", "driver"],
)
def test_another_software_or_machine_measures_again(tmp_path: Path, changed: dict[str, Any]) -> None:
    run = config(*WORDS, f"out={tmp_path}/run")
    write(tmp_path / "run", run, **changed)
    assert not is_finished(run)


@pytest.mark.parametrize("key", ["torch", "draws", "page"])
def test_what_a_choices_file_names_counts_and_not_what_it_says(tmp_path: Path, key: str) -> None:
    """Another function of the same file is no other software."""
    run = config(*WORDS, f"out={tmp_path}/run")
    write(tmp_path / "run", dataclasses.replace(run, model={**run.model, key: "src.models.torch.mlp.other"}))
    assert is_finished(run) is (key != "torch")


def test_weights_that_were_written_since_are_trained_on(tmp_path: Path) -> None:
    plain = config(*WORDS, f"out={tmp_path}/run")
    run = dataclasses.replace(plain, model={**plain.model, "pretrained": str(tmp_path / "weights.pt")})
    (tmp_path / "weights.pt").touch()
    write(tmp_path / "run", run)
    assert is_finished(run)
    later = (tmp_path / "run/metrics.json").stat().st_mtime + 1
    os.utime(tmp_path / "weights.pt", (later, later))
    assert not is_finished(run)


def test_a_run_that_was_to_be_measured_again_is(tmp_path: Path) -> None:
    plain = config(*WORDS, f"out={tmp_path}/run")
    run = dataclasses.replace(plain, hardware=dataclasses.replace(plain.hardware, repeat_disturbed=1))
    disturbed = {"cpu_wait_fraction": 0.5, "steal_fraction": 0.0}
    write(tmp_path / "run", run, figures=disturbed, attempts=[disturbed])
    assert not is_finished(run)
    write(tmp_path / "run", run, figures=disturbed, attempts=[disturbed, disturbed])
    assert is_finished(run)


def test_an_edited_library_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = config(*WORDS, f"out={tmp_path}/run")
    write(tmp_path / "run", run)
    assert is_finished(run)
    info = tmp_path / "site/torch-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: torch\nVersion: 9\n")
    (info / "direct_url.json").write_text('{"url": "file:///torch", "dir_info": {"editable": true}}')
    known = run_software(run)
    monkeypatch.setattr("src.launch.finished_cells.software_of", lambda _: known)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert not is_finished(run)


def test_what_cannot_be_read_is_not_finished(tmp_path: Path) -> None:
    run = config(*WORDS, f"out={tmp_path}/run")
    write(tmp_path / "run", run)
    (tmp_path / "run/environment.json").write_text("[")
    assert not is_finished(run)


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(
    module_commands: Callable[[], Commands], until: Until, mnist: None
) -> None:
    commands = module_commands()
    words = (*SHORT, *WORDS, "-m", "seed=0,1", "out=run-${seed}")
    process = commands.start(*words)
    until(lambda: (commands.folder / "run-1").exists(), 100, "the second cell's begin")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    first, second = (commands.folder / f"run-{seed}/metrics.json" for seed in (0, 1))
    before = os.stat(first).st_mtime_ns
    again = commands.run(*words)
    assert again.returncode == 0, again.stderr
    lines = again.stdout.splitlines()
    assert lines[0].startswith("1 of 2 were finished before, and are taken as they are; 1 run: about ")
    assert "run-0: finished before; overwrite=true measures it again" in lines
    assert os.stat(first).st_mtime_ns == before and json.loads(second.read_text())["status"] == "ok"
    assert again.stdout.partition("\nsweep, ")[2].count("\nsingle") == 2
    # Nothing is left to be done, and the table is shown all the same.
    whole = commands.run(*words)
    assert whole.returncode == 0 and whole.stdout.count("finished before;") == 2
    assert whole.stdout.partition("\nsweep, ")[2].count("\nsingle") == 2
    replaced = commands.run(*words, "overwrite=true")
    assert replaced.returncode == 0 and "finished before" not in replaced.stdout
    assert os.stat(first).st_mtime_ns != before
