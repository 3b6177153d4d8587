"""Every kind of model under every schedule of several stages a rank computes what one device computes.

Ten float64 steps, to 1e-9, buffers included, at 2 and 4 ranks; test_schedule_parity.py has one of each kind.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from src.config.schedules import SCHEDULES
from tests.strategies import parity
from tests.strategies.parity import Case, differences, gaps, joined
from tests.strategies.test_mesh_models import LIMIT_SECONDS, VIT, WHOLE, named_in_stages, skip_without_library

pytestmark = [pytest.mark.long, pytest.mark.timeout(LIMIT_SECONDS)]

NAMES = ("mlp", "cnn", "resnet18", "vit", "GPT2LMHeadModel", "ViTForImageClassification")
# Of a model's operations, where there aren't two for each of four ranks.
FEW = {"mlp"}
EIGHT = "microbatches=8"


@pytest.mark.parametrize("name", NAMES)
def test_stages_of_any_schedule_are_one_device(name: str, tmp_path: Path) -> None:
    model = VIT if name == "vit" else WHOLE[name]
    skip_without_library(model)
    alone = Case("one device", (*model.words, EIGHT))
    cases = []
    for schedule, world in ((each, world) for each in SCHEDULES for world in (2, 4)):
        words = [f"strategy.schedule={schedule}", f"workers={world}", EIGHT]
        if name in FEW and world == 4:
            if SCHEDULES[schedule].virtual[0] > 1:
                continue
            words.append("strategy.virtual_stages=1")
        if model.shared:
            words.append("strategy.tied=reduce")
        cases.append(Case(f"{schedule} on {world}", ("strategy=pipeline", *words, *model.words)))
    jobs: parity.Jobs = {
        "alone": ((alone,), "single", 1),
        **{str(n): (tuple(c for c in cases if f"workers={n}" in c.words), "fsdp", n) for n in (2, 4)},
    }
    parity.train(jobs, tmp_path, limit=LIMIT_SECONDS)
    trained = parity.outcomes(jobs, tmp_path)
    (expected,) = trained["one device"]
    wrong = []
    for case in cases:
        held = trained[case.name]
        name = model.shared[0] if model.shared else ""
        several = sum(f"parameters/{name}" in each.tensors for each in held) > 1
        found = joined(held, shared=name if several else None)
        tensors = dict(named_in_stages(expected.tensors, model))
        print(f"{case.name}: {max(gaps(found, replace(expected, tensors=tensors)).values()):.1e}")
        if differing := differences(found, replace(expected, tensors=tensors)):
            wrong.append((case.name, differing))
    assert not wrong, "\n".join(map(str, wrong))
