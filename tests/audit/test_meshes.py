"""`python -m src.audit` names the layer in which a mesh of ranks does something else than one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.command import MODELS, audit, causes, findings
from tests.support import ROOT, instances

pytestmark = [pytest.mark.timed, pytest.mark.slow]
# Model and words of a mesh, and fault -> what differs first, in step 1: its kind and name.
MESHES = {
    "shards": (
        ("Net", "workers=2", "strategy.shard=2", "strategy.groups=[first,last]"),
        {"swapped_shard": ("weight", "last.weight"), "own_gradients": ("gradient", "last.bias")},
    ),
    "parts": (
        ("Deep", "workers=2", "strategy.tensor=2", "strategy.plan=[layer:colwise,last:rowwise]"),
        {"unsummed": ("gradient", "first.weight"), "swapped_part": ("weight", "last.weight")},
    ),
    "copies of stages": (
        ("Net", "workers=4", "strategy.pipeline=2", "strategy.partition=[last]"),
        {"kept_bias": ("gradient", "first.bias"), "twice": ("gradient", "first.bias")},
    ),
}
CONF = ("--config-dir", str(ROOT / "tests/plugin/conf"), "strategy=faulty_mesh", "microbatches=1")
DATA = ("dataset=mnist", "hardware.share_devices=true")


def audited(folder: Path, mesh: tuple[str, ...], *words: str) -> int:
    model, *degrees = mesh
    own = ("model=custom", f"model.path={MODELS}.{model}")
    return audit(folder, *CONF, *DATA, *own, *degrees, *words).returncode


@pytest.mark.parametrize("place", instances(range(2), 0))
@pytest.mark.parametrize("mesh", MESHES)
def test_the_layer_of_a_fault_is_named(mesh: str, place: int, tmp_path: Path) -> None:
    words, every = MESHES[mesh]
    faults = dict([*every.items()][place : place + 1])
    assert audited(tmp_path, words, f"strategy.fault={','.join(('none', *faults))}") == 3
    sound, *found = findings(tmp_path)
    assert sound["same"] and max(sound["largest_gaps"]["fp64"].values()) < 1e-12
    for (fault, expected), finding in zip(faults.items(), found, strict=True):
        first = finding["first_difference"][0]
        assert (first["kind"], first["name"], first["step"]) == (*expected, 1), fault
        # Nothing that an honest strategy does explains it.
        assert causes(finding) == [], fault


def test_shards_that_each_clip_by_their_own_norm_are_named(tmp_path: Path) -> None:
    words, _ = MESHES["shards"]
    assert audited(tmp_path, words, "strategy.fault=own_norm", "optimizer.clip_norm=0.2") == 3
    (finding,) = findings(tmp_path)
    assert causes(finding) == ["clip"]
    assert finding["first_difference"][0]["kind"] == "gradient"
