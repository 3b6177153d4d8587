"""A model of the user's own and a checkpoint are looked into once each, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from src import preflight
from src.config import Config, ConfigError
from src.launch.supervise import inspection
from tests.support import ROOT, config

OWN = ("model=custom", "model.path=torchvision.models.resnet34")


@pytest.mark.parametrize(
    "words", [(), ("model=resnet18",), ("strategy=tf_single", "model=mlp"), ("strategy=ddp",)]
)
def test_what_the_project_brings_needs_no_look(words: tuple[str, ...]) -> None:
    assert not inspection.is_needed(config(*words))


def test_sizes_that_do_not_go_together_are_told_before_ranks_start(mnist: None, tmp_path: Path) -> None:
    chosen = config("model=vit", "model.patch=5")
    assert inspection.is_needed(chosen) and not inspection.has_own(chosen)
    with pytest.raises(ConfigError, match=r"^model\.patch=5: must divide the images' 28 x 28 pixels"):
        preflight.look_into(chosen, tmp_path)
    assert preflight.look_into(config("model=vit"), tmp_path) == {}


def test_stages_of_split_layers_are_tried_before_ranks_start(mnist: None, tmp_path: Path) -> None:
    def staged(stages: int) -> Config:
        degrees = ("strategy=hybrid", "strategy.tensor=2", f"strategy.pipeline={stages}")
        path = "model.path=tests.plugin.model.split.heads"
        return config(*degrees, "model=custom", path, "batch=16", "microbatches=2")

    assert preflight.look_into(staged(2), tmp_path)["compared"] == 8
    with pytest.raises(ConfigError, match=r"^strategy\.pipeline=40: .* cut into at most \d+ stages"):
        preflight.look_into(staged(40), tmp_path)


def test_each_model_and_checkpoint_is_looked_into_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.pt").touch()
    looked: list[Config] = []
    monkeypatch.setattr(inspection, "_inspect", looked.append)
    cells = [config(*OWN, f"batch={batch}", f"seed={seed}") for batch in (64, 128) for seed in (0, 1)]
    cells += [config(*OWN, "strategy=ddp"), config(), config(*OWN, "+model.options.weights=null")]
    inspection.inspect(cells)
    assert len(looked) == 3
    # A cell isn't taken for one whose options a look may refuse and its own not.
    for words in (
        ("strategy=pipeline", "workers=2", "strategy.recompute={}", "full", "none"),
        ("strategy=ddp", "workers=2", "batch_shares={}", "[80,48]", "equal"),
        ("strategy=fsdp", "workers=2", "strategy.reshard={}", "true", "false"),
        ("strategy=ddp", "workers=2", "batchnorm={}", "sync", "local"),
    ):
        *given, key, one, other = words
        looked.clear()
        inspection.inspect([config(*OWN, *given, key.format(value)) for value in (one, other, one)])
        assert len(looked) == 2, key
    looked.clear()
    # What of a checkpoint must fit also depends on the seed.
    looked.clear()
    inspection.inspect([config(f"resume={tmp_path}/c.pt", f"seed={seed}", "epochs=2") for seed in (0, 0, 1)])
    assert len(looked) == 2


@pytest.mark.slow
def test_code_that_joins_mpi_leaves_it_again(mnist: None, tmp_path: Path) -> None:
    chosen = config("--config-dir", f"{ROOT}/tests/plugin/conf", "strategy=mpi_steps", "model=mlp")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(chosen)))
    command = ["-m", "src.preflight", f"{tmp_path}/config.yaml", f"{tmp_path}/answer.json"]
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT)
    assert process.wait(60) == 0
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["notes"] == [] and not {"mistake", "failure"} & answer.keys()
    # MPICH names its shared memory by the process.
    assert list(Path("/dev/shm").glob(f"mpich_shm_{process.pid:x}_*")) == []
